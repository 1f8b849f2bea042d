"""Policy versions: publishing one and every change of state is one transaction; versions are never
deleted.

Pure functions decide which version may serve, and where a rollback leads."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, delete, func, insert, select, true, update

from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.policy import (
    BASE_POLICY,
    GateReport,
    PolicyState,
    PolicyVersion,
    Serving,
    Weights,
)
from metaclaw.domain.training import BatchState, RoleKind
from metaclaw.domain.turn import TurnKind
from metaclaw.domain.verdict import Outcome
from metaclaw.store.database import Queries, append_event
from metaclaw.store.dialects import RefusedError, lock_table
from metaclaw.store.rows import (
    ResultRow,
    pack_document,
    pack_names,
    record,
    unpack_document,
    unpack_names,
)
from metaclaw.store.schema import (
    batch_turns,
    batches,
    forgotten_batches,
    generations,
    policies,
    policy_files,
    roles,
    stands,
    turns,
)
from metaclaw.store.training_batches import opened


@dataclass(frozen=True, slots=True)
class VersionOutcome:
    """The outcome of a main turn, the version that answered, and the skills in its prompt. Turns of
    a session are dependent.
    """

    session: SessionId
    version: int
    outcome: Outcome
    skills: tuple[SkillName, ...] = ()


@dataclass(frozen=True, slots=True)
class StateSince:
    """When the state of a version last changed, and after which turn. `is_first`: it serves for the
    first time.
    """

    at: datetime
    turn: int
    is_first: bool = False


Versions = Mapping[int, PolicyVersion]
Transitions = dict[int, PolicyState]


def serving_in(versions: Versions) -> int:
    """The version that serves; the untrained model if none does."""
    is_serving = (number for number, one in versions.items() if one.state is PolicyState.SERVING)
    return next(is_serving, BASE_POLICY)


def to_rejected(versions: Versions, number: int) -> Transitions:
    """Reject a candidate."""
    state = _usable(versions, number).state
    if state is not PolicyState.CANDIDATE:
        raise RefusedError(f"version {number} cannot be rejected: it is {state}, not a candidate")
    return {number: PolicyState.REJECTED}


def to_serving(versions: Versions, number: int) -> Transitions:
    """Let a version serve; any version whose weights are kept may. The version that served before
    is retired."""
    if number == BASE_POLICY:
        raise RefusedError("version 0 is the untrained model; roll back to it instead")
    if _usable(versions, number).state is PolicyState.SERVING:
        raise RefusedError(f"version {number} serves already")
    return _of_trained({serving_in(versions): PolicyState.RETIRED, number: PolicyState.SERVING})


def roll_back(versions: Versions, to: int | None) -> Transitions:
    """Take back the serving version, or everything since version `to`."""
    served = serving_in(versions)
    if to is None and served == BASE_POLICY:
        raise RefusedError("the untrained model serves; there is nothing to roll back")
    target = ancestor(versions, served) if to is None else _earlier(versions, served, to)
    return _of_trained({served: PolicyState.ROLLED_BACK, target: PolicyState.SERVING})


def to_given_up(versions: Versions, numbers: Collection[int]) -> Transitions:
    """Give these versions up for ever. If one of them serves, its nearest usable ancestor serves
    instead."""
    never_served = (PolicyState.CANDIDATE, PolicyState.REJECTED)
    moves = {
        number: (
            PolicyState.REJECTED
            if versions[number].state in never_served
            else PolicyState.ROLLED_BACK
        )
        for number in numbers
    }
    served = serving_in(versions)
    if served in moves:
        moves[ancestor(versions, served, without=numbers)] = PolicyState.SERVING
    return _of_trained(moves)


def ancestor(versions: Versions, number: int, without: Collection[int] = ()) -> int:
    """The version that a rollback leads to: the nearest ancestor that has served, was never rolled
    back and is kept; else the untrained model."""
    at = versions[number].parent
    while at != BASE_POLICY:
        version = versions[at]
        is_usable = version.has_served and version.is_kept and at not in without
        if is_usable and version.state is not PolicyState.ROLLED_BACK:
            return at
        at = version.parent
    return BASE_POLICY


def _of_trained(moves: Transitions) -> Transitions:
    """Leave out the untrained model, which has no state."""
    return {number: state for number, state in moves.items() if number != BASE_POLICY}


def _earlier(versions: Versions, serving: int, to: int) -> int:
    """The version `to`, if the program may roll back to it."""
    if to == serving:
        raise RefusedError(f"version {to} serves already")
    if to == BASE_POLICY:
        return to
    version = _usable(versions, to)
    if to > serving:
        raise RefusedError(
            f"version {to} is not earlier than the serving version {serving}; promote it instead"
        )
    if not version.has_served:
        raise RefusedError(f"version {to} ({version.state}) has never served; promote it instead")
    return to


def _usable(versions: Versions, number: int) -> PolicyVersion:
    version = _known(versions, number, "")
    if not version.is_kept:
        why = f": {version.note}" if version.note else ""
        raise RefusedError(f"the weights of version {number} are no longer kept{why}")
    return version


def _known(versions: Versions, number: int, doing: str) -> PolicyVersion:
    version = versions.get(number)
    if version is None:
        raise RefusedError(f"{doing}there is no version {number}")
    return version


_NEEDED = (PolicyState.CANDIDATE, PolicyState.SERVING)
_ENDS = {
    "rejected": PolicyState.REJECTED,
    "promoted": PolicyState.SERVING,
    "rolled back": PolicyState.ROLLED_BACK,
}


class SqlPolicies(Queries):
    """Versions in a database, whose constraints allow at most one serving version.
    Blocks: call it from a thread. All methods raise StoreError; a refused change raises
    RefusedError with the reason, and changes nothing."""

    def versions(self, limit: int = 100) -> list[PolicyVersion]:
        """Newest first."""
        query = select(policies).order_by(policies.c.number.desc()).limit(limit)
        return self._database.read("listing policy versions", query, version_of)

    def version(self, number: int) -> PolicyVersion | None:
        """One version, or None; the untrained model (0) has no record."""
        query = select(policies).where(policies.c.number == number)
        return self._database.read_one("reading a policy version", query, version_of)

    def serving(self) -> Serving:
        """Which weights answer now."""
        query = select(policies).where(policies.c.state == PolicyState.SERVING)
        found = self._database.read_one("reading which version serves", query, version_of)
        if found is None:
            return Serving()
        return Serving(found.number, {found.number: found.absorbed})

    def before(self, number: int) -> int:
        """The version that a rollback from this one leads to."""
        with self._database.reading("looking for the version before") as connection:
            return ancestor(_all_versions(connection), number)

    def since(self, number: int) -> StateSince | None:
        """When the state of a version last changed."""
        is_first = policies.c.served_us.is_not_distinct_from(policies.c.state_us)
        columns = *policies.c["state_us", "state_turn"], is_first
        query = select(*columns).where(policies.c.number == number)
        return self._database.read_one(
            "reading since when a version is what it is", query, lambda row: StateSince(*row)
        )

    def outcomes_by_version(
        self, versions: Collection[int], since: int, before: int | None = None, limit: int = 10_000
    ) -> list[VersionOutcome]:
        """The known outcomes of these versions' main turns, oldest first: the newest `limit` behind
        the cursor `since`, up to the cursor `before`."""
        query = (
            select(*turns.c["session", "policy_version"], stands.c.outcome, turns.c.skills)
            .select_from(turns)
            .join(stands)
            .where(
                turns.c.seq > since,
                turns.c.policy_version.in_(versions),
                turns.c.kind == TurnKind.MAIN,
                true() if before is None else turns.c.seq <= before,
            )
            .order_by(turns.c.seq.desc())
            .limit(limit)
        )
        rows = self._database.rows("reading what versions did", query)
        return [
            VersionOutcome(
                row.session,
                row.policy_version,
                row.outcome,
                tuple(map(SkillName, unpack_names(row.skills))),
            )
            for row in reversed(rows)
        ]

    def publish(
        self,
        weights: Weights,
        *,
        parent: int,
        base: str,
        batch: int | None = None,
        steps: int = 0,
        report: GateReport | None = None,
        note: str = "",
        absorbed: Iterable[SkillName] = (),
    ) -> PolicyVersion:
        """Publish the next version, as a candidate. A given batch is done then: its turns have
        trained this version and no other. Raises RefusedError if the batch has ended, began from
        another version than `parent`, or if one of its turns fed a skill or was forgotten."""
        with self._writing("publishing a version") as connection:
            known = _all_versions(connection)
            if parent != BASE_POLICY and parent not in known:
                raise RefusedError(
                    f"publishing a version: there is no version {parent} to descend from"
                )
            now, number = self._clock(), max(known, default=BASE_POLICY) + 1
            row = {
                "number": number,
                "parent": parent,
                "batch": batch,
                "base": base,
                "state": PolicyState.CANDIDATE,
                "generation": (
                    connection.scalar(select(func.max(generations.c.number)))
                    if batch is None
                    else _mark_done(connection, batch, parent, now)
                ),
                "steps": steps,
                "made_us": now,
                "state_us": now,
                "state_turn": last_turn(connection),
                "backend": weights.backend,
                "adapter": weights.adapter,
                "training": weights.training,
                "report": None if report is None else pack_document(report),
                "note": note,
                "absorbed": pack_names(sorted(absorbed)),
            }
            connection.execute(insert(policies), row)
            _announce(connection, now, number, "published", note, {number: PolicyState.CANDIDATE})
            return _all_versions(connection)[number]

    def reject(self, number: int, report: GateReport | None = None, reason: str = "") -> None:
        """Reject a candidate; `report` says why."""
        self._move("rejected", lambda known: to_rejected(known, number), reason, report)

    def promote(self, number: int, reason: str = "", report: GateReport | None = None) -> None:
        """Let this version serve all sessions; the one before it is retired. `report` is the
        gate's, if there is a new one.
        """
        self._move("promoted", lambda known: to_serving(known, number), reason, report)

    def rollback(self, to: int | None = None, reason: str = "") -> None:
        """Give up the serving version: its nearest ancestor that has
        served, or the untrained model, serves again. With `to`, that earlier version serves."""
        self._move("rolled back", lambda known: roll_back(known, to), reason)

    def absorb(self, number: int, skills: Iterable[SkillName]) -> None:
        """Record the skills that this version has absorbed."""
        names = sorted(skills)
        with self._writing("noting absorbed skills") as connection:
            _known(_all_versions(connection), number, "noting absorbed skills: ")
            mine = update(policies).where(policies.c.number == number)
            connection.execute(mine, {"absorbed": pack_names(names)})
            _announce(connection, self._clock(), number, "absorbed", ", ".join(names), {})

    def spare(self, keep: int) -> list[PolicyVersion]:
        """Versions whose weights can be deleted: not among the newest `keep`, not in use, and not
        the target of a rollback.
        """
        with self._database.reading("looking for spare weights") as connection:
            known = _all_versions(connection)
        served = serving_in(known)
        target = ancestor(known, served) if served else BASE_POLICY
        kept = [version for version in reversed(known.values()) if version.is_kept]
        return [
            version
            for version in kept[keep:]
            if version.state not in _NEEDED and version.number != target
        ]

    def thrown_away(self) -> list[Weights]:
        """The locations of weights that are no longer kept."""
        query = select(*policies.c["backend", "adapter", "training"])
        return self._database.records(
            "listing weights that are not kept",
            query.where(policies.c.gone_us.is_not(None)),
            Weights,
        )

    def let_go(self, number: int) -> None:
        """Record that the weights of this version were deleted."""
        with self._writing("letting go of weights") as connection:
            doing = "letting go of weights: "
            state = _known(_all_versions(connection), number, doing).state
            if state in _NEEDED:
                raise RefusedError(f"{doing}version {number} is {state} and needs them")
            gone = update(policies).where(policies.c.number == number, policies.c.gone_us.is_(None))
            connection.execute(gone, {"gone_us": self._clock()})
            connection.execute(delete(policy_files).where(policy_files.c.policy == number))

    def _move(
        self,
        action: str,
        rule: Callable[[Versions], Transitions],
        reason: str,
        report: GateReport | None = None,
    ) -> None:
        with self._writing("moving a version") as connection:
            known = _all_versions(connection)
            changes, now, end = rule(known), self._clock(), _ENDS[action]
            concerned = next(number for number, state in changes.items() if state is end)
            facts: dict[int, dict[str, object]] = {
                number: {"served_us": now}
                for number, state in changes.items()
                if state is PolicyState.SERVING and not known[number].has_served
            }
            about = facts.setdefault(concerned, {})
            if reason:
                about["note"] = reason
            if report is not None:
                about["report"] = pack_document(report)
            _change_states(connection, changes, now, facts)
            _announce(connection, now, concerned, action, reason, changes)

    @contextmanager
    def _writing(self, doing: str) -> Iterator[Connection]:
        """Lock the versions against other programs."""
        with self._database.writing(doing) as connection:
            lock_table(connection, policies)
            yield connection


def give_up(connection: Connection, numbers: Collection[int], reason: str, now: datetime) -> None:
    """Give versions up for ever; their weights are to be deleted. Versions that were given up
    before do not change.
    """
    known = _all_versions(connection)
    fresh = [number for number in numbers if number in known and known[number].is_kept]
    if not fresh:
        return
    changes = to_given_up(known, fresh)
    gone: dict[str, object] = {"gone_us": now, "note": reason}
    _change_states(connection, changes, now, dict.fromkeys(fresh, gone))
    connection.execute(delete(policy_files).where(policy_files.c.policy.in_(fresh)))
    _announce(connection, now, max(fresh), "rolled back", reason, changes)


def _change_states(
    connection: Connection,
    changes: Transitions,
    now: datetime,
    facts: Mapping[int, Mapping[str, object]],
) -> None:
    """Write the new states of versions, with further facts about some."""
    last = last_turn(connection)
    # Versions that leave a state are updated first: the database refuses two versions in one.
    for number, state in sorted(changes.items(), key=lambda change: change[1] in _NEEDED):
        moved = {"state": state, "state_us": now, "state_turn": last, **facts.get(number, {})}
        connection.execute(update(policies).where(policies.c.number == number).values(moved))


def _mark_done(connection: Connection, number: int, parent: int, now: datetime) -> int:
    """Mark a batch as done; return its generation. Raises RefusedError if it may not train a
    version.
    """
    doing = "publishing a version"
    batch = opened(connection, number, doing)
    if batch.policy_version != parent:
        raise RefusedError(
            f"{doing}: batch {number} began from version {batch.policy_version}, not from {parent}"
        )
    gone = connection.scalar(
        select(forgotten_batches.c.turn).where(forgotten_batches.c.batch == number).limit(1)
    )
    if gone is not None:
        raise RefusedError(f"{doing}: turn {gone} of batch {number} was forgotten")
    fed = (
        select(roles.c.turn)
        .join(batch_turns, batch_turns.c.turn == roles.c.turn)
        .where(batch_turns.c.batch == number, roles.c.kind == RoleKind.SUPPORT)
    )
    if connection.scalar(fed.limit(1)) is not None:
        raise RefusedError(f"{doing}: a turn of batch {number} fed a skill")
    ended = {"state": BatchState.DONE, "ended_us": now}
    connection.execute(update(batches).where(batches.c.seq == number), ended)
    generation: int = batch.generation
    return generation


def version_of(row: ResultRow) -> PolicyVersion:
    return record(
        PolicyVersion,
        row,
        weights=record(Weights, row),
        made=row.made_us,
        report=None if row.report is None else unpack_document(row.report, GateReport),
        absorbed=frozenset(map(SkillName, unpack_names(row.absorbed))),
        has_served=row.served_us is not None,
        is_kept=row.gone_us is None,
    )


def _all_versions(connection: Connection) -> dict[int, PolicyVersion]:
    """Every version by its number, oldest first."""
    rows = connection.execute(select(policies).order_by(policies.c.number))
    return {row.number: version_of(row) for row in rows}


def last_turn(connection: Connection) -> int:
    """The newest turn's cursor."""
    return connection.scalar(select(func.max(turns.c.seq))) or 0


def _announce(
    connection: Connection,
    at: datetime,
    number: int,
    action: str,
    reason: str,
    changes: Transitions,
) -> None:
    """Append an event about a version, with the version that serves now."""
    data = {
        "action": action,
        "version": number,
        "serving": serving_in(_all_versions(connection)),
        "moves": {str(moved): state for moved, state in changes.items()},
        "reason": reason,
    }
    append_event(connection, at, "policy", data)

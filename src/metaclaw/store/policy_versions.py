"""Policy versions: publishing one and every change of state is one transaction; versions are never
deleted.

Pure functions decide which version may serve, which may be tried beside it, and where a rollback
leads."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection, func, insert, select, update

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
from metaclaw.store.database import Database, utc_now
from metaclaw.store.dialects import RefusedError, lock_table
from metaclaw.store.rows import (
    ResultRow,
    Value,
    pack_document,
    pack_instant,
    pack_json,
    pack_names,
    unpack_document,
    unpack_instant,
    unpack_names,
)
from metaclaw.store.schema import (
    batch_turns,
    batches,
    events,
    forgotten_batches,
    generations,
    policies,
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


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """The facts of a version that the transition functions need."""

    number: int
    parent: int
    state: PolicyState
    has_served: bool
    is_kept: bool
    note: str = ""


Versions = Mapping[int, VersionFacts]
Transitions = dict[int, PolicyState]


def version_in(versions: Versions, state: PolicyState) -> int | None:
    """The version in a state that at most one version can have, or None."""
    return next((version.number for version in versions.values() if version.state is state), None)


def to_canary(versions: Versions, number: int) -> Transitions:
    """Try a candidate on a share of the sessions."""
    _expect(versions, number, PolicyState.CANDIDATE, "be tried")
    tried = version_in(versions, PolicyState.CANARY)
    if tried is not None:
        raise RefusedError(
            f"version {tried} is being tried already; promote it or roll it back first"
        )
    return {number: PolicyState.CANARY}


def to_rejected(versions: Versions, number: int) -> Transitions:
    """Reject a candidate."""
    _expect(versions, number, PolicyState.CANDIDATE, "be rejected")
    return {number: PolicyState.REJECTED}


def to_serving(versions: Versions, number: int) -> Transitions:
    """Let a version serve; any version whose weights are kept may. The version that served before
    is retired, and a trial of another version ends, because it was compared with that one."""
    if number == BASE_POLICY:
        raise RefusedError("version 0 is the untrained model; roll back to it instead")
    version = _usable(versions, number)
    if version.state is PolicyState.SERVING:
        raise RefusedError(f"version {number} serves already")
    served, tried = (
        version_in(versions, PolicyState.SERVING),
        version_in(versions, PolicyState.CANARY),
    )
    moves = {} if served is None else {served: PolicyState.RETIRED}
    moves |= {} if tried in (None, number) else {tried: PolicyState.ROLLED_BACK}
    return moves | {number: PolicyState.SERVING}


def roll_back(versions: Versions, to: int | None) -> Transitions:
    """Take back the last step: the trial if there is one, else the serving version; or everything
    since version `to`.
    """
    served, tried = (
        version_in(versions, PolicyState.SERVING),
        version_in(versions, PolicyState.CANARY),
    )
    given_up = {} if tried is None else {tried: PolicyState.ROLLED_BACK}
    if given_up and to in (None, served or BASE_POLICY):
        return given_up
    if to is None and served is None:
        raise RefusedError("the untrained model serves; there is nothing to roll back")
    target = _destination(versions, served or BASE_POLICY, to)
    moves = given_up | ({} if served is None else {served: PolicyState.ROLLED_BACK})
    return moves | ({} if target == BASE_POLICY else {target: PolicyState.SERVING})


def to_given_up(versions: Versions, numbers: Collection[int]) -> Transitions:
    """Give these versions up for ever. If one of them serves, its nearest usable ancestor serves
    instead, and a trial ends, because the version it was compared with is gone."""
    ends = {PolicyState.CANDIDATE: PolicyState.REJECTED, PolicyState.REJECTED: PolicyState.REJECTED}
    moves = {
        number: ends.get(versions[number].state, PolicyState.ROLLED_BACK) for number in numbers
    }
    served, tried = (
        version_in(versions, PolicyState.SERVING),
        version_in(versions, PolicyState.CANARY),
    )
    if served is None or served not in numbers:
        return moves
    moves |= {} if tried is None else {tried: PolicyState.ROLLED_BACK}
    clean = {
        number: replace(version, is_kept=version.is_kept and number not in numbers)
        for number, version in versions.items()
    }
    target = ancestor(clean, served)
    return moves | ({} if target == BASE_POLICY else {target: PolicyState.SERVING})


def ancestor(versions: Versions, number: int) -> int:
    """The version that a rollback leads to: the nearest ancestor that has served, was never rolled
    back and is kept; else the untrained model."""
    at = versions[number].parent
    while at != BASE_POLICY:
        version = versions[at]
        if version.has_served and version.is_kept and version.state is not PolicyState.ROLLED_BACK:
            return at
        at = version.parent
    return BASE_POLICY


def _destination(versions: Versions, serving: int, to: int | None) -> int:
    if to is None:
        return ancestor(versions, serving)
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
        raise RefusedError(
            f"version {to} ({version.state.value}) has never served; promote it instead"
        )
    return to


def _expect(versions: Versions, number: int, state: PolicyState, what: str) -> None:
    version = _usable(versions, number)
    if version.state is not state:
        raise RefusedError(
            f"version {number} cannot {what}: it is {version.state.value}, not a {state.value}"
        )


def _usable(versions: Versions, number: int) -> VersionFacts:
    version = versions.get(number)
    if version is None:
        raise RefusedError(f"there is no version {number}")
    if not version.is_kept:
        raise RefusedError(
            f"the weights of version {number} are no longer"
            f" kept{f': {version.note}' if version.note else ''}"
        )
    return version


_NEEDED = (PolicyState.CANDIDATE, PolicyState.CANARY, PolicyState.SERVING)
_ENDS = {
    "tried": PolicyState.CANARY,
    "rejected": PolicyState.REJECTED,
    "promoted": PolicyState.SERVING,
    "rolled back": PolicyState.ROLLED_BACK,
}


class SqlPolicies:
    """Versions in a database, whose constraints allow at most one serving version and one on trial.
    Blocks: call it from a thread. All methods raise StoreError; a refused change raises
    RefusedError with the reason, and changes nothing."""

    def __init__(self, database: Database, clock: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._clock = clock

    def versions(self, limit: int = 100) -> list[PolicyVersion]:
        """Newest first."""
        query = select(policies).order_by(policies.c.number.desc()).limit(limit)
        return self._database.read("listing policy versions", query, version_of)

    def version(self, number: int) -> PolicyVersion | None:
        """One version, or None; the untrained model (0) has no record."""
        return self._database.read_one(
            "reading a policy version",
            select(policies).where(policies.c.number == number),
            version_of,
        )

    def serving(self, canary_share: float = 0.0) -> Serving:
        """Which weights answer now."""
        wanted = [PolicyState.SERVING.value, PolicyState.CANARY.value]
        rows = self._database.rows(
            "reading which version serves", select(policies).where(policies.c.state.in_(wanted))
        )
        found = {version.state: version for version in map(version_of, rows)}
        served, tried = found.get(PolicyState.SERVING), found.get(PolicyState.CANARY)
        return Serving(
            version=BASE_POLICY if served is None else served.number,
            canary=None if tried is None else tried.number,
            canary_share=0.0 if tried is None else canary_share,
            absorbed={version.number: version.absorbed for version in found.values()},
        )

    def before(self, number: int) -> int:
        """The version that a rollback from this one leads to."""
        with self._database.reading("looking for the version before") as connection:
            return ancestor(facts_of_versions(connection.execute(select(policies))), number)

    def since(self, number: int) -> StateSince | None:
        """When the state of a version last changed."""
        columns = policies.c.state_us, policies.c.state_turn, policies.c.served_us
        query = select(*columns).where(policies.c.number == number)
        return self._database.read_one(
            "reading since when a version is what it is",
            query,
            lambda row: StateSince(
                unpack_instant(row.state_us), row.state_turn, row.served_us == row.state_us
            ),
        )

    def outcomes_by_version(
        self, versions: Collection[int], since: int, before: int | None = None, limit: int = 10_000
    ) -> list[VersionOutcome]:
        """The known outcomes of these versions' main turns, oldest first: the newest `limit` behind
        the cursor `since`, up to the cursor `before`."""
        query = (
            select(turns.c.session, turns.c.policy_version, turns.c.skills, stands.c.outcome)
            .join(stands, stands.c.turn == turns.c.seq)
            .where(
                turns.c.seq > since,
                turns.c.policy_version.in_(versions),
                turns.c.kind == TurnKind.MAIN.value,
            )
            .order_by(turns.c.seq.desc())
            .limit(limit)
        )
        rows = self._database.rows(
            "reading what versions did",
            query if before is None else query.where(turns.c.seq <= before),
        )
        return [
            VersionOutcome(
                SessionId(row.session),
                row.policy_version,
                Outcome(row.outcome),
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
            if parent != BASE_POLICY and version_row(connection, parent) is None:
                raise RefusedError(
                    f"publishing a version: there is no version {parent} to descend from"
                )
            now = pack_instant(self._clock())
            generation = (
                _newest_generation(connection)
                if batch is None
                else _mark_done(connection, batch, parent, now)
            )
            number = (
                connection.execute(select(func.max(policies.c.number))).scalar() or BASE_POLICY
            ) + 1
            born: dict[str, Value] = {
                "number": number,
                "parent": parent,
                "batch": batch,
                "base": base,
            }
            born |= {"state": PolicyState.CANDIDATE.value, "generation": generation, "steps": steps}
            born |= {"made_us": now, "state_us": now, "state_turn": last_turn(connection)}
            connection.execute(
                insert(policies),
                born | weights_row(weights) | knowledge_row(report, note, absorbed),
            )
            announce(connection, now, number, "published", note, {number: PolicyState.CANDIDATE})
            return version_of(
                connection.execute(select(policies).where(policies.c.number == number)).one()
            )

    def canary(self, number: int, report: GateReport | None = None, reason: str = "") -> None:
        """Try a candidate on a share of the sessions; `report` is the gate's."""
        self._move("tried", lambda known: to_canary(known, number), reason, report)

    def reject(self, number: int, report: GateReport | None = None, reason: str = "") -> None:
        """Reject a candidate; `report` says why."""
        self._move("rejected", lambda known: to_rejected(known, number), reason, report)

    def promote(self, number: int, reason: str = "", report: GateReport | None = None) -> None:
        """Let this version serve all sessions; the one before it is retired. `report` is the
        gate's, if there is a new one.
        """
        self._move("promoted", lambda known: to_serving(known, number), reason, report)

    def rollback(self, to: int | None = None, reason: str = "") -> None:
        """Give up the version on trial, or else the serving one: its nearest ancestor that has
        served, or the untrained model, serves again. With `to`, that earlier version serves."""
        self._move("rolled back", lambda known: roll_back(known, to), reason)

    def absorb(self, number: int, skills: Iterable[SkillName]) -> None:
        """Record the skills that this version has absorbed."""
        names = sorted(skills)
        with self._writing("noting absorbed skills") as connection:
            if version_row(connection, number) is None:
                raise RefusedError(f"noting absorbed skills: there is no version {number}")
            connection.execute(
                update(policies).where(policies.c.number == number), {"absorbed": pack_names(names)}
            )
            announce(
                connection, pack_instant(self._clock()), number, "absorbed", ", ".join(names), {}
            )

    def spare(self, keep: int) -> list[PolicyVersion]:
        """Versions whose weights can be deleted: not among the newest `keep`, not in use, and not
        the target of a rollback.
        """
        rows = self._database.rows(
            "looking for spare weights", select(policies).order_by(policies.c.number.desc())
        )
        known = facts_of_versions(rows)
        served = version_in(known, PolicyState.SERVING)
        needed = {BASE_POLICY if served is None else ancestor(known, served)}
        needed |= {number for number, version in known.items() if version.state in _NEEDED}
        kept = [row for row in rows if row.gone_us is None]
        return [version_of(row) for row in kept[keep:] if row.number not in needed]

    def thrown_away(self) -> list[Weights]:
        """The locations of weights that are no longer kept."""
        return self._database.read(
            "listing weights that are not kept",
            select(policies).where(policies.c.gone_us.is_not(None)),
            lambda row: version_of(row).weights,
        )

    def let_go(self, number: int) -> None:
        """Record that the weights of this version were deleted."""
        with self._writing("letting go of weights") as connection:
            row = version_row(connection, number)
            if row is None:
                raise RefusedError(f"letting go of weights: there is no version {number}")
            if PolicyState(row.state) in _NEEDED:
                raise RefusedError(
                    f"letting go of weights: version {number} is {row.state} and needs them"
                )
            gone = update(policies).where(policies.c.number == number, policies.c.gone_us.is_(None))
            connection.execute(gone, {"gone_us": pack_instant(self._clock())})

    def _move(
        self,
        action: str,
        rule: Callable[[Versions], Transitions],
        reason: str,
        report: GateReport | None = None,
    ) -> None:
        with self._writing("moving a version") as connection:
            changes = rule(facts_of_versions(connection.execute(select(policies))))
            now, last = pack_instant(self._clock()), last_turn(connection)
            concerned = _concerned(changes, action)
            # Versions that leave a state are updated first: the database refuses two versions in
            # one.
            for number, state in sorted(changes.items(), key=lambda change: change[1] in _NEEDED):
                moved = update(policies).where(policies.c.number == number)
                moved = moved.values(state=state.value, state_us=now, state_turn=last)
                if state is PolicyState.SERVING:
                    moved = moved.values(served_us=func.coalesce(policies.c.served_us, now))
                if report is not None and number == concerned:
                    moved = moved.values(report=pack_document(report))
                if reason and state is _ENDS[action]:
                    moved = moved.values(note=reason)
                connection.execute(moved)
            announce(connection, now, concerned, action, reason, changes)

    @contextmanager
    def _writing(self, doing: str) -> Iterator[Connection]:
        """Lock the versions against other programs."""
        with self._database.writing(doing) as connection:
            lock_table(connection, policies)
            yield connection


def give_up(connection: Connection, numbers: Collection[int], reason: str, now_us: int) -> None:
    """Give versions up for ever; their weights are to be deleted. Versions that were given up
    before do not change.
    """
    rows = connection.execute(select(policies)).all()
    fresh = [row.number for row in rows if row.number in numbers and row.gone_us is None]
    if not fresh:
        return
    changes = to_given_up(facts_of_versions(rows), fresh)
    moved = {"state_us": now_us, "state_turn": last_turn(connection)}
    # Versions that leave a state are updated first: the database refuses two versions in one.
    for number, state in sorted(changes.items(), key=lambda change: change[1] in _NEEDED):
        gone = {"gone_us": now_us, "note": reason} if number in fresh else {}
        connection.execute(
            update(policies).where(policies.c.number == number),
            {"state": state.value, **moved, **gone},
        )
    announce(connection, now_us, max(fresh), "rolled back", reason, changes)


def _concerned(changes: Transitions, action: str) -> int:
    """The version that an action is about."""
    return next(number for number, state in changes.items() if state is _ENDS[action])


def _newest_generation(connection: Connection) -> int:
    newest: int = connection.execute(select(func.max(generations.c.number))).scalar_one()
    return newest


def _mark_done(connection: Connection, number: int, parent: int, now: int) -> int:
    """Mark a batch as done; return its generation. Raises RefusedError if it may not train a
    version.
    """
    doing = "publishing a version"
    batch = opened(connection, number, doing)
    if batch.policy_version != parent:
        raise RefusedError(
            f"{doing}: batch {number} began from version {batch.policy_version}, not from {parent}"
        )
    gone = connection.execute(
        select(forgotten_batches.c.turn).where(forgotten_batches.c.batch == number).limit(1)
    ).scalar()
    if gone is not None:
        raise RefusedError(f"{doing}: turn {gone} of batch {number} was forgotten")
    fed = (
        select(roles.c.turn)
        .join(batch_turns, batch_turns.c.turn == roles.c.turn)
        .where(batch_turns.c.batch == number)
    )
    if (
        connection.execute(fed.where(roles.c.kind == RoleKind.SUPPORT.value).limit(1)).first()
        is not None
    ):
        raise RefusedError(f"{doing}: a turn of batch {number} fed a skill")
    ended = {"state": BatchState.DONE.value, "ended_us": now}
    connection.execute(update(batches).where(batches.c.seq == number), ended)
    generation: int = batch.generation
    return generation


def version_of(row: ResultRow) -> PolicyVersion:
    return PolicyVersion(
        number=row.number,
        parent=row.parent,
        state=PolicyState(row.state),
        weights=Weights(row.backend, row.adapter, row.training),
        base=row.base,
        generation=row.generation,
        made=unpack_instant(row.made_us),
        batch=row.batch,
        steps=row.steps,
        report=None if row.report is None else unpack_document(row.report, GateReport),
        note=row.note,
        absorbed=frozenset(SkillName(name) for name in unpack_names(row.absorbed)),
        has_served=row.served_us is not None,
        is_kept=row.gone_us is None,
    )


def weights_row(weights: Weights) -> dict[str, Value]:
    """The columns with the location of weights."""
    training = weights.training
    return {
        "backend": weights.backend,
        "adapter": weights.adapter,
        "training": training,
    }


def knowledge_row(
    report: GateReport | None, note: str, absorbed: Iterable[SkillName]
) -> dict[str, Value]:
    """The columns with report, note and absorbed skills of a version."""
    packed = None if report is None else pack_document(report)
    return {"report": packed, "note": note, "absorbed": pack_names(sorted(absorbed))}


def version_row(connection: Connection, number: int) -> ResultRow | None:
    return connection.execute(select(policies).where(policies.c.number == number)).one_or_none()


def facts_of_versions(rows: Iterable[ResultRow]) -> Versions:
    """The facts of these versions for the transition functions."""
    return {
        row.number: VersionFacts(
            row.number,
            row.parent,
            PolicyState(row.state),
            row.served_us is not None,
            row.gone_us is None,
            row.note,
        )
        for row in rows
    }


def last_turn(connection: Connection) -> int:
    """The newest turn's cursor."""
    found: int = connection.execute(select(func.coalesce(func.max(turns.c.seq), 0))).scalar_one()
    return found


def announce(
    connection: Connection, at_us: int, number: int, action: str, reason: str, changes: Transitions
) -> None:
    """Append an event about a version, with the versions that serve and are on trial now."""
    known = facts_of_versions(connection.execute(select(policies)))
    data = {
        "action": action,
        "version": number,
        "serving": version_in(known, PolicyState.SERVING) or 0,
        "canary": version_in(known, PolicyState.CANARY),
        "moves": {str(moved): state.value for moved, state in changes.items()},
        "reason": reason,
    }
    connection.execute(insert(events), {"at_us": at_us, "kind": "policy", "data": pack_json(data)})

"""Verdicts (all are stored; one of each turn is current), the role of a turn and whether it has
trained, and what failures lead to: attempts of an evolver, and candidates."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Select, exists, func, insert, select, update

from metaclaw.domain.candidate import (
    Candidate,
    CandidateId,
    Change,
    Proposal,
    Standing,
)
from metaclaw.domain.front_matter import SkillRecord, record_of
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.policy import PolicyState
from metaclaw.domain.training import BatchState, RoleKind, TurnRole, TurnStanding
from metaclaw.domain.turn import TurnKind
from metaclaw.domain.verdict import (
    OpenFailure,
    Outcome,
    Signal,
    Source,
    Verdict,
    Votes,
    outranks,
)
from metaclaw.store.database import Queries, writes
from metaclaw.store.dialects import RefusedError
from metaclaw.store.generations import forgotten_turn, last_revert
from metaclaw.store.rows import (
    ResultRow,
    pack_document,
    record,
    scope_of,
    unpack_document,
)
from metaclaw.store.schema import (
    IS_LESSON,
    attempts,
    batch_turns,
    batches,
    candidates,
    current_turns,
    events,
    lessons,
    policies,
    roles,
    stands,
    turns,
    verdicts,
)

VERDICT = [
    verdicts.c.outcome.label("verdict_outcome"),  # a turn has an outcome of its own
    *(verdicts.c[name] for name in ("source", "p_fail", "signals", "votes", "fault", "comment")),
]
"""The columns that `verdict_of` reads."""

OPEN_FOR: Final = timedelta(days=30)
"""How long after its verdict a failure may still teach."""
_CURRENT = select(*VERDICT).join(stands, stands.c.verdict == verdicts.c.seq)
_NO_SIGNALS = pack_document(())

_GOLD = (Source.USER, Source.CHECK)
_GRADED = (Source.DETECTOR, Source.JUDGE)


class SqlVerdicts(Queries):
    """Verdicts in a database. Blocks: call it from a thread; raises StoreError."""

    @writes
    def record_verdict(self, verdict: Verdict) -> bool:
        """Store a verdict; True if it is the current one now. Raises RefusedError if there is no
        such turn.
        """
        with self._database.writing("recording a verdict") as connection:
            # The row is locked, to serialise verdicts on one turn.
            query = select(*turns.c["seq", "generation", "kind"]).where(turns.c.id == verdict.turn)
            turn = connection.execute(query.with_for_update(key_share=True)).one_or_none()
            if turn is None:
                raise RefusedError(f"recording a verdict: there is no turn {verdict.turn}")
            row = connection.execute(_CURRENT.where(stands.c.turn == turn.seq)).one_or_none()
            standing = None if row is None else verdict_of(verdict.turn, row)
            shown: dict[str, object] = {"outcome": verdict.outcome, "fault": verdict.fault}
            values = shown | {
                "turn": turn.seq,
                "at_us": self._clock(),
                "source": verdict.source,
                "p_fail": verdict.p_fail,
                "signals": pack_document(verdict.signals),
                "votes": None if verdict.votes is None else pack_document(verdict.votes),
                "comment": verdict.comment,
            }
            new = insert(verdicts).returning(verdicts.c.seq)
            shown["verdict"] = connection.execute(new, values).scalar_one()
            if not outranks(verdict, standing):
                return False
            if standing is None:
                fixed = {"turn": turn.seq, "generation": turn.generation, "kind": turn.kind}
                connection.execute(insert(stands), shown | fixed)
            else:
                connection.execute(update(stands).where(stands.c.turn == turn.seq), shown)
            return True

    def verdict_of(self, turn: TurnId) -> Verdict | None:
        """The current verdict on a turn, or None."""
        query = _CURRENT.join(turns, turns.c.seq == stands.c.turn).where(turns.c.id == turn)
        return self._database.read_one(
            "reading a verdict", query, lambda row: verdict_of(turn, row)
        )

    def verdicts_of(self, turn: TurnId) -> list[Verdict]:
        """All verdicts on a turn, oldest first."""
        query = select(*VERDICT).join(turns).where(turns.c.id == turn).order_by(verdicts.c.seq)
        return self._database.read("reading verdicts", query, lambda row: verdict_of(turn, row))

    def open_failures(self, generation: int, limit: int = 200) -> list[OpenFailure]:
        """The newest main turns up to this generation whose current verdict teaches and that have
        no role; oldest first. Verdicts older than `OPEN_FOR` and turns before the last revert are
        left out. The caller must check whether a skill came into force since
        (`learn.open_failures`): the database does not know to whom skills apply."""
        query = (
            select(
                *turns.c["id", "user_id", "workspace_id", "channel"],
                stands.c.generation,
                verdicts.c.at_us,
            )
            .select_from(turns)
            .join(stands)
            .join(verdicts, verdicts.c.seq == stands.c.verdict)
            .where(
                IS_LESSON,
                stands.c.generation.between(last_revert(), generation),
                verdicts.c.at_us >= self._clock() - OPEN_FOR,
                ~exists().where(roles.c.turn == stands.c.turn),
            )
            .order_by(stands.c.turn.desc())
            .limit(limit)
        )
        return self._database.read(
            "looking for failures",
            query,
            lambda row: OpenFailure(row.id, scope_of(row), row.generation, row.at_us),
        )[::-1]

    def recent(self, outcome: Outcome, limit: int = 200) -> list[TurnId]:
        """Main turns with this current outcome, newest first."""
        query = (
            select(turns.c.id)
            .join(stands)
            .where(stands.c.outcome == outcome, stands.c.kind == TurnKind.MAIN)
            .order_by(stands.c.turn.desc())
            .limit(limit)
        )
        return self._database.records("looking for turns by outcome", query, TurnId)

    def graded(self, limit: int = 5_000) -> list[tuple[Verdict, Outcome]]:
        """Verdicts of detectors and judges on turns that a person or a check has decided, with that
        outcome; newest first.
        """
        last = verdicts.alias("last")
        query = (
            select(turns.c.id, last.c.outcome.label("truth"), *VERDICT)
            .select_from(verdicts)
            .join(stands, stands.c.turn == verdicts.c.turn)
            .join(last, last.c.seq == stands.c.verdict)
            .join(turns)
            .where(
                last.c.source.in_(_GOLD),
                last.c.outcome != Outcome.UNKNOWN,
                verdicts.c.source.in_(_GRADED),
            )
            .order_by(verdicts.c.seq.desc())
            .limit(limit)
        )
        return self._database.read(
            "reading graded verdicts",
            query,
            lambda row: (verdict_of(row.id, row), row.truth),
        )


def verdict_of(turn: TurnId, row: ResultRow) -> Verdict:
    """Convert a row with the columns of `VERDICT`."""
    return record(
        Verdict,
        row,
        turn=turn,
        outcome=row.verdict_outcome,
        signals=(
            () if row.signals == _NO_SIGNALS else unpack_document(row.signals, tuple[Signal, ...])
        ),
        votes=None if row.votes is None else unpack_document(row.votes, Votes),
    )


# A subquery, because SQLite evaluates a joined view for every turn.
IS_CURRENT = exists().where(current_turns.c.turn == turns.c.seq)
"""Whether the speaker of a turn still has the rules and skills they had when it was made."""
_GIVEN_UP = (PolicyState.REJECTED, PolicyState.ROLLED_BACK)
HAS_TAUGHT = (
    select(batch_turns.c.turn)
    .select_from(batch_turns)
    .join(batches)
    .outerjoin(policies)
    .where(
        batch_turns.c.turn == turns.c.seq,
        batches.c.state != BatchState.DROPPED,
        policies.c.state.is_(None) | policies.c.state.not_in(_GIVEN_UP),
    )
    .exists()
)
"""Whether a turn is in a running batch, or trained a version that was neither rejected nor rolled
back.
"""
WAS_TRIED = exists().where(batch_turns.c.turn == turns.c.seq)
"""Whether a turn was in a batch, whatever its result."""
_STANDING = [
    *VERDICT,
    roles.c.kind.label("role"),
    roles.c.generation.label("role_generation"),
    HAS_TAUGHT.label("taught"),
    IS_CURRENT.label("current"),
]


def select_with_standing(*columns: ColumnElement[Any]) -> Select[*tuple[Any, ...]]:
    """A query of turns for these columns and those that `standing_of` reads."""
    return (
        select(*columns, *_STANDING)
        .select_from(turns)
        .outerjoin(stands, stands.c.turn == turns.c.seq)
        .outerjoin(verdicts, verdicts.c.seq == stands.c.verdict)
        .outerjoin(roles, roles.c.turn == turns.c.seq)
    )


def standing_of(turn: TurnId, row: ResultRow, *, held_out: bool = False) -> TurnStanding:
    """Convert a row of `select_with_standing`. The store does not know whether a turn is held out
    for the gate.
    """
    return TurnStanding(
        verdict=None if row.verdict_outcome is None else verdict_of(turn, row),
        role=None if row.role is None else TurnRole(row.role, row.role_generation),
        taught=bool(row.taught),
        held_out=held_out,
        is_aged=not row.current,
    )


_NEWEST_FIRST = (candidates.c.made_us.desc(), candidates.c.id.desc())


@dataclass(frozen=True, slots=True)
class SkillAttempt:
    """Turns from which the evolver was to write a skill together; `kind` names what they have in
    common.
    """

    number: int
    kind: str
    generation: int
    turns: tuple[TurnId, ...]


class SqlCandidates(Queries):
    """Attempts to learn and their candidates. Blocks: call it from a thread; raises StoreError."""

    @writes
    def begin_attempt(
        self, kind: str, generation: int, turns: Sequence[TurnId], may_share: bool = False
    ) -> int:
        """Make these turns support of this generation for ever, and return the number of a new
        attempt. Raises RefusedError, and changes nothing, if one of them has a role already or is
        not in the ledger, or if all were made before the last revert. With `may_share`, turns that
        an attempt of another kind made support stay that attempt's."""
        doing = "beginning an attempt"
        with self._database.writing(doing) as connection:
            numbers, newest = turn_numbers(connection, turns, doing)
            if newest < (connection.scalar(select(last_revert())) or 0):
                raise RefusedError(f"{doing}: skills were reverted after these turns were made")
            if may_share:
                others = (
                    select(roles.c.turn)
                    .join(attempts, attempts.c.seq == roles.c.attempt)
                    .where(roles.c.turn.in_(numbers), attempts.c.kind != kind)
                )
                taken = set(connection.scalars(others))
                numbers = [turn for turn in numbers if turn not in taken]
            attempt = {"at_us": self._clock(), "kind": kind, "generation": generation}
            number: int = connection.execute(
                insert(attempts).returning(attempts.c.seq), attempt
            ).scalar_one()
            support = {"kind": RoleKind.SUPPORT, "generation": generation, "attempt": number}
            if numbers:
                connection.execute(insert(roles), [{"turn": turn, **support} for turn in numbers])
            return number

    @writes
    def end_attempt(self, number: int) -> None:
        """Mark an attempt as ended: it makes no further candidate."""
        with self._database.writing("ending an attempt") as connection:
            ended = update(attempts).where(attempts.c.seq == number, attempts.c.ended_us.is_(None))
            connection.execute(ended, {"ended_us": self._clock()})

    def interrupted(self) -> list[SkillAttempt]:
        """Attempts that have not ended and have no candidate, oldest first; without forgotten
        turns.
        """
        is_taught = exists().where(lessons.c.turn == turns.c.id)
        query = (
            select(*attempts.c["seq", "kind", "generation"], turns.c.id, is_taught)
            .select_from(attempts)
            .join(roles)
            .join(turns)
            .where(attempts.c.ended_us.is_(None))
            .order_by(attempts.c.seq, turns.c.seq)
        )
        rows = self._database.rows("looking for interrupted attempts", query)
        found = []
        for attempt, group in groupby(rows, key=lambda row: row[:3]):
            ids, are_taught = zip(*(row[3:] for row in group), strict=True)
            if not any(are_taught):
                number, kind, generation = attempt
                found.append(SkillAttempt(number, kind, generation, ids))
        return found

    @writes
    def save_candidate(self, candidate: Candidate) -> None:
        """Insert a candidate, or update its standing and reason; `events` says what they became.
        Raises RefusedError if a turn that taught it was forgotten."""
        proposal = candidate.proposal
        with self._database.writing("saving a candidate") as connection:
            row: dict[str, object] = {
                "standing": candidate.standing,
                "reason": candidate.reason,
            }
            if gone := forgotten_turn(connection, proposal.support):
                raise RefusedError(
                    f"saving a candidate: turn {gone}, which taught {candidate.id}, was forgotten"
                )
            query = select(candidates).where(candidates.c.id == candidate.id).with_for_update()
            before = connection.execute(query).one_or_none()
            if before is not None:
                changed = pack_document({"candidate": before.id, "skill": before.name, **row})
                event = {"at_us": self._clock(), "kind": "candidate.changed", "data": changed}
                connection.execute(insert(events), event)
                connection.execute(update(candidates).where(candidates.c.id == before.id), row)
                return
            row |= {
                "id": candidate.id,
                "name": proposal.skill.name,
                "change": proposal.change,
                "proposal": _pack_proposal(proposal),
                "generation": candidate.generation,
                "made_us": candidate.made_at,
            }
            connection.execute(insert(candidates), row)
            taught_by = [{"candidate": candidate.id, "turn": turn} for turn in {*proposal.support}]
            if taught_by:
                connection.execute(insert(lessons), taught_by)

    def candidate(self, candidate: CandidateId) -> Candidate | None:
        query = select(candidates).where(candidates.c.id == candidate)
        return self._database.read_one("reading a candidate", query, _candidate)

    def find(self, prefix: str, limit: int = 2) -> list[CandidateId]:
        """Ids of candidates that begin with `prefix`, in order."""
        return self._database.ids(candidates, prefix, limit, CandidateId)

    def is_reverted(self, generation: int) -> bool:
        """Whether skills were reverted after this generation, so that its evidence is out of
        date.
        """
        last = self._database.read_number("looking for a revert", select(last_revert()))
        return last > generation

    def candidates(
        self, standing: Standing | None = None, limit: int = 100, name: SkillName | None = None
    ) -> list[Candidate]:
        """Candidates of this standing and for a skill of this name, if given; newest first."""
        query = select(candidates).order_by(*_NEWEST_FIRST).limit(limit)
        if standing is not None:
            query = query.where(candidates.c.standing == standing)
        if name is not None:
            query = query.where(candidates.c.name == name)
        return self._database.read("listing candidates", query, _candidate)

    def reasons(self, standing: Standing, limit: int) -> list[str]:
        """The reasons of the newest candidates of this standing."""
        query = select(candidates.c.reason).where(candidates.c.standing == standing)
        return self._database.records(
            "counting reasons", query.order_by(*_NEWEST_FIRST).limit(limit), str
        )

    def count(self, standing: Standing) -> int:
        """The number of candidates of this standing."""
        query = select(func.count()).where(candidates.c.standing == standing)
        return self._database.read_number("counting candidates", query)


def turn_numbers(
    connection: Connection, wanted: Collection[TurnId], doing: str
) -> tuple[list[int], int]:
    """The numbers of these turns, always in the same order, so that two programs cannot deadlock,
    and the newest of their generations. Raises RefusedError if one is not in the ledger.
    """
    query = select(*turns.c["seq", "generation"]).where(turns.c.id.in_(wanted))
    found = connection.execute(query.order_by(turns.c.seq)).all()
    if not found or len(found) < len(set(wanted)):
        raise RefusedError(f"{doing}: of {len(set(wanted))} turns {len(found)} are in the ledger")
    return [row.seq for row in found], max(row.generation for row in found)


@dataclass(frozen=True, slots=True)
class _StoredProposal:
    """A proposal with the stored form of its skill."""

    skill: SkillRecord
    change: Change
    replaces: tuple[SkillName, ...]
    support: tuple[TurnId, ...]
    kind: str
    written_by: str
    is_instruction: bool = False
    script: str = ""
    said_by: str = ""

    def read(self) -> Proposal:
        said = {name: getattr(self, name) for name in Proposal.__slots__}
        return Proposal(**said | {"skill": self.skill.read()})


def _pack_proposal(proposal: Proposal) -> str:
    said = {name: getattr(proposal, name) for name in Proposal.__slots__}
    return pack_document(said | {"skill": record_of(proposal.skill)})


def _candidate(row: ResultRow) -> Candidate:
    proposal = unpack_document(row.proposal, _StoredProposal).read()
    return record(Candidate, row, proposal=proposal, made_at=row.made_us)

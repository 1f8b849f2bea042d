"""Verdicts (all are stored; one of each turn is current), the role of a turn and whether it has
trained, and what failures lead to: attempts of an evolver, and candidates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Final, TypeVar

from sqlalchemy import ColumnElement, Connection, Row, Select, exists, func, insert, select, update

from metaclaw.domain.candidate import (
    Candidate,
    CandidateId,
    Certificate,
    Change,
    Proposal,
    Standing,
)
from metaclaw.domain.front_matter import SkillRecord, record_of
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.policy import PolicyState
from metaclaw.domain.training import BatchState, RoleKind, TurnRole, TurnStanding
from metaclaw.domain.turn import Scope, TurnKind
from metaclaw.domain.verdict import (
    Fault,
    OpenFailure,
    Outcome,
    Signal,
    Source,
    Verdict,
    Votes,
    outranks,
)
from metaclaw.store.database import Database, utc_now
from metaclaw.store.dialects import RefusedError
from metaclaw.store.generations import last_revert
from metaclaw.store.rows import (
    ResultRow,
    Value,
    pack_document,
    pack_instant,
    unpack_document,
    unpack_instant,
)
from metaclaw.store.schema import (
    IS_LESSON,
    attempts,
    batch_turns,
    batches,
    candidates,
    current_turns,
    events,
    forgotten,
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
_NO_SIGNALS = pack_document(())

_GOLD = (Source.USER.value, Source.CHECK.value)
_GRADED = (Source.DETECTOR.value, Source.JUDGE.value)


class SqlVerdicts:
    """`ports.VerdictStore` on a database."""

    def __init__(self, database: Database, clock: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._clock = clock

    def record_verdict(self, verdict: Verdict) -> bool:
        """Store a verdict; True if it is the current one now. Raises RefusedError if there is no
        such turn.
        """
        with self._database.writing("recording a verdict") as connection:
            turn = _locked_turn(connection, verdict.turn)
            standing = standing_verdict(connection, turn.seq, verdict.turn)
            row = _row(verdict, turn.seq, self._clock())
            number = connection.execute(
                insert(verdicts).returning(verdicts.c.seq), row
            ).scalar_one()
            if not outranks(verdict, standing):
                return False
            shown = {"verdict": number, "outcome": row["outcome"], "fault": row["fault"]}
            if standing is None:
                fixed = {"turn": turn.seq, "generation": turn.generation, "kind": turn.kind}
                connection.execute(insert(stands), shown | fixed)
            else:
                connection.execute(update(stands).where(stands.c.turn == turn.seq), shown)
            return True

    def verdict_of(self, turn: TurnId) -> Verdict | None:
        """The current verdict on a turn, or None."""
        query = _standing().join(turns, turns.c.seq == stands.c.turn).where(turns.c.id == turn)
        return self._database.read_one(
            "reading a verdict", query, lambda row: verdict_of(turn, row)
        )

    def verdicts_of(self, turn: TurnId) -> list[Verdict]:
        """All verdicts on a turn, oldest first."""
        query = (
            select(*VERDICT).join(turns, turns.c.seq == verdicts.c.turn).where(turns.c.id == turn)
        )
        return self._database.read(
            "reading verdicts", query.order_by(verdicts.c.seq), lambda row: verdict_of(turn, row)
        )

    def open_failures(self, generation: int, limit: int = 200) -> list[OpenFailure]:
        """The newest main turns up to this generation whose current verdict teaches and that have
        no role; oldest first. Verdicts older than `OPEN_FOR` and turns before the last revert are
        left out. The caller must check whether a skill came into force since
        (`learn.open_failures`): the database does not know to whom skills apply."""
        since = pack_instant(self._clock() - OPEN_FOR)
        has_role = select(roles.c.turn).where(roles.c.turn == stands.c.turn).exists()
        is_of_now = stands.c.generation.between(last_revert(), generation)
        query = (
            select(
                turns.c.id,
                turns.c.user_id,
                turns.c.workspace_id,
                stands.c.generation,
                verdicts.c.at_us,
            )
            .join(stands, stands.c.turn == turns.c.seq)
            .join(verdicts, verdicts.c.seq == stands.c.verdict)
            .where(IS_LESSON, is_of_now, verdicts.c.at_us >= since, ~has_role)
            .order_by(stands.c.turn.desc())
            .limit(limit)
        )
        rows = self._database.rows("looking for failures", query)
        return [
            OpenFailure(
                TurnId(row.id),
                Scope(row.user_id, row.workspace_id),
                row.generation,
                unpack_instant(row.at_us),
            )
            for row in reversed(rows)
        ]

    def recent(self, outcome: Outcome, limit: int = 200) -> list[TurnId]:
        """Main turns with this current outcome, newest first."""
        wanted = select(turns.c.id).join(stands, stands.c.turn == turns.c.seq)
        mine = wanted.where(stands.c.outcome == outcome.value, stands.c.kind == TurnKind.MAIN.value)
        query = mine.order_by(stands.c.turn.desc()).limit(limit)
        return self._database.read(
            "looking for turns by outcome", query, lambda row: TurnId(row.id)
        )

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
            .join(turns, turns.c.seq == verdicts.c.turn)
            .where(
                last.c.source.in_(_GOLD),
                last.c.outcome != Outcome.UNKNOWN.value,
                verdicts.c.source.in_(_GRADED),
            )
            .order_by(verdicts.c.seq.desc())
            .limit(limit)
        )
        return self._database.read(
            "reading graded verdicts",
            query,
            lambda row: (verdict_of(TurnId(row.id), row), Outcome(row.truth)),
        )


def standing_verdict(connection: Connection, seq: int, turn: TurnId) -> Verdict | None:
    """The current verdict on a turn, or None."""
    row = connection.execute(_standing().where(stands.c.turn == seq)).one_or_none()
    return None if row is None else verdict_of(turn, row)


def verdict_of(turn: TurnId, row: ResultRow) -> Verdict:
    """Convert a row with the columns of `VERDICT`."""
    return Verdict(
        turn=turn,
        outcome=Outcome(row.verdict_outcome),
        source=Source(row.source),
        p_fail=row.p_fail,
        signals=(
            () if row.signals == _NO_SIGNALS else unpack_document(row.signals, tuple[Signal, ...])
        ),
        votes=None if row.votes is None else unpack_document(row.votes, Votes),
        fault=None if row.fault is None else Fault(row.fault),
        comment=row.comment,
    )


def _standing() -> Select[*tuple[object, ...]]:
    return select(*VERDICT).join(stands, stands.c.verdict == verdicts.c.seq)


def _locked_turn(connection: Connection, turn: TurnId) -> Row[int, int, str]:
    """The facts of the turn that are stored with its verdict. The row is locked, to serialise
    verdicts on one turn.
    """
    query = select(turns.c.seq, turns.c.generation, turns.c.kind).where(turns.c.id == turn)
    found = connection.execute(query.with_for_update(key_share=True)).one_or_none()
    if found is None:
        raise RefusedError(f"recording a verdict: there is no turn {turn}")
    return found


def _row(verdict: Verdict, seq: int, at: datetime) -> dict[str, Value]:
    return {
        "turn": seq,
        "at_us": pack_instant(at),
        "outcome": verdict.outcome.value,
        "source": verdict.source.value,
        "p_fail": verdict.p_fail,
        "signals": pack_document(verdict.signals),
        "votes": None if verdict.votes is None else pack_document(verdict.votes),
        "fault": None if verdict.fault is None else verdict.fault.value,
        "comment": verdict.comment,
    }


# A subquery, because SQLite evaluates a joined view for every turn.
IS_CURRENT = exists().where(current_turns.c.turn == turns.c.seq)
"""Whether the speaker of a turn still has the rules and skills they had when it was made."""
_GIVEN_UP = (PolicyState.REJECTED.value, PolicyState.ROLLED_BACK.value)
HAS_TAUGHT = (
    select(batch_turns.c.turn)
    .join(batches, batches.c.seq == batch_turns.c.batch)
    .outerjoin(policies, policies.c.batch == batches.c.seq)
    .where(
        batch_turns.c.turn == turns.c.seq,
        batches.c.state != BatchState.DROPPED.value,
        policies.c.state.is_(None) | policies.c.state.not_in(_GIVEN_UP),
    )
    .exists()
)
"""Whether a turn is in a running batch, or trained a version that was neither rejected nor rolled
back.
"""
WAS_TRIED = exists().where(batch_turns.c.turn == turns.c.seq)
"""Whether a turn was in a batch, whatever its result."""
STANDING = [
    *VERDICT,
    roles.c.kind.label("role"),
    roles.c.generation.label("role_generation"),
    HAS_TAUGHT.label("taught"),
    IS_CURRENT.label("current"),
]
"""The columns that `standing_of` reads; a query that selects them needs `with_standing`."""

S = TypeVar("S", bound=Select[*tuple[object, ...]])


def with_standing(query: S, seq: ColumnElement[int]) -> S:
    """Join the tables of `STANDING` to a query, for the turns with these numbers."""
    return (
        query.outerjoin(stands, stands.c.turn == seq)
        .outerjoin(verdicts, verdicts.c.seq == stands.c.verdict)
        .outerjoin(roles, roles.c.turn == seq)
    )


def standing_of(turn: TurnId, row: ResultRow, *, held_out: bool = False) -> TurnStanding:
    """Convert a row with the columns of `STANDING`. The store does not know whether a turn is held
    out for the gate.
    """
    return TurnStanding(
        verdict=None if row.verdict_outcome is None else verdict_of(turn, row),
        role=role_of(row),
        taught=bool(row.taught),
        held_out=held_out,
        is_aged=not row.current,
    )


def role_of(row: ResultRow) -> TurnRole | None:
    """The role in a row with the columns of `STANDING`."""
    return None if row.role is None else TurnRole(RoleKind(row.role), row.role_generation)


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


class SqlCandidates:
    """`ports.CandidateStore` on a database."""

    def __init__(self, database: Database, clock: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._clock = clock

    def begin_attempt(self, kind: str, generation: int, turns: Sequence[TurnId]) -> int:
        """Make these turns support of this generation for ever, and return the number of a new
        attempt. Raises RefusedError, and changes nothing, if one of them has a role already or is
        not in the ledger, or if all were made before the last revert."""
        with self._database.writing("beginning an attempt") as connection:
            numbers = _numbers(connection, turns)
            if not _has_newer(connection, numbers):
                raise RefusedError(
                    "beginning an attempt: skills were reverted after these turns were made"
                )
            attempt = {
                "at_us": pack_instant(self._clock()),
                "kind": kind,
                "generation": generation,
            }
            number: int = connection.execute(
                insert(attempts).returning(attempts.c.seq), attempt
            ).scalar_one()
            support = {"kind": RoleKind.SUPPORT.value, "generation": generation, "attempt": number}
            # Always in the same order, so that two programs cannot deadlock.
            connection.execute(
                insert(roles), [{"turn": turn, **support} for turn in sorted(numbers)]
            )
            return number

    def end_attempt(self, number: int) -> None:
        """Mark an attempt as ended: it makes no further candidate."""
        with self._database.writing("ending an attempt") as connection:
            ended = update(attempts).where(attempts.c.seq == number, attempts.c.ended_us.is_(None))
            connection.execute(ended, {"ended_us": pack_instant(self._clock())})

    def interrupted(self) -> list[SkillAttempt]:
        """Attempts that have not ended and have no candidate, oldest first; without forgotten
        turns.
        """
        is_taught = select(lessons.c.turn).where(lessons.c.turn == turns.c.id).exists()
        query = (
            select(
                attempts.c.seq,
                attempts.c.kind,
                attempts.c.generation,
                turns.c.id,
                is_taught.label("is_taught"),
            )
            .join(roles, roles.c.attempt == attempts.c.seq)
            .join(turns, turns.c.seq == roles.c.turn)
            .where(attempts.c.ended_us.is_(None))
            .order_by(attempts.c.seq, turns.c.seq)
        )
        rows = self._database.rows("looking for interrupted attempts", query)
        return [
            SkillAttempt(
                number,
                group[0].kind,
                group[0].generation,
                tuple(TurnId(row.id) for row in group),
            )
            for number, group in (
                (number, list(found)) for number, found in groupby(rows, key=lambda row: row.seq)
            )
            if not any(row.is_taught for row in group)
        ]

    def save_candidate(self, candidate: Candidate) -> None:
        """Insert a candidate, or update its standing, reason and certificate; the former values are
        kept in `events`. Raises RefusedError if a turn that taught it was forgotten."""
        with self._database.writing("saving a candidate") as connection:
            _refuse_forgotten(connection, candidate)
            query = select(candidates).where(candidates.c.id == candidate.id).with_for_update()
            before = connection.execute(query).one_or_none()
            if before is None:
                _insert(connection, candidate)
                return
            event = {
                "at_us": pack_instant(self._clock()),
                "kind": "candidate.changed",
                "data": _previous_state(before),
            }
            connection.execute(insert(events), event)
            connection.execute(
                update(candidates).where(candidates.c.id == before.id), _progress(candidate)
            )

    def candidate(self, candidate: CandidateId) -> Candidate | None:
        query = select(candidates).where(candidates.c.id == candidate)
        return self._database.read_one("reading a candidate", query, _candidate)

    def is_reverted(self, generation: int) -> bool:
        """Whether skills were reverted after this generation, so that its evidence is out of
        date.
        """
        return (
            self._database.read_number("looking for a revert", select(last_revert())) > generation
        )

    def of_skill(self, name: SkillName) -> list[Candidate]:
        """Every candidate for a skill of this name, newest first."""
        query = select(candidates).where(candidates.c.name == name).order_by(*_NEWEST_FIRST)
        return self._database.read("reading how a skill came about", query, _candidate)

    def reasons(self, standing: Standing, limit: int) -> list[str]:
        """The reasons of the newest candidates of this standing."""
        query = (
            select(candidates.c.reason)
            .where(candidates.c.standing == standing.value)
            .order_by(*_NEWEST_FIRST)
            .limit(limit)
        )
        return self._database.read("counting reasons", query, lambda row: row.reason)

    def candidates(self, standing: Standing | None = None, limit: int = 100) -> list[Candidate]:
        """Newest first."""
        query = select(candidates).order_by(*_NEWEST_FIRST).limit(limit)
        if standing is not None:
            query = query.where(candidates.c.standing == standing.value)
        return self._database.read("listing candidates", query, _candidate)

    def count(self, standing: Standing) -> int:
        """The number of candidates of this standing."""
        query = (
            select(func.count())
            .select_from(candidates)
            .where(candidates.c.standing == standing.value)
        )
        return self._database.read_number("counting candidates", query)


def _numbers(connection: Connection, wanted: Sequence[TurnId]) -> list[int]:
    found = connection.execute(select(turns.c.seq).where(turns.c.id.in_(wanted)))
    numbers = list(found.scalars())
    if not numbers or len(numbers) < len(set(wanted)):
        raise RefusedError(
            f"beginning an attempt: of {len(set(wanted))} turns {len(numbers)} are in the ledger"
        )
    return numbers


def _has_newer(connection: Connection, numbers: Sequence[int]) -> bool:
    """Whether one of these turns was made since the last revert."""
    is_newer = turns.c.seq.in_(numbers) & (turns.c.generation >= last_revert())
    return connection.execute(select(turns.c.seq).where(is_newer).limit(1)).first() is not None


def _refuse_forgotten(connection: Connection, candidate: Candidate) -> None:
    taught_by = candidate.proposal.support
    gone = connection.execute(
        select(forgotten.c.turn).where(forgotten.c.turn.in_(taught_by)).limit(1)
    ).scalar()
    if gone is not None:
        raise RefusedError(
            f"saving a candidate: turn {gone}, which taught {candidate.id}, was forgotten"
        )


def _insert(connection: Connection, candidate: Candidate) -> None:
    taught_by = list(dict.fromkeys(candidate.proposal.support))
    fixed: dict[str, Value] = {
        "id": candidate.id,
        "name": candidate.proposal.skill.name,
        "change": candidate.proposal.change.value,
        "proposal": _pack_proposal(candidate.proposal),
        "generation": candidate.generation,
        "made_us": pack_instant(candidate.made_at),
    }
    connection.execute(insert(candidates), fixed | _progress(candidate))
    connection.execute(
        insert(lessons), [{"candidate": fixed["id"], "turn": turn} for turn in taught_by]
    )


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

    def read(self) -> Proposal:
        return Proposal(
            self.skill.read(),
            self.change,
            self.replaces,
            self.support,
            self.kind,
            self.written_by,
            self.is_instruction,
        )


def _pack_proposal(proposal: Proposal) -> str:
    said = {name: getattr(proposal, name) for name in Proposal.__slots__}
    return pack_document(said | {"skill": record_of(proposal.skill)})


def _progress(candidate: Candidate) -> dict[str, Value]:
    certificate = candidate.certificate
    return {
        "standing": candidate.standing.value,
        "reason": candidate.reason,
        "certificate": None if certificate is None else pack_document(certificate),
    }


def _previous_state(row: ResultRow) -> str:
    past = _candidate(row)
    words = {
        "candidate": past.id,
        "skill": past.proposal.skill.name,
        "standing": past.standing.value,
        "reason": past.reason,
    }
    return pack_document(words | {"certificate": past.certificate})


def _candidate(row: ResultRow) -> Candidate:
    return Candidate(
        id=CandidateId(row.id),
        proposal=unpack_document(row.proposal, _StoredProposal).read(),
        standing=Standing(row.standing),
        reason=row.reason,
        generation=row.generation,
        made_at=unpack_instant(row.made_us),
        certificate=(
            None if row.certificate is None else unpack_document(row.certificate, Certificate)
        ),
    )

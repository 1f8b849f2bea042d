"""Candidates and the attempts they come from: what was shown to an evolver, what it proposed, and what became of that."""

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import groupby

from sqlalchemy import Connection, func, insert, select, update

from metaclaw.domain.candidate import Candidate, CandidateId, Certificate, Proposal, Standing
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.training import RoleKind
from metaclaw.store.database import Database, RefusedError, utc_now
from metaclaw.store.generations import last_revert
from metaclaw.store.records import SkillAttempt
from metaclaw.store.rows import (
    ResultRow,
    Value,
    pack_document,
    pack_instant,
    pack_text,
    unpack_document,
    unpack_instant,
    unpack_text,
)
from metaclaw.store.schema import attempts, candidates, events, forgotten, lessons, roles
from metaclaw.store.schema import turns as turns_table


class SqlCandidates:
    """`ports.CandidateStore` on a database."""

    def __init__(self, database: Database, clock: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._clock = clock

    def begin_attempt(self, kind: str, generation: int, turns: Sequence[TurnId]) -> int:
        """Make these turns support of this generation, for ever, and return the number of a new attempt.

        Raises RefusedError, and changes nothing, if one of them has a role already or is not in the ledger, or if all were made
        before the last revert.
        """
        with self._database.writing("beginning an attempt") as connection:
            numbers = _numbers(connection, turns)
            is_newer = turns_table.c.seq.in_(numbers) & (turns_table.c.generation >= last_revert())
            if connection.execute(select(turns_table.c.seq).where(is_newer).limit(1)).first() is None:
                raise RefusedError("beginning an attempt: skills were reverted after these turns were made")
            attempt = {"at_us": pack_instant(self._clock()), "kind": pack_text(kind), "generation": generation}
            number: int = connection.execute(insert(attempts).returning(attempts.c.seq), attempt).scalar_one()
            support = {"kind": RoleKind.SUPPORT.value, "generation": generation, "attempt": number}
            # Always in the same order, so that two programs cannot deadlock.
            connection.execute(insert(roles), [{"turn": turn, **support} for turn in sorted(numbers)])
            return number

    def end_attempt(self, number: int) -> None:
        """End an attempt: no candidate will come of it any more."""
        with self._database.writing("ending an attempt") as connection:
            ended = update(attempts).where(attempts.c.seq == number, attempts.c.ended_us.is_(None))
            connection.execute(ended, {"ended_us": pack_instant(self._clock())})

    def interrupted(self) -> list[SkillAttempt]:
        """Attempts that have not ended and of which there is no candidate, oldest first; without turns that were forgotten."""
        is_taught = select(lessons.c.turn).where(lessons.c.turn == turns_table.c.id).exists()
        query = (
            select(attempts.c.seq, attempts.c.kind, attempts.c.generation, turns_table.c.id, is_taught.label("is_taught"))
            .join(roles, roles.c.attempt == attempts.c.seq)
            .join(turns_table, turns_table.c.seq == roles.c.turn)
            .where(attempts.c.ended_us.is_(None))
            .order_by(attempts.c.seq, turns_table.c.seq)
        )
        with self._database.reading("looking for interrupted attempts") as connection:
            rows = connection.execute(query).all()
        return [
            SkillAttempt(
                number, unpack_text(group[0].kind), group[0].generation, tuple(TurnId(unpack_text(row.id)) for row in group)
            )
            for number, group in ((number, list(found)) for number, found in groupby(rows, key=lambda row: row.seq))
            if not any(row.is_taught for row in group)
        ]

    def save_candidate(self, candidate: Candidate) -> None:
        """Insert it, or bring its standing, reason and certificate up to date; what it was before is kept in `events`.

        Raises RefusedError if a turn that taught it was to be forgotten.
        """
        with self._database.writing("saving a candidate") as connection:
            _refuse_forgotten(connection, candidate)
            query = select(candidates).where(candidates.c.id == pack_text(candidate.id)).with_for_update()
            before = connection.execute(query).one_or_none()
            if before is None:
                _insert(connection, candidate)
                return
            event = {"at_us": pack_instant(self._clock()), "kind": "candidate.changed", "data": _past(before)}
            connection.execute(insert(events), event)
            connection.execute(update(candidates).where(candidates.c.id == before.id), _progress(candidate))

    def candidate(self, candidate: CandidateId) -> Candidate | None:
        """One candidate."""
        with self._database.reading("reading a candidate") as connection:
            row = connection.execute(select(candidates).where(candidates.c.id == pack_text(candidate))).one_or_none()
            return None if row is None else _candidate(row)

    def is_reverted(self, generation: int) -> bool:
        """Whether skills were reverted after this generation, so that evidence made with it is out of date."""
        with self._database.reading("looking for a revert") as connection:
            return bool(connection.execute(select(last_revert())).scalar_one() > generation)

    def of_skill(self, name: SkillName) -> list[Candidate]:
        """Every candidate for a skill of this name, newest first."""
        query = select(candidates).where(candidates.c.name == pack_text(name))
        with self._database.reading("reading how a skill came about") as connection:
            found = connection.execute(query.order_by(candidates.c.made_us.desc(), candidates.c.id.desc()))
            return [_candidate(row) for row in found]

    def reasons(self, standing: Standing, limit: int) -> list[str]:
        """The reasons of the newest candidates of this standing."""
        query = select(candidates.c.reason).where(candidates.c.standing == standing.value)
        with self._database.reading("counting reasons") as connection:
            found = connection.execute(query.order_by(candidates.c.made_us.desc(), candidates.c.id.desc()).limit(limit))
            return [unpack_text(reason) for reason in found.scalars()]

    def candidates(self, standing: Standing | None = None, limit: int = 100) -> list[Candidate]:
        """Newest first."""
        query = select(candidates).order_by(candidates.c.made_us.desc(), candidates.c.id.desc()).limit(limit)
        if standing is not None:
            query = query.where(candidates.c.standing == standing.value)
        with self._database.reading("listing candidates") as connection:
            return [_candidate(row) for row in connection.execute(query)]

    def count(self, standing: Standing) -> int:
        """How many candidates are of this standing."""
        query = select(func.count()).select_from(candidates).where(candidates.c.standing == standing.value)
        with self._database.reading("counting candidates") as connection:
            return connection.execute(query).scalar_one()


def _numbers(connection: Connection, wanted: Sequence[TurnId]) -> list[int]:
    found = connection.execute(select(turns_table.c.seq).where(turns_table.c.id.in_([pack_text(turn) for turn in wanted])))
    numbers = list(found.scalars())
    if not numbers or len(numbers) < len(set(wanted)):
        raise RefusedError(f"beginning an attempt: of {len(set(wanted))} turns {len(numbers)} are in the ledger")
    return numbers


def _refuse_forgotten(connection: Connection, candidate: Candidate) -> None:
    taught_by = [pack_text(turn) for turn in candidate.proposal.support]
    gone = connection.execute(select(forgotten.c.turn).where(forgotten.c.turn.in_(taught_by)).limit(1)).scalar()
    if gone is not None:
        raise RefusedError(f"saving a candidate: turn {unpack_text(gone)}, which taught {candidate.id}, was forgotten")


def _insert(connection: Connection, candidate: Candidate) -> None:
    taught_by = [pack_text(turn) for turn in dict.fromkeys(candidate.proposal.support)]
    fixed: dict[str, Value] = {
        "id": pack_text(candidate.id),
        "name": pack_text(candidate.proposal.skill.name),
        "change": candidate.proposal.change.value,
        "proposal": pack_document(candidate.proposal),
        "generation": candidate.generation,
        "made_us": pack_instant(candidate.made_at),
    }
    connection.execute(insert(candidates), fixed | _progress(candidate))
    connection.execute(insert(lessons), [{"candidate": fixed["id"], "turn": turn} for turn in taught_by])


def _progress(candidate: Candidate) -> dict[str, Value]:
    certificate = candidate.certificate
    return {
        "standing": candidate.standing.value,
        "reason": pack_text(candidate.reason),
        "certificate": None if certificate is None else pack_document(certificate),
    }


def _past(row: ResultRow) -> str:
    past = _candidate(row)
    words = {"candidate": past.id, "skill": past.proposal.skill.name, "standing": past.standing.value, "reason": past.reason}
    return pack_document(words | {"certificate": past.certificate})


def _candidate(row: ResultRow) -> Candidate:
    return Candidate(
        id=CandidateId(unpack_text(row.id)),
        proposal=unpack_document(row.proposal, Proposal),
        standing=Standing(row.standing),
        reason=unpack_text(row.reason),
        generation=row.generation,
        made_at=unpack_instant(row.made_us),
        certificate=None if row.certificate is None else unpack_document(row.certificate, Certificate),
    )

"""Descent: what was learned from turns that a person wanted forgotten."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from sqlalchemy import Column, ColumnElement, Connection, Row, Select, and_, or_, select, true

from metaclaw.domain.candidate import CandidateId, Change, Proposal, Standing
from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.skill import Authorship
from metaclaw.store.documents import unpack_document
from metaclaw.store.learning import batch_turns, candidates, forgotten, forgotten_batches, lessons, policies
from metaclaw.store.packing import pack_names, pack_text, unpack_text
from metaclaw.store.schema import generations, memberships, placements, skill_texts, turns

_T = TypeVar("_T")
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Descent:
    """What forgotten turns have led to.

    `skills` are in force; `edited` are in force too, but a person has rewritten them since. `names` are the names of all skills
    that came of the turns, and `texts` the addresses of their texts. `carriers` are other turns whose prompts held such a text, and
    `sessions` those they belong to. `batches` had a forgotten turn or a carrier in them; `versions` were trained on these batches
    or go on from one that was.
    """

    candidates: tuple[CandidateId, ...] = ()
    skills: tuple[SkillName, ...] = ()
    edited: tuple[SkillName, ...] = ()
    names: frozenset[str] = frozenset()
    texts: frozenset[bytes] = frozenset()
    carriers: tuple[int, ...] = ()
    sessions: tuple[SessionId, ...] = ()
    batches: tuple[int, ...] = ()
    versions: tuple[int, ...] = ()


def descendants(connection: Connection, session: SessionId | None) -> Descent:
    """What the forgotten turns of a session, or of all sessions, have led to."""
    is_mine = true() if session is None else forgotten.c.session == pack_text(session)
    taught = select(lessons.c.candidate).join(forgotten, forgotten.c.turn == lessons.c.turn).where(is_mine)
    ids, accepted = _lineage(connection, set(connection.execute(taught).scalars()))
    rows = _tainted(connection, set(ids), accepted)
    carriers = _carriers(connection, rows)
    query = (
        select(forgotten_batches.c.batch).join(forgotten, forgotten.c.turn == forgotten_batches.c.turn).where(is_mine).distinct()
    )
    batches = set(connection.execute(query).scalars()) | _of_carriers(connection, batch_turns.c.batch, batch_turns.c.turn, carriers)
    live = [row for row in rows if row.until is None]
    return Descent(
        candidates=tuple(CandidateId(unpack_text(one)) for one in ids),
        skills=_names(row for row in live if not _is_by_person(row)),
        edited=_names(row for row in live if _is_by_person(row)),
        names=frozenset(row.name for row in rows if not _is_by_person(row)),
        texts=frozenset(row.skill for row in rows if not _is_by_person(row)),
        carriers=carriers,
        sessions=tuple(
            sorted(SessionId(unpack_text(one)) for one in _of_carriers(connection, turns.c.session, turns.c.seq, carriers))
        ),
        batches=tuple(sorted(batches)),
        versions=_trained_on(connection, batches),
    )


def _lineage(connection: Connection, taught: set[str]) -> tuple[list[str], set[str]]:
    """These candidates and those made out of accepted ones of them, oldest first, and the names of the accepted."""
    if not taught:
        return [], set()
    columns = candidates.c.id, candidates.c.name, candidates.c.change, candidates.c.standing, candidates.c.proposal
    is_related = candidates.c.id.in_(taught) | (candidates.c.change != Change.NEW.value)
    ids: list[str] = []
    names: set[str] = set()
    for row in connection.execute(select(*columns).where(is_related).order_by(candidates.c.made_us, candidates.c.id)):
        if row.id in taught or not names.isdisjoint(unpack_document(row.proposal, Proposal).replaces):
            ids.append(row.id)
            names |= {unpack_text(row.name)} if row.standing == Standing.ACCEPTED.value else set()
    return ids, names


def _tainted(connection: Connection, ids: set[str], accepted: set[str]) -> list[Row[*tuple[object, ...]]]:
    """Memberships of skills that these candidates put in force, and of what became of those skills: another state, a person's
    edit, the same text put back by a revert."""
    if not ids:
        return []
    put = select(memberships.c.name).join(generations, generations.c.number == memberships.c.since)
    named = set(connection.execute(put.where(generations.c.candidate.in_(ids)).distinct()).scalars())
    named |= {pack_text(name) for name in accepted}
    query = (
        select(memberships, skill_texts.c.author, generations.c.candidate)
        .join(skill_texts, skill_texts.c.hash == memberships.c.skill)
        .join(generations, generations.c.number == memberships.c.since)
        .where(memberships.c.name.in_(named))
        .order_by(memberships.c.name, memberships.c.since)
    )
    rows = connection.execute(query).all()
    known = {row.name for row in rows if row.candidate is not None}
    found: list[Row[*tuple[object, ...]]] = []
    texts: set[bytes] = set()
    while True:
        before = len(texts)
        found = [row for _, mine in groupby(rows, key=lambda row: row.name) for row in _inherited(list(mine), ids, known, texts)]
        texts |= {row.skill for row in found}
        if len(texts) == before:
            return found


def _inherited(
    rows: list[Row[*tuple[object, ...]]], ids: set[str], known: set[str], texts: set[bytes]
) -> Iterable[Row[*tuple[object, ...]]]:
    """Of one name's memberships, oldest first, those that descend from the candidates. Generations from before candidates were
    noted do not say which put a skill in force: there every text that no person wrote counts."""
    until, is_tainted = None, False
    for row in rows:
        goes_on = is_tainted and row.since == until and row.candidate is None
        is_unnoted = row.name not in known and not _is_by_person(row)
        is_tainted = row.candidate in ids or row.skill in texts or goes_on or is_unnoted
        until = row.until
        if is_tainted:
            yield row


def _is_by_person(row: Row[*tuple[object, ...]]) -> bool:
    return bool(row.author == Authorship.PERSON.value)


def _names(rows: Iterable[Row[*tuple[object, ...]]]) -> tuple[SkillName, ...]:
    return tuple(sorted({SkillName(unpack_text(row.name)) for row in rows}))


def _carriers(connection: Connection, rows: Iterable[Row[*tuple[object, ...]]]) -> tuple[int, ...]:
    """Turns whose prompts held or listed one of these skills while it was in force."""
    held: list[ColumnElement[bool]] = []
    for row in rows:
        # A name is a slug, so nothing in it is a wildcard.
        named = f"%{pack_names([unpack_text(row.name)])[1:-1]}%"
        is_named = turns.c.skills.like(named) | turns.c.placements.in_(_blocks_from(placements.c.skills.like(named)))
        is_then = turns.c.generation >= row.since if row.until is None else turns.c.generation.between(row.since, row.until - 1)
        held.append(and_(is_named, is_then))
    found: set[int] = set()
    for at in range(0, len(held), 50):
        found.update(connection.execute(select(turns.c.seq).where(or_(*held[at : at + 50]))).scalars())
    return tuple(sorted(found))


def _blocks_from(is_first: ColumnElement[bool]) -> Select[bytes]:
    """These placements and all that go on from one of them."""
    found = select(placements.c.hash).where(is_first).cte(recursive=True)
    return select(found.union(select(placements.c.hash).join(found, placements.c.previous == found.c.hash)).c.hash)


def _of_carriers(connection: Connection, wanted: Column[_T], turn: Column[int], carriers: tuple[int, ...]) -> set[_T]:
    found: set[_T] = set()
    for at in range(0, len(carriers), _AT_ONCE):
        found.update(connection.execute(select(wanted).where(turn.in_(carriers[at : at + _AT_ONCE])).distinct()).scalars())
    return found


def _trained_on(connection: Connection, batches: set[int]) -> tuple[int, ...]:
    """The versions that these batches taught, and those whose weights went on from theirs."""
    found: set[int] = set()
    columns = policies.c.number, policies.c.parent, policies.c.batch
    for number, parent, batch in connection.execute(select(*columns).order_by(policies.c.number)) if batches else ():
        if batch in batches or parent in found:
            found.add(number)
    return tuple(sorted(found))

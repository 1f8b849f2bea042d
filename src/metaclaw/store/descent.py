"""Descent: what was learned from turns that a person wanted forgotten."""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, delete, select

from metaclaw.domain.candidate import CandidateId, Change, Proposal, Standing
from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.skill import Authorship
from metaclaw.store.documents import unpack_document
from metaclaw.store.learning import candidates, forgotten, lessons, policies
from metaclaw.store.packing import pack_text, unpack_text
from metaclaw.store.schema import memberships, skill_texts


@dataclass(frozen=True, slots=True)
class Descent:
    """Candidates in the order they were made, learned skills in force by name, batches and policy versions by number."""

    candidates: tuple[CandidateId, ...]
    skills: tuple[SkillName, ...]
    batches: tuple[int, ...]
    versions: tuple[int, ...]


def descendants(connection: Connection, session: SessionId) -> Descent:
    """What the forgotten turns of a session have led to."""
    mine = forgotten.c.session == pack_text(session)
    batches = set(connection.execute(select(forgotten.c.batch).where(mine, forgotten.c.batch.is_not(None)).distinct()).scalars())
    taught = select(lessons.c.candidate).join(forgotten, forgotten.c.turn == lessons.c.turn).where(mine)
    ids, names = _lineage(connection, set(connection.execute(taught).scalars()))
    return Descent(ids, _live(connection, names), tuple(sorted(batches)), _taught_by(connection, batches))


def drop_unaccepted(connection: Connection, taught: Iterable[CandidateId]) -> None:
    """Candidates that never came into force go with what taught them."""
    ids = [pack_text(candidate) for candidate in taught]
    is_accepted = candidates.c.standing == Standing.ACCEPTED.value
    connection.execute(delete(candidates).where(candidates.c.id.in_(ids), ~is_accepted))


def _lineage(connection: Connection, taught: set[str]) -> tuple[tuple[CandidateId, ...], set[str]]:
    """These candidates, those that were made out of accepted ones of them, and the names of the skills they made."""
    if not taught:
        return (), set()
    columns = candidates.c.id, candidates.c.name, candidates.c.change, candidates.c.standing, candidates.c.proposal
    is_related = candidates.c.id.in_(taught) | (candidates.c.change != Change.NEW.value)
    ids: list[CandidateId] = []
    names: set[str] = set()
    for row in connection.execute(select(*columns).where(is_related).order_by(candidates.c.made_us, candidates.c.id)):
        if row.id in taught or not names.isdisjoint(unpack_document(row.proposal, Proposal).replaces):
            ids.append(CandidateId(unpack_text(row.id)))
            names |= {unpack_text(row.name)} if row.standing == Standing.ACCEPTED.value else set()
    return tuple(ids), names


def _live(connection: Connection, names: Iterable[str]) -> tuple[SkillName, ...]:
    """Of these names the skills in force now, but for those that a person has written since."""
    query = (
        select(memberships.c.name)
        .join(skill_texts, skill_texts.c.hash == memberships.c.skill)
        .where(memberships.c.until.is_(None), memberships.c.name.in_([pack_text(name) for name in names]))
        .where(skill_texts.c.author != Authorship.PERSON.value)
    )
    return tuple(sorted(SkillName(unpack_text(name)) for name in connection.execute(query).scalars()))


def _taught_by(connection: Connection, batches: set[int]) -> tuple[int, ...]:
    """The versions that these batches taught, and those whose weights went on from theirs."""
    found: set[int] = set()
    columns = policies.c.number, policies.c.parent, policies.c.batch
    for number, parent, batch in connection.execute(select(*columns).order_by(policies.c.number)) if batches else ():
        if batch in batches or parent in found:
            found.add(number)
    return tuple(sorted(found))

"""Find data that was derived from forgotten turns, and erase it from the tables."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Select,
    Table,
    and_,
    delete,
    exists,
    func,
    or_,
    select,
    true,
    update,
)

from metaclaw.domain.candidate import CandidateId, Change, Standing
from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.skill import Authorship
from metaclaw.store.deduplication import remove_bodies
from metaclaw.store.generations import select_members
from metaclaw.store.rows import (
    ResultRow,
    pack_names,
    unpack_document,
    unpack_json,
    unpack_names,
)
from metaclaw.store.schema import (
    attempts,
    audit,
    batch_turns,
    candidates,
    events,
    forgotten,
    forgotten_batches,
    generations,
    lessons,
    memberships,
    payloads,
    placements,
    policies,
    roles,
    rule_counts,
    skill_texts,
    snippets,
    splices,
    tokens,
    translations,
    turns,
    uses,
)
from metaclaw.store.usage import present

_T = TypeVar("_T")
_CARRIERS_AT_ONCE: Final = 500
_CONDITIONS_AT_ONCE: Final = 50
NAMELESS: Final = "forgotten"
"""Replaces the name of a forgotten skill in records that are kept."""

_PROMPTS_AT_ONCE: Final = 200
_CHECKSUM: Final = re.compile(rb'<house_rules by="metaclaw" length="\d+" sum="([0-9a-f]{12})">')


@dataclass(frozen=True, slots=True)
class DerivedData:
    """The data derived from forgotten turns.

    `skills` are in force; `edited` are in force too, but a person has rewritten them since. `names`
    are the names of all derived skills, and `texts` the ids of their texts. `carriers` are other
    turns whose prompts contained such a text, and `sessions` are their sessions. `batches`
    contained a forgotten turn or a carrier; `versions` were trained on these batches or descend
    from one that was."""

    candidates: tuple[CandidateId, ...] = ()
    skills: tuple[SkillName, ...] = ()
    edited: tuple[SkillName, ...] = ()
    names: frozenset[str] = frozenset()
    texts: frozenset[bytes] = frozenset()
    carriers: tuple[int, ...] = ()
    sessions: tuple[SessionId, ...] = ()
    batches: tuple[int, ...] = ()
    versions: tuple[int, ...] = ()


def find_derived_data(connection: Connection, session: SessionId | None) -> DerivedData:
    """Find the data derived from the forgotten turns of a session, or of all sessions."""
    is_mine = true() if session is None else forgotten.c.session == session
    gone = select(forgotten.c.turn).where(is_mine)
    taught = select(lessons.c.candidate).where(lessons.c.turn.in_(gone))
    ids, accepted = _lineage(connection, set(connection.scalars(taught)))
    rows = _tainted(connection, {*ids, *_unsaved(connection, gone)}, accepted)
    carriers = _carriers(connection, rows)
    taught_on = select(forgotten_batches.c.batch).where(forgotten_batches.c.turn.in_(gone))
    batches = set(connection.scalars(taught_on))
    batches |= _of_carriers(connection, batch_turns.c.batch, batch_turns.c.turn, carriers)
    theirs = [row for row in rows if not _is_by_person(row)]
    sessions = _of_carriers(connection, turns.c.session, turns.c.seq, carriers)
    return DerivedData(
        candidates=tuple(map(CandidateId, ids)),
        skills=_names(row for row in theirs if row.until is None),
        edited=_names(row for row in rows if row.until is None and _is_by_person(row)),
        names=frozenset(row.name for row in theirs),
        texts=frozenset(row.skill for row in theirs),
        carriers=carriers,
        sessions=tuple(map(SessionId, sorted(sessions))),
        batches=tuple(sorted(batches)),
        versions=_trained_on(connection, batches),
    )


def find_scope(connection: Connection, scope: str) -> DerivedData:
    """The texts of a scope that are no longer in force, and the candidates for it."""
    query = select_members(*memberships.c["since", "until", "skill"]).where(
        skill_texts.c.scope == scope, memberships.c.until.is_not(None)
    )
    rows = connection.execute(query).all()
    proposed = {
        row.id: row.name
        for row in connection.execute(select(candidates))
        if (proposal := unpack_document(row.proposal, dict))["skill"].get("scope") == scope
        # What they proposed for others stays if an owner has put it in force.
        or (f"user:{proposal.get('said_by')}" == scope and row.standing is not Standing.ACCEPTED)
    }
    return DerivedData(
        candidates=tuple(map(CandidateId, sorted(proposed))),
        names=frozenset((*(row.name for row in rows), *proposed.values())),
        texts=frozenset(row.skill for row in rows),
        carriers=_carriers(connection, rows),
    )


def _lineage(connection: Connection, taught: set[str]) -> tuple[list[str], set[str]]:
    """These candidates and those made from accepted ones among them, oldest first; and the names of
    the accepted ones.
    """
    if not taught:
        return [], set()
    is_related = candidates.c.id.in_(taught) | (candidates.c.change != Change.NEW)
    ids: list[str] = []
    names: set[str] = set()
    query = select(candidates).where(is_related).order_by(*candidates.c["made_us", "id"])
    for row in connection.execute(query):
        replaced = unpack_document(row.proposal, dict)["replaces"]
        if row.id in taught or not names.isdisjoint(replaced):
            ids.append(row.id)
            names |= {row.name} if row.standing is Standing.ACCEPTED else set()
    return ids, names


def _unsaved(connection: Connection, gone: Select[str]) -> set[str]:
    """Candidates that were not saved although their rule is in force, because the program was
    killed in between. The rule names its turn."""
    is_saved = exists().where(candidates.c.id == generations.c.candidate)
    query = select_members(generations.c.candidate).where(
        generations.c.candidate.is_not(None), ~is_saved
    )
    sources = {
        str(unpack_json(row.extra).get("source")): str(row.candidate)
        for row in connection.execute(query)
    }
    unwanted = gone.where(forgotten.c.turn.in_(sources))
    return {sources[turn] for turn in connection.scalars(unwanted)}


def _tainted(connection: Connection, ids: set[str], accepted: set[str]) -> list[ResultRow]:
    """Memberships of skills that these candidates put in force, and of later forms of them: another
    state, a person's edit, the same text after a revert."""
    if not ids:
        return []
    put = select_members().where(generations.c.candidate.in_(ids))
    named = {row.name for row in connection.execute(put)} | accepted
    query = (
        select_members(*memberships.c["since", "until", "skill"], generations.c.candidate)
        .where(memberships.c.name.in_(named))
        .order_by(*memberships.c["name", "since"])
    )
    rows = connection.execute(query).all()
    known = {row.name for row in rows if row.candidate is not None}
    found: list[ResultRow] = []
    texts: set[bytes] = set()
    while True:
        before = len(texts)
        found = [
            row
            for _, mine in groupby(rows, key=lambda row: row.name)
            for row in _inherited(list(mine), ids, known, texts)
        ]
        texts |= {row.skill for row in found}
        if len(texts) == before:
            return found


def _inherited(
    rows: list[ResultRow], ids: set[str], known: set[str], texts: set[bytes]
) -> Iterable[ResultRow]:
    """The memberships of one name, oldest first, that descend from the candidates. Old generations
    do not record which candidate put a skill in force: there every text that no person wrote
    counts."""
    until, is_tainted = None, False
    for row in rows:
        goes_on = is_tainted and row.since == until and row.candidate is None
        is_unnoted = row.name not in known and not _is_by_person(row)
        is_tainted = row.candidate in ids or row.skill in texts or goes_on or is_unnoted
        until = row.until
        if is_tainted:
            yield row


def _is_by_person(row: ResultRow) -> bool:
    return bool(row.author == Authorship.PERSON)


def _names(rows: Iterable[ResultRow]) -> tuple[SkillName, ...]:
    return tuple(sorted({SkillName(row.name) for row in rows}))


def _carriers(connection: Connection, rows: Iterable[ResultRow]) -> tuple[int, ...]:
    """Turns whose prompts contained or listed one of these skills while it was in force."""
    held: list[ColumnElement[bool]] = []
    for row in rows:
        # A name is a slug, so nothing in it is a wildcard.
        named = f"%{pack_names([row.name])[1:-1]}%"
        is_named = turns.c.skills.like(named) | turns.c.placements.in_(
            _blocks_from(placements.c.skills.like(named))
        )
        is_then = (
            turns.c.generation >= row.since
            if row.until is None
            else turns.c.generation.between(row.since, row.until - 1)
        )
        held.append(and_(is_named, is_then))
    found: set[int] = set()
    for some in _chunks(held, _CONDITIONS_AT_ONCE):
        found.update(connection.scalars(select(turns.c.seq).where(or_(*some))))
    return tuple(sorted(found))


def _chunks(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    return (items[at : at + size] for at in range(0, len(items), size))


def _blocks_from(is_first: ColumnElement[bool]) -> Select[bytes]:
    """These placements and all chains that continue one of them."""
    found = select(placements.c.hash).where(is_first).cte(recursive=True)
    return select(
        found.union(
            select(placements.c.hash).join(found, placements.c.previous == found.c.hash)
        ).c.hash
    )


def _of_carriers(
    connection: Connection, wanted: Column[_T], turn: Column[int], carriers: tuple[int, ...]
) -> set[_T]:
    found: set[_T] = set()
    for some in _chunks(carriers, _CARRIERS_AT_ONCE):
        found.update(connection.scalars(select(wanted).where(turn.in_(some)).distinct()))
    return found


def _trained_on(connection: Connection, batches: set[int]) -> tuple[int, ...]:
    """The versions that these batches trained, and their descendants."""
    found: set[int] = set()
    query = select(*policies.c["number", "parent", "batch"]).order_by(policies.c.number)
    for number, parent, batch in connection.execute(query) if batches else ():
        if batch in batches or parent in found:
            found.add(number)
    return tuple(sorted(found))


def erase(connection: Connection, derived: DerivedData) -> None:
    """Delete candidates, texts of earlier generations, and their traces elsewhere. Their skills
    must be retired.
    """
    names = sorted(derived.names - set(derived.edited))
    for carriers in _chunks(derived.carriers, _PROMPTS_AT_ONCE):
        _clear_prompts(connection, carriers, names)
    is_over = memberships.c.skill.in_(derived.texts) & memberships.c.name.in_(derived.names)
    connection.execute(delete(memberships).where(is_over))
    is_used = exists().where(memberships.c.skill == skill_texts.c.hash)
    connection.execute(delete(skill_texts).where(skill_texts.c.hash.in_(derived.texts), ~is_used))
    ids = derived.candidates
    # A name that another skill has or had may stay.
    shared = present(connection, memberships.c.name, names)
    names = [name for name in names if name not in shared]
    for word in (*ids, *names):
        connection.execute(delete(events).where(_holds(events.c.data, word)))
    connection.execute(delete(audit).where(audit.c.target.in_((*ids, *names))))
    is_mine = candidates.c.id.in_(ids)
    connection.execute(delete(candidates).where(is_mine))
    # An attempt says what its failures have in common; without them it is useless.
    has_turns = exists().where(roles.c.attempt == attempts.c.seq)
    connection.execute(delete(attempts).where(~has_turns))
    connection.execute(delete(uses).where(uses.c.skill.in_(names)))
    connection.execute(delete(rule_counts).where(rule_counts.c.rule.in_(names)))
    for name in names:
        _clear_name(connection, name)


def _clear_prompts(connection: Connection, seqs: Sequence[int], names: Sequence[str]) -> None:
    """Remove skills from the records of other turns' prompts."""
    blocks = _snippets(
        connection, placements, select(turns.c.placements).where(turns.c.seq.in_(seqs))
    )
    placed = blocks | _snippets(
        connection, splices, select(payloads.c.splices).where(payloads.c.turn.in_(seqs))
    )
    # A block contains the names of skills, but not of rules; the spliced text has the checksum of
    # the block.
    marks = [name.encode() for name in names]
    for name in names:
        named = select(placements.c.snippet).where(
            _holds(placements.c.skills, pack_names([name])[1:-1])
        )
        ours = set(connection.scalars(named.where(placements.c.snippet.in_(list(blocks)))))
        marks += [sum_[1] for found in ours if (sum_ := _CHECKSUM.search(blocks[found]))]
    tainted = {found: body for found, body in placed.items() if any(mark in body for mark in marks)}
    for found in tainted:
        connection.execute(update(snippets).where(snippets.c.hash == found), {"body": b""})
    _clear_echoes(connection, seqs, tainted.values())
    remove_bodies(connection, translations, seqs)
    connection.execute(delete(tokens).where(tokens.c.turn.in_(seqs)))
    _rename(connection, turns, turns.c.seq.in_(seqs), names)


def _snippets(connection: Connection, table: Table, lasts: Select[bytes]) -> dict[bytes, bytes]:
    """The texts of these chains of placements or splices, by id."""
    columns = table.c["hash", "previous", "snippet"]
    chain = select(*columns).where(table.c.hash.in_(lasts)).cte("chain", recursive=True)
    chain = chain.union(select(*columns).join(chain, table.c.hash == chain.c.previous))
    query = select(snippets).where(snippets.c.hash.in_(select(chain.c.snippet)))
    return {row.hash: row.body for row in connection.execute(query)}


def _clear_echoes(connection: Connection, seqs: Sequence[int], placed: Iterable[bytes]) -> None:
    """Remove the blocks from answers, because some providers repeat the instructions there."""
    blocks = [variant for body in placed for variant in _spellings(body)]
    spoken = select(*payloads.c["turn", "said", "seen"]).where(payloads.c.turn.in_(seqs))
    for row in connection.execute(spoken).all() if blocks else ():
        said, seen = row.said, row.seen
        for block in blocks:
            said, seen = (
                said.replace(block, b""),
                None if seen is None else seen.replace(block, b""),
            )
        if (said, seen) != (row.said, row.seen):
            connection.execute(
                update(payloads).where(payloads.c.turn == row.turn), {"said": said, "seen": seen}
            )


def _spellings(body: bytes) -> Iterable[bytes]:
    """The forms in which a text may be in JSON."""
    words = body.decode("utf-8", "surrogatepass")
    for ensure_ascii in (False, True):
        yield json.dumps(words, ensure_ascii=ensure_ascii)[1:-1].encode("utf-8", "surrogatepass")
    yield body


def _clear_name(connection: Connection, name: str) -> None:
    """Replace a name in records that are kept for other reasons."""
    for column in (
        generations.c.reason,
        candidates.c.reason,
        *policies.c["note", "report"],
    ):
        connection.execute(
            update(column.table)
            .where(_holds(column, name))
            .values({column: func.replace(column, name, NAMELESS)})
        )
    quoted, other = pack_names([name])[1:-1], pack_names([NAMELESS])[1:-1]
    for column in (candidates.c.proposal, skill_texts.c.extra, policies.c.absorbed):
        connection.execute(
            update(column.table)
            .where(_holds(column, quoted))
            .values({column: func.replace(column, quoted, other)})
        )
    _rename(connection, placements, _holds(placements.c.skills, quoted), [name])


def _rename(
    connection: Connection, table: Table, where: ColumnElement[bool], names: Sequence[str]
) -> None:
    """Replace names in a table's lists of skills."""
    key: Column[object] = next(iter(table.primary_key))
    for found, skills in connection.execute(select(key, table.c.skills).where(where)).all():
        renamed = [NAMELESS if name in names else name for name in unpack_names(skills)]
        if pack_names(renamed) != skills:
            connection.execute(update(table).where(key == found), {"skills": pack_names(renamed)})


def _holds(column: ColumnElement[str], word: str) -> ColumnElement[bool]:
    return func.replace(column, word, "") != column

"""Erasure: takes what descends from forgotten turns out of the tables, and what was deleted out of SQLite's files."""

import json
import re
import sqlite3
import time
from collections.abc import Iterable, Sequence
from typing import Final

from sqlalchemy import Column, ColumnElement, Connection, Select, Table, delete, func, select, update
from sqlalchemy.engine.interfaces import DBAPICursor

from metaclaw.store import bodies
from metaclaw.store.database import Database
from metaclaw.store.descent import Descent
from metaclaw.store.guard import store_errors
from metaclaw.store.learning import attempts, candidates, draws, policies, roles, rule_counts, unwritten, uses
from metaclaw.store.packing import pack_names, pack_text, unpack_names
from metaclaw.store.schema import (
    events,
    generations,
    memberships,
    payloads,
    placements,
    skill_texts,
    snippets,
    splices,
    tokens,
    translations,
    turns,
)
from metaclaw.store.spending import erase_items

NAMELESS: Final = "forgotten"
"""Stands for the name of a forgotten skill in what is kept."""

_AT_ONCE: Final = 200
_LOCK_MS: Final = 50
_PAUSE_S: Final = 0.1
_CHECKSUM: Final = re.compile(rb'<house_rules by="metaclaw" length="\d+" sum="([0-9a-f]{12})">')
_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def erase(connection: Connection, found: Descent) -> None:
    """Delete candidates, texts of earlier generations, and their traces elsewhere. Their skills must not be in force any more."""
    names = sorted(found.names - {pack_text(name) for name in found.edited})
    for at in range(0, len(found.carriers), _AT_ONCE):
        _clear_prompts(connection, found.carriers[at : at + _AT_ONCE], names)
    is_over = memberships.c.skill.in_(found.texts) & memberships.c.name.in_(found.names)
    connection.execute(delete(memberships).where(is_over))
    is_unused = ~select(memberships.c.name).where(memberships.c.skill == skill_texts.c.hash).exists()
    connection.execute(delete(skill_texts).where(skill_texts.c.hash.in_(found.texts), is_unused))
    ids = [pack_text(one) for one in found.candidates]
    # A name that another skill has, or had, is not the forgotten session's alone.
    shared = set(connection.execute(select(memberships.c.name).where(memberships.c.name.in_(names)).distinct()).scalars())
    names = [name for name in names if name not in shared]
    _delete_events(connection, [*ids, *names])
    proposed = connection.execute(select(candidates.c.name).where(candidates.c.id.in_(ids))).scalars().all()
    connection.execute(delete(candidates).where(candidates.c.id.in_(ids)))
    erase_items(connection, {*names, *proposed})
    # An attempt says what its failures have in common; without them it is of no use.
    connection.execute(delete(attempts).where(~select(roles.c.turn).where(roles.c.attempt == attempts.c.seq).exists()))
    connection.execute(delete(uses).where(uses.c.skill.in_(names)))
    connection.execute(delete(unwritten).where(unwritten.c.name.in_(names)))
    connection.execute(delete(rule_counts).where(rule_counts.c.rule.in_(names)))
    for name in names:
        _clear_name(connection, name)


def _clear_prompts(connection: Connection, seqs: Sequence[int], names: Sequence[str]) -> None:
    """Take skills out of what is known of other turns' prompts."""
    blocks = _snippets(connection, placements, select(turns.c.placements).where(turns.c.seq.in_(seqs)))
    placed = blocks | _snippets(connection, splices, select(payloads.c.splices).where(payloads.c.turn.in_(seqs)))
    # Skills stand in a block under their names; rules do not, but what was spliced in has the checksum of the block.
    marks = [name.encode() for name in names]
    for name in names:
        named = select(placements.c.snippet).where(_holds(placements.c.skills, pack_names([name])[1:-1]))
        ours = set(connection.execute(named.where(placements.c.snippet.in_(list(blocks)))).scalars())
        marks += [sum_[1] for found in ours if (sum_ := _CHECKSUM.search(blocks[found]))]
    tainted = {found: body for found, body in placed.items() if any(mark in body for mark in marks)}
    for found in tainted:
        connection.execute(update(snippets).where(snippets.c.hash == found), {"body": b""})
    _clear_echoes(connection, seqs, tainted.values())
    bodies.remove(connection, translations, seqs)
    connection.execute(delete(tokens).where(tokens.c.turn.in_(seqs)))
    connection.execute(update(draws).where(draws.c.turn.in_(seqs), draws.c.skill.in_(names)), {"skill": NAMELESS})
    _rename(connection, turns, turns.c.seq.in_(seqs), names)


def _snippets(connection: Connection, table: Table, lasts: Select[bytes]) -> dict[bytes, bytes]:
    """The texts of these chains of placements or splices, by address."""
    chain = select(table.c.hash, table.c.previous, table.c.snippet).where(table.c.hash.in_(lasts)).cte("chain", recursive=True)
    chain = chain.union(select(table.c.hash, table.c.previous, table.c.snippet).join(chain, table.c.hash == chain.c.previous))
    query = select(snippets.c.hash, snippets.c.body).where(snippets.c.hash.in_(select(chain.c.snippet)))
    return {row.hash: row.body for row in connection.execute(query)}


def _clear_echoes(connection: Connection, seqs: Sequence[int], placed: Iterable[bytes]) -> None:
    """Some providers repeat the instructions in their answers."""
    blocks = [variant for body in placed for variant in _spellings(body)]
    spoken = select(payloads.c.turn, payloads.c.said, payloads.c.seen).where(payloads.c.turn.in_(seqs))
    for row in connection.execute(spoken).all() if blocks else ():
        said, seen = row.said, row.seen
        for block in blocks:
            said, seen = said.replace(block, b""), None if seen is None else seen.replace(block, b"")
        if (said, seen) != (row.said, row.seen):
            connection.execute(update(payloads).where(payloads.c.turn == row.turn), {"said": said, "seen": seen})


def _spellings(body: bytes) -> Iterable[bytes]:
    """A text as it may stand in JSON."""
    words = body.decode("utf-8", "surrogatepass")
    for ensure_ascii in (False, True):
        yield json.dumps(words, ensure_ascii=ensure_ascii)[1:-1].encode("utf-8", "surrogatepass")
    yield body


def _delete_events(connection: Connection, words: Sequence[str]) -> None:
    for word in words:
        connection.execute(delete(events).where(_holds(events.c.data, word)))


def _clear_name(connection: Connection, name: str) -> None:
    """Take a name out of what is kept for other reasons."""
    for column in (generations.c.reason, candidates.c.reason, candidates.c.certificate, policies.c.note, policies.c.report):
        connection.execute(update(column.table).where(_holds(column, name)).values({column: func.replace(column, name, NAMELESS)}))
    quoted, other = pack_names([name])[1:-1], pack_names([NAMELESS])[1:-1]
    for column in (candidates.c.proposal, skill_texts.c.extra, policies.c.absorbed):
        connection.execute(update(column.table).where(_holds(column, quoted)).values({column: func.replace(column, quoted, other)}))
    _rename(connection, placements, _holds(placements.c.skills, quoted), [name])


def _rename(connection: Connection, table: Table, where: ColumnElement[bool], names: Sequence[str]) -> None:
    """Replace names in a table's lists of skills."""
    key: Column[object] = next(iter(table.primary_key))
    for found, skills in connection.execute(select(key, table.c.skills).where(where)).all():
        renamed = [NAMELESS if pack_text(name) in names else name for name in unpack_names(skills)]
        if pack_names(renamed) != skills:
            connection.execute(update(table).where(key == found), {"skills": pack_names(renamed)})


def _holds(column: ColumnElement[str], word: str) -> ColumnElement[bool]:
    return func.replace(column, word, "") != column


def purge(database: Database, *, compact_below_bytes: int | None, within_s: float) -> bool:
    """Overwrite what was deleted: in SQLite's main file, by rebuilding it, and in its log, by emptying it.

    False if that was not possible in time because others read, or because the file is not below the limit: rebuilding it keeps
    everybody else from writing. On PostgreSQL nothing is done: its server removes dead rows by itself.
    """
    path = database.path
    if path is None or database.kind != "sqlite":
        return True
    may_compact = compact_below_bytes is None or path.stat().st_size < compact_below_bytes
    deadline_s = time.monotonic() + within_s
    with store_errors("compacting", database.dialect), database.engine.connect() as connection:
        raw = connection.execution_options(isolation_level="AUTOCOMMIT").connection
        cursor = raw.cursor()
        try:
            if may_compact and not _vacuum(cursor, deadline_s):
                return False
            # Most of the log goes without a lock, so that the last step is brief.
            cursor.execute("PRAGMA wal_checkpoint(PASSIVE)")
            cursor.execute(f"PRAGMA busy_timeout = {_LOCK_MS}")
            while not _is_emptied(cursor):
                if time.monotonic() > deadline_s:
                    return False
                time.sleep(_PAUSE_S)
        finally:
            cursor.close()
            connection.invalidate()  # its settings are not everybody's
    return may_compact


def _vacuum(cursor: DBAPICursor, deadline_s: float) -> bool:
    """Rebuild the file; whether there was a moment in which nobody else wrote."""
    while True:
        try:
            cursor.execute("VACUUM")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode not in _BUSY:
                raise
        else:
            return True
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_PAUSE_S)


def _is_emptied(cursor: DBAPICursor) -> bool:
    """Whether the log is empty; it is not while somebody reads from it."""
    try:
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (is_busy, *_) = cursor.fetchone() or (1,)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode not in _BUSY:
            raise
        return False
    return not is_busy

"""Delete turns and data derived from them, in small transactions, so that the ledger never waits
long for the lock.
"""

import logging
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Table,
    delete,
    func,
    insert,
    select,
    true,
    update,
)
from sqlalchemy.engine.interfaces import DBAPICursor

from metaclaw.domain.ids import SessionId
from metaclaw.domain.training import BatchState
from metaclaw.domain.turn import TurnKind
from metaclaw.store.database import FORGETTING, FORGETTINGS, Database, Queries, append_event
from metaclaw.store.deduplication import remove_bodies
from metaclaw.store.derived_data import DerivedData, erase, find_derived_data, find_scope
from metaclaw.store.dialects import RefusedError, erase_deleted, lock_table, store_errors
from metaclaw.store.generations import lock_generations
from metaclaw.store.policy_versions import give_up
from metaclaw.store.rows import ResultRow, pack_instant, unpack_instant
from metaclaw.store.schema import (
    batch_turns,
    batches,
    cursors,
    forgotten,
    forgotten_batches,
    payloads,
    placements,
    policies,
    sessions,
    snippets,
    splices,
    tokens,
    translations,
    turns,
)
from metaclaw.store.usage import SqlCursors, count_up, present, write_cursor

log = logging.getLogger(__name__)

_TURNS_AT_ONCE = 16
_BYTES_AT_ONCE = 4 << 20
_SESSIONS_AT_ONCE = 100
_TRIES = 5
_PURGED = "forgotten and purged"
_ASKED = "forget "
_LOCK_MS = 50
_PAUSE_S = 0.1
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class SqlForgetting(Queries):
    """Deletes turns. Every step can be repeated: calling it again finishes an interrupted one."""

    def begin(self, session: SessionId) -> None:
        """Record durably that a session is to be forgotten, so that the next start finishes it. From
        now on the ledger drops turns of the session whose requests came earlier and are still being
        answered, also the first one."""
        now = self._clock()
        with self._database.writing("noting what is to be forgotten") as connection:
            # The lock makes a turn of the session that is being recorded, or this, come first.
            mine = select(sessions.c.id).where(sessions.c.id == session).with_for_update()
            if connection.scalar(mine) is not None:
                write_cursor(connection, _ASKED + session, pack_instant(now))
            append_event(connection, now, FORGETTING, {"session": session})
            count_up(connection, FORGETTINGS)
        self._database.drop_turns("session", session, now)

    def begin_user(self, user: str) -> datetime:
        """Have the ledger drop turns of a person whose requests came before now, which is returned,
        and are still being answered. Those that are recorded already stay.
        """
        now = self._clock()
        with self._database.writing("noting who is to be forgotten") as connection:
            append_event(connection, now, FORGETTING, {"user": user})
            count_up(connection, FORGETTINGS)
        self._database.drop_turns("user", user, now)
        return now

    def begun(self) -> dict[SessionId, int]:
        """Sessions that are to be forgotten and still have turns, with the time of the request to
        forget.
        """
        query = select(cursors).where(cursors.c.name.startswith(_ASKED))
        rows = self._database.rows("looking for what is to be forgotten", query)
        return {SessionId(row.name.removeprefix(_ASKED)): row.seq for row in rows}

    def delete_begun(self) -> None:
        """Delete the turns of these sessions, except later ones: they belong to a new session of
        the same name.
        """
        for session, asked_us in self.begun().items():
            self._remove(
                session, turns.c.received_us <= unpack_instant(asked_us), is_remembered=True
            )

    def end(self, done: Iterable[SessionId]) -> None:
        """Record that the turns of these sessions and the data derived from them are deleted."""
        names = [_ASKED + session for session in done]
        with self._database.writing("noting what is forgotten") as connection:
            connection.execute(delete(cursors).where(cursors.c.name.in_(names)))

    def drop_late_turns(self, session: SessionId) -> None:
        """Make the ledger drop turns of the session whose requests came before now."""
        self._database.drop_turns("session", session, self._clock())

    def forget_session(self, session: SessionId) -> int:
        """Delete the turns of a session, drop the batches they were in, and return their number.
        Only the turns' ids are kept, so that nothing is learned from them afterwards; `erase`
        deletes what was."""
        return self._remove(session, true(), is_remembered=True)

    def derived_data(self, session: SessionId | None = None) -> DerivedData:
        """The data derived from the forgotten turns of a session, or of all sessions, that is not
        erased yet.
        """
        with self._database.reading("looking for what was learned") as connection:
            return find_derived_data(connection, session)

    def erase(self, reason: str) -> bool:
        """Delete the data derived from forgotten turns, and give up the versions that were trained
        on it, with this reason. Changes nothing and returns False while a derived skill is in
        force: retire it first."""
        with self._writing("erasing what was learned") as connection:
            lock_table(connection, policies)
            lock_generations(connection)
            found = find_derived_data(connection, None)
            if found.skills:
                return False
            now = self._clock()
            _drop_batches(connection, found.batches, now)
            erase(connection, found)
            give_up(connection, found.versions, reason, now)
            return True

    def erase_traces(self, derived: DerivedData) -> None:
        """Delete again what mentions these skills and candidates: a learner may have written it
        while they were erased.
        """
        with self._writing("erasing what was learned") as connection:
            erase(connection, replace(derived, skills=()))

    def erase_scope(self, scope: str) -> None:
        """Delete the texts and traces of all skills, rules and facts of a scope, of which none is in
        force any more, and the candidates for it."""
        with self._writing("erasing what a person laid down") as connection:
            lock_generations(connection)
            erase(connection, find_scope(connection, scope))

    def purge(self, *, compact_below_bytes: int | None, within_s: float) -> bool:
        """Overwrite deleted text in the database's files (see `purge`), and record that it is
        done.
        """
        count = self._count()
        if not purge(self._database, compact_below_bytes=compact_below_bytes, within_s=within_s):
            return False
        SqlCursors(self._database).move_cursor(_PURGED, count)
        return True

    def is_unfinished(self) -> bool:
        """Whether the program ended before all traces of a forgotten session were removed."""
        return self._count() > SqlCursors(self._database).cursor(_PURGED) or bool(self.begun())

    def _count(self) -> int:
        return self._database.read_number(
            "counting what was forgotten", select(func.count()).select_from(forgotten)
        )

    def is_unpurged(self, session: SessionId) -> bool:
        """Whether the session was forgotten, and the database's files may still contain text of
        it.
        """
        query = select(forgotten.c.turn).where(forgotten.c.session == session).limit(1)
        is_forgotten = bool(self._database.rows("looking for a forgotten session", query))
        return is_forgotten and self.is_unfinished()

    def forget_before(self, instant: datetime) -> int:
        """Delete turns whose request came before `instant`, and return their number. What was
        learned from them stays."""
        query = select(sessions.c.id).where(sessions.c.began_us < instant)
        query = query.limit(_SESSIONS_AT_ONCE)
        is_old = turns.c.received_us < instant
        removed = 0
        while found := self._database.records("looking for what is old", query, SessionId):
            removed += sum(self._remove(one, is_old, is_remembered=False) for one in found)
        return removed

    def drop_session(self, session: SessionId) -> int:
        """Remove the turns of a session to make room. What was learned from them stays."""
        return self._remove(session, true(), is_remembered=False)

    def _remove(self, session: str, condition: ColumnElement[bool], *, is_remembered: bool) -> int:
        """Remove the turns of a session that meet the condition, newest first, so that few
        remaining bodies are patches on them.
        """
        removed = refusals = 0
        while True:
            began_s = time.monotonic()
            try:
                count = self._remove_some(session, condition, is_remembered=is_remembered)
            except RefusedError as error:
                # The ledger began to use a text that was to be deleted.
                refusals += 1
                if refusals == _TRIES:
                    raise
                log.debug("forgetting again reason=%s", error)
                continue
            removed, refusals = removed + count, 0
            if count == 0:
                return removed
            # Give writers that wait for the lock the time to wake up and take it.
            time.sleep(min(0.05, time.monotonic() - began_s))

    def _remove_some(
        self, session: str, condition: ColumnElement[bool], *, is_remembered: bool
    ) -> int:
        with self._writing("forgetting turns") as connection:
            rows = _newest_turns(connection, session, condition)
            seqs = [row.seq for row in rows]
            if rows:
                if is_remembered:
                    _note_forgotten(connection, rows, self._clock())
                chains = {
                    user: set(connection.scalars(select(user).where(key.in_(seqs)))) - {None}
                    for user, key in _CHAINS.items()
                }
                for table in (payloads, translations):
                    remove_bodies(connection, table, seqs)
                connection.execute(delete(tokens).where(tokens.c.turn.in_(seqs)))
                connection.execute(delete(turns).where(turns.c.seq.in_(seqs)))
                _sweep(connection, chains)
            _recount(connection, session, rows)
            return len(rows)

    @contextmanager
    def _writing(self, doing: str) -> Iterator[Connection]:
        with self._database.writing(doing) as connection:
            erase_deleted(connection)
            yield connection


def _newest_turns(
    connection: Connection, session: str, condition: ColumnElement[bool]
) -> list[ResultRow]:
    """The newest turns that meet the condition, at most `_TURNS_AT_ONCE` and about
    `_BYTES_AT_ONCE`.
    """
    size = func.length(payloads.c.middle) + func.length(payloads.c.said)
    query = (
        select(*turns.c["seq", "id", "session", "kind"], size.label("size"))
        .outerjoin(payloads)
        .where(turns.c.session == session, condition)
        .order_by(turns.c.seq.desc())
        .limit(_TURNS_AT_ONCE)
    )
    chosen: list[ResultRow] = []
    total = 0
    for row in connection.execute(query):
        total += row.size or 0
        if chosen and total > _BYTES_AT_ONCE:
            break
        chosen.append(row)
    return chosen


def _note_forgotten(connection: Connection, rows: Sequence[ResultRow], at: datetime) -> None:
    gone = [{"turn": row.id, "session": row.session, "at_us": at} for row in rows]
    connection.execute(insert(forgotten), gone)
    ids = {row.seq: row.id for row in rows}
    query = select(batch_turns).where(batch_turns.c.turn.in_(ids))
    members = [{"turn": ids[row.turn], "batch": row.batch} for row in connection.execute(query)]
    if members:
        connection.execute(insert(forgotten_batches), members)
    _drop_batches(connection, {member["batch"] for member in members}, at)


def _drop_batches(connection: Connection, taught: Collection[int], at: datetime) -> None:
    """Drop the open batches that contain a forgotten turn. Publishing a version changes the same
    row, so that it either comes first or is refused."""
    is_open = batches.c.seq.in_(taught) & (batches.c.state == BatchState.OPEN)
    ended = {"state": BatchState.DROPPED, "note": "a turn of it was forgotten", "ended_us": at}
    connection.execute(update(batches).where(is_open), ended)


def _recount(connection: Connection, session: str, removed: Sequence[ResultRow]) -> None:
    """Update the counts of the session, or delete it if it has no turns; when nothing more was
    removed, update its beginning.
    """
    mine = update(sessions).where(sessions.c.id == session)
    if not present(connection, turns.c.session, {session}):
        connection.execute(delete(sessions).where(sessions.c.id == session))
    elif removed:
        main = sum(row.kind == TurnKind.MAIN for row in removed)
        less = {
            "turns": sessions.c.turns - len(removed),
            "main_turns": sessions.c.main_turns - main,
        }
        connection.execute(mine.values(less))
    else:
        oldest = select(func.min(turns.c.received_us)).where(turns.c.session == session)
        connection.execute(mine.values(began_us=oldest.scalar_subquery()))


_CHAINS = {turns.c.placements: turns.c.seq, payloads.c.splices: payloads.c.turn}
"""The columns that name the last row of a chain, with the turn that uses it."""


def _sweep(connection: Connection, chains: Mapping[Column[bytes], Iterable[bytes]]) -> None:
    """Delete those of the chains, by the column that named them, and their texts, that no turn uses
    any more.
    """
    unused: set[bytes] = set()
    for (user, lasts), table in zip(chains.items(), (placements, splices), strict=True):
        unused |= _sweep_chains(connection, table, user, lasts)
    for table in (placements, splices):
        unused -= present(connection, table.c.snippet, unused)
    connection.execute(delete(snippets).where(snippets.c.hash.in_(unused)))


def _sweep_chains(
    connection: Connection, table: Table, user: Column[bytes], lasts: Iterable[bytes]
) -> set[bytes]:
    """Delete the rows of each chain, last to first, until a row is in use. Returns the snippets of
    the deleted rows.
    """
    freed: set[bytes] = set()
    waiting = list(lasts)
    while waiting:
        last = waiting.pop()
        if any(present(connection, column, {last}) for column in (user, table.c.previous)):
            continue
        row = delete(table).where(table.c.hash == last)
        found = connection.execute(row.returning(*table.c["previous", "snippet"])).one_or_none()
        if found is not None:
            freed.add(found.snippet)
            waiting += [found.previous] if found.previous is not None else []
    return freed


def purge(database: Database, *, compact_below_bytes: int | None, within_s: float) -> bool:
    """Overwrite deleted text: rebuild SQLite's main file and empty its log. False if that was not
    possible in time because others read, or because the file is above the limit: rebuilding it
    blocks all other writers. On PostgreSQL nothing is done, because the server removes dead
    rows."""
    path = database.path
    if path is None:
        return True
    may_compact = compact_below_bytes is None or path.stat().st_size < compact_below_bytes
    deadline_s = time.monotonic() + within_s
    with store_errors("compacting", database.dialect), database.engine.connect() as connection:
        raw = connection.execution_options(isolation_level="AUTOCOMMIT").connection
        cursor = raw.cursor()
        try:
            if may_compact and not _until(deadline_s, lambda: _try(cursor, "VACUUM") is not None):
                return False
            # Most of the log is written back without a lock, so that the last step is brief.
            cursor.execute("PRAGMA wal_checkpoint(PASSIVE)")
            cursor.execute(f"PRAGMA busy_timeout = {_LOCK_MS}")
            emptying = "PRAGMA wal_checkpoint(TRUNCATE)"
            if not _until(deadline_s, lambda: (_try(cursor, emptying) or (1,))[0] == 0):
                return False
        finally:
            cursor.close()
            connection.invalidate()  # its settings differ from the pool's
    return may_compact


def _until(deadline_s: float, attempt: Callable[[], bool]) -> bool:
    """Repeat an attempt until it succeeds; False if it did not before the deadline."""
    while not attempt():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_PAUSE_S)
    return True


def _try(cursor: DBAPICursor, statement: str) -> Sequence[object] | None:
    """The first row of a statement's result; None if others use the database."""
    try:
        cursor.execute(statement)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode not in _BUSY:
            raise
        return None
    return cursor.fetchone() or ()

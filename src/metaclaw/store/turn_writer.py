"""The turn writer: inserts turns, session ends and events, many in one transaction, over one
connection.

The statements are precompiled: SQLAlchemy generates the SQL once, and the driver runs it with plain
tuples. One statement inserts many rows, which takes a fifth less CPU time per turn with 64 clients.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import TypeAlias

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Dialect,
    Insert,
    Table,
    Update,
    bindparam,
    case,
    func,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.sql.dml import ReturningInsert

from metaclaw.domain.chat import Json
from metaclaw.domain.ids import SessionId
from metaclaw.domain.turn import ATTEMPT, Turn
from metaclaw.errors import StoreError
from metaclaw.store import schema
from metaclaw.store.compliance import attempts_of, enforcement_rows
from metaclaw.store.database import (
    FORGETTING,
    FORGETTINGS,
    MOST_FORGOTTEN,
    Database,
    FilesLostError,
    Identity,
    Rescued,
    identify,
    rescue,
)
from metaclaw.store.deduplication import ContentIds, RequestLines
from metaclaw.store.dialects import (
    POSTGRESQL,
    AnyInsert,
    RefusedError,
    begin_write,
    insert_into,
    lock_patience,
    store_errors,
)
from metaclaw.store.rows import (
    Value,
    Values,
    pack_instant,
    pack_json,
    pack_text,
    session_rows,
    tokens_row,
    turn_row,
    unpack_instant,
    unpack_json,
)
from metaclaw.store.schema import HEAD, STORED_REVISION, require_head

_LOCK_PATIENCE_MS = 200


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """The end of a session."""

    session: SessionId
    reason: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Announcement:
    """An event for the event stream."""

    kind: str
    data: dict[str, Json]
    at: datetime


Item: TypeAlias = Turn | SessionEnd | Announcement


def weigh(item: Item) -> int:
    """The approximate size of an item in memory, in bytes."""
    if not isinstance(item, Turn):
        return _ROW_BYTES
    exchange, tokens = item.exchange, item.tokens
    weight = (
        _ROW_BYTES
        + len(exchange.request)
        + len(exchange.said)
        + len(exchange.translated or b"")
        + len(exchange.seen or b"")
    )
    for splice in exchange.splices:
        weight += len(splice.inserted)
    if tokens is not None:
        weight += 32 * (len(tokens.prompt_ids) + 2 * len(tokens.sampled_ids))
    if item.enforcement is not None:
        weight += sum(map(weigh, item.enforcement.attempts))
    return weight


_ROW_BYTES = 1024  # the approximate size of a turn in memory without its payload
_WRITTEN = (
    *(schema.snippets, schema.placements, schema.splices, schema.sessions, schema.turns),
    *(schema.payloads, schema.translations, schema.tokens, schema.events),
    *(schema.held_rules, schema.turn_attempts, schema.true_answers),
)


class TurnWriter:
    """A connection for writing, used by one thread. After a StoreError other than RefusedError it
    must be closed and replaced.
    """

    def __init__(self, database: Database, max_request_line_bytes: int) -> None:
        self._database = database
        self._path = None if database.path is None else str(database.path)
        self._max_request_line_bytes = max_request_line_bytes
        self._rescued: Rescued | None = None
        self.is_lost = False
        """Whether the files were removed: then only this connection may still have their
        content.
        """
        dialect = database.dialect
        self._insertions = {table: Insertion(dialect, table) for table in _WRITTEN}
        self._find, self._number_end, self._end_session = (
            str(statement.compile(dialect=dialect))
            for statement in (_FIND, _number_end(), _end_session())
        )
        self._clear_caches()
        with store_errors("opening the store", dialect):
            self._connection = database.engine.connect().execution_options(
                isolation_level="AUTOCOMMIT"
            )
            self._cursor: DBAPICursor = self._connection.connection.cursor()
            self._cursor.execute(lock_patience(dialect.name, _LOCK_PATIENCE_MS))
        self.files: Identity = () if self._path is None else identify(self._path)
        database.files = None if self._path is None else self.files

    def write(self, items: Sequence[Item]) -> None:
        """Write all items in one transaction, or none. Raises RefusedError for an item that can
        never be stored.
        """
        with self._using_files("recording"):
            self._cursor.execute(begin_write(self._database.kind))
            self.check_files()
            self._check_schema()
            for turns, ends, announcements in _in_order(items):
                # Tested after BEGIN: a session is marked as forgotten before its turns are deleted,
                # so that this turn is either dropped here or deleted there.
                if self._database.forgotten:
                    turns = [turn for turn in turns if not self._is_dropped(turn)]
                self._write_turns(turns)
                self._write_ends(ends)
                self._insert(schema.events, [_event_row(item) for item in announcements])
            if self._hears_of_forgetting() and any(map(self._is_dropped, items)):
                self.undo()
                self.write(items)
                return
            self._cursor.execute("COMMIT")

    def _is_dropped(self, item: Item) -> bool:
        return isinstance(item, Turn) and self._database.is_dropped(
            item.session, item.scope.user, item.times.received_at
        )

    def _hears_of_forgetting(self) -> bool:
        """Whether another program has begun to forget a session. Asked after the sessions' rows
        were written, which waits for a program that is beginning to (`SqlForgetting.begin`)."""
        if not self._database.is_shared:
            return False
        self._cursor.execute(_COUNT_FORGETTINGS)
        count = (self._cursor.fetchone() or (0,))[0]
        # Not this writer's count: turns may have waited while there was no connection.
        missed, self._database.forgettings = count - self._database.forgettings, count
        if missed <= 0:
            return False
        self._cursor.execute(f"{_FORGOTTEN} LIMIT {min(missed, MOST_FORGOTTEN):d}")
        for at_us, data in self._cursor.fetchall():
            for kind, name in unpack_json(data).items():
                self._database.drop_turns(kind, str(name), unpack_instant(at_us))
        return True

    @contextmanager
    def _using_files(self, doing: str) -> Iterator[None]:
        """Turn failures caused by removed or truncated files into FilesLostError: then this
        connection has to be kept.
        """
        try:
            with store_errors(doing, self._database.dialect):
                yield
        except RefusedError:
            raise
        except StoreError:
            self.check_files()
            raise

    def undo(self) -> None:
        """Roll back the failed transaction, and clear the caches."""
        with store_errors("undoing", self._database.dialect):
            self._cursor.execute("ROLLBACK")
        self._clear_caches()

    def has(self, item: Item) -> bool:
        """Whether an item is a turn that is in the database already."""
        if not isinstance(item, Turn):
            return False
        with self._using_files("looking for a turn"):
            self._cursor.execute(self._find, (pack_text(item.id),))
            return self._cursor.fetchone() is not None

    def close(self) -> None:
        """Close the connection without returning it to the pool, because it may have failed."""
        if self._database.files is self.files:
            self._database.files = None
        with store_errors("closing the store", self._database.dialect):
            self._connection.invalidate()
            self._connection.close()

    def _clear_caches(self) -> None:
        self._content_ids = ContentIds()
        self._request_lines = RequestLines(self._max_request_line_bytes)

    def _check_schema(self) -> None:
        """Refuse to write if a newer program has migrated the database since it was opened."""
        self._cursor.execute(STORED_REVISION)
        row = self._cursor.fetchone()
        stored = row[0] if row else None
        if stored != HEAD:
            require_head(stored, "recording")

    def check_files(self) -> None:
        """Raise FilesLostError if the files at the path are not those that this connection has
        open.
        """
        if self._path is not None and identify(self._path) != self.files:
            self.is_lost = True
            raise FilesLostError("recording: the files of the database were removed or replaced")

    def rescue(self) -> Rescued:
        """Write the content of removed files back to disk. Raises StoreError if that is not
        possible now.
        """
        connection, path = self._connection.connection.driver_connection, self._database.path
        assert isinstance(connection, sqlite3.Connection)
        assert path is not None
        with store_errors("writing removed files of the database anew", self._database.dialect):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self._database.disconnect_others(1)
            if self._rescued is None or identify(str(path))[0] != self._rescued.written:
                self._rescued = rescue(connection, path, self.files)
            return self._rescued

    def _write_turns(self, turns: Sequence[Turn]) -> None:
        if not turns:
            return
        if any(turn.enforcement is not None for turn in turns):
            # Attempts come before their turn, so that a reader who has seen the turn has seen all
            # of them.
            turns = [each for turn in turns for each in (*attempts_of(turn), turn)]
        content_ids = self._content_ids
        rows = [turn_row(turn, content_ids.of_placements(turn.placements)) for turn in turns]
        splices = [content_ids.of_splices(turn.exchange.splices) for turn in turns]
        self._insert(schema.snippets, content_ids.snippets)
        self._insert(schema.placements, content_ids.placements)
        self._insert(schema.splices, content_ids.splices)
        content_ids.clear_rows()
        self._insert(schema.sessions, session_rows(turns))
        numbers = self._insertions[schema.turns].run_numbered(self._cursor, rows)
        numbered = list(zip(turns, numbers, strict=True))
        self._insert(
            schema.payloads,
            [
                self._payload(turn, seq, at)
                for (turn, seq), at in zip(numbered, splices, strict=True)
            ],
        )
        self._insert(schema.translations, list(self._translations(numbered)))
        self._insert(
            schema.tokens,
            [tokens_row(seq, turn.tokens) for turn, seq in numbered if turn.tokens is not None],
        )
        self._write_enforcement(numbered)

    def _insert(self, table: Table, rows: Sequence[Values]) -> None:
        self._insertions[table].run(self._cursor, rows)

    def _write_enforcement(self, numbered: Sequence[tuple[Turn, int]]) -> None:
        numbers = {turn.id: seq for turn, seq in numbered}
        for turn, seq in numbered:
            if turn.enforcement is not None:
                rules, attempts, answers = enforcement_rows(seq, turn.enforcement, numbers)
                self._insert(schema.held_rules, rules)
                self._insert(schema.turn_attempts, attempts)
                self._insert(schema.true_answers, answers)

    def _payload(self, turn: Turn, seq: int, splices: bytes | None) -> Values:
        # Main and side requests of one session are different conversations, so each is patched on
        # its own predecessor.
        line = ATTEMPT if turn.kind_reason == ATTEMPT else turn.kind
        link = self._request_lines.follow((turn.session, line), seq, turn.exchange.request)
        return (seq, *link, splices, turn.exchange.said, turn.exchange.seen)

    def _translations(self, numbered: Iterable[tuple[Turn, int]]) -> Iterator[Values]:
        for turn, seq in numbered:
            if turn.exchange.translated is not None:
                line = (turn.session, turn.kind, "translated")
                yield (seq, *self._request_lines.follow(line, seq, turn.exchange.translated))

    def _write_ends(self, ends: Sequence[SessionEnd]) -> None:
        if ends:
            rows = [
                (at := pack_instant(end.at), at, pack_text(end.reason), pack_text(end.session))
                for end in ends
            ]
            self._cursor.executemany(self._number_end, [(session,) for *_, session in rows])
            self._cursor.executemany(self._end_session, rows)


_FIND = select(schema.turns.c.seq).where(schema.turns.c.id == bindparam("id"))
_COUNT_FORGETTINGS = f"SELECT seq FROM cursors WHERE name = '{FORGETTINGS}'"
_FORGOTTEN = f"SELECT at_us, data FROM events WHERE kind = '{FORGETTING}' ORDER BY seq DESC"


def _number_end() -> Insert:
    """Number the end of a session that has not ended yet."""
    session = schema.sessions.c
    still_open = select(session.id).where(
        session.id == bindparam("session"), session.ended_us.is_(None)
    )
    return insert(schema.session_ends).from_select(["session"], still_open)


def _end_session() -> Update:
    session = schema.sessions.c
    at = bindparam("at", type_=session.last_us.type)
    # If the clock went back, the end must not be before the session's last turn.
    ended = case(
        (at > session.last_us, bindparam("at_us", type_=session.last_us.type)),
        else_=session.last_us,
    )
    change = update(schema.sessions).where(
        session.id == bindparam("session"), session.ended_us.is_(None)
    )
    return change.values(ended_us=ended, end_reason=bindparam("reason"))


def _in_order(
    items: Iterable[Item],
) -> Iterator[tuple[list[Turn], list[SessionEnd], list[Announcement]]]:
    """Split items into groups in which all turns may be written first: a turn behind its session's
    end begins a new group.
    """
    turns: list[Turn] = []
    ends: list[SessionEnd] = []
    announcements: list[Announcement] = []
    ended: set[SessionId] = set()
    for item in items:
        match item:
            case Turn():
                if item.session in ended:
                    yield turns, ends, announcements
                    turns, ends, announcements, ended = [], [], [], set()
                turns.append(item)
            case SessionEnd():
                ends.append(item)
                ended.add(item.session)
            case Announcement():
                announcements.append(item)
    yield turns, ends, announcements


def _event_row(item: Announcement) -> Values:
    return (pack_instant(item.at), pack_text(item.kind), pack_json(item.data))


# One hour in microseconds. A literal, because precompiled statements have no parameters except
# their rows.
_LONGEST_REQUEST = literal_column("3600000000", BigInteger())
_MAX_ROWS = 16
_LARGER = (64, 32)
"""Only a few sizes, so that the driver caches all statements."""


class Insertion:
    """One INSERT into one table, for 1 to 16, 32 or 64 rows."""

    def __init__(self, dialect: Dialect, table: Table) -> None:
        self._dialect = dialect
        self._table = table
        self._columns = [
            column.name for column in table.columns if column.autoincrement is not True
        ]
        self._is_numbered = len(self._columns) < len(table.columns)
        self._parts = self._compile()
        self._sql: dict[int, str] = {}

    def run(self, cursor: DBAPICursor, rows: Sequence[Values]) -> None:
        """Insert the rows, each a tuple in the table's column order."""
        for chunk in _chunks(rows):
            cursor.execute(self._statement(len(chunk)), tuple(chain.from_iterable(chunk)))

    def run_numbered(self, cursor: DBAPICursor, rows: Sequence[Values]) -> list[int]:
        """Insert the rows and return the number that the database gave each."""
        numbers: list[int] = []
        for chunk in _chunks(rows):
            self.run(cursor, chunk)
            if self._dialect.name == POSTGRESQL:
                # The order of returned rows is not guaranteed, so match them by their first column.
                found: dict[Value, int] = dict(cursor.fetchall())
                numbers += [found[row[0]] for row in chunk]
            else:
                # RETURNING would take a third longer, and one statement of the only writer numbers
                # its rows in order.
                last: int = cursor.lastrowid
                numbers += range(last - len(chunk) + 1, last + 1)
        return numbers

    def _statement(self, count: int) -> str:
        found = self._sql.get(count)
        if found is None:
            head, row, tail = self._parts
            found = self._sql[count] = f"{head}{', '.join([row] * count)}{tail}"
        return found

    def _compile(self) -> tuple[str, str, str]:
        """The statement for one row in three parts: before, within and after the values, which are
        then repeated. (SQLAlchemy takes 30 ms to compile 16 rows of turns, while a request
        waits.)"""
        insert = (
            insert_into(self._table, self._dialect.name)
            .values(dict.fromkeys(self._columns))
            .inline()
        )
        if self._table in _AT_CONFLICT:
            insert = _AT_CONFLICT[self._table](insert)
        statement: AnyInsert | ReturningInsert[*tuple[object, int]] = insert
        if self._is_numbered and self._dialect.name == POSTGRESQL:
            statement = statement.returning(self._table.c[self._columns[0]], self._table.c.seq)
        head, values, rest = str(statement.compile(dialect=self._dialect)).partition("VALUES ")
        row, end, tail = rest.partition(")")
        return head + values, row + end, tail


def _chunks(rows: Sequence[Values]) -> Iterable[Sequence[Values]]:
    """Split the rows into as few chunks as possible with the sizes of the cached statements."""
    if len(rows) <= _MAX_ROWS:
        return (rows,) if rows else ()
    return _large_chunks(rows)


def _large_chunks(rows: Sequence[Values]) -> Iterator[Sequence[Values]]:
    begin = 0
    while begin < len(rows):
        left = len(rows) - begin
        size = next((size for size in _LARGER if size <= left), _MAX_ROWS)
        yield rows[begin : begin + size]
        begin += size


def once(insert: AnyInsert) -> AnyInsert:
    """Ignore a row whose key exists already: it is the same row."""
    return insert.on_conflict_do_nothing()


def add_to_session(insert: AnyInsert) -> AnyInsert:
    """Insert the session, or add turns to it. A request after the session's end opens it again; so
    does one long before the end, because the clock must have been ahead when the session ended."""
    old, new = schema.sessions.c, insert.excluded
    is_reopened = (new.last_us > old.ended_us) | (new.last_us < old.ended_us - _LONGEST_REQUEST)
    return insert.on_conflict_do_update(
        index_elements=[old.id],
        set_={
            "key": func.coalesce(old.key, new.key),
            "parent": func.coalesce(old.parent, new.parent),
            "workspace_id": func.coalesce(old.workspace_id, new.workspace_id),
            "began_us": _lesser(old.began_us, new.began_us),
            "last_us": _greater(old.last_us, new.last_us),
            "ended_us": case((is_reopened, None), else_=old.ended_us),
            "end_reason": case((is_reopened, None), else_=old.end_reason),
            "turns": old.turns + new.turns,
            "main_turns": old.main_turns + new.main_turns,
        },
    )


# SQLite's two-argument min and max have other names in PostgreSQL; CASE works in both.
def _lesser(a: ColumnElement[int], b: ColumnElement[int]) -> ColumnElement[int]:
    return case((a < b, a), else_=b)


def _greater(a: ColumnElement[int], b: ColumnElement[int]) -> ColumnElement[int]:
    return case((a > b, a), else_=b)


_AT_CONFLICT: dict[Table, Callable[[AnyInsert], AnyInsert]] = {
    **dict.fromkeys((schema.snippets, schema.placements, schema.splices, schema.skill_texts), once),
    schema.sessions: add_to_session,
}
"""What becomes of a row whose key is there already; elsewhere it is an error."""

"""The scribe: puts turns, session ends and events into the database, many in one transaction, over one connection."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from sqlalchemy import Dialect, Insert, Update, bindparam, case, insert, select, update
from sqlalchemy.engine.interfaces import DBAPICursor

from metaclaw.domain.chat import Json
from metaclaw.domain.ids import SessionId
from metaclaw.domain.turn import Turn
from metaclaw.errors import StoreError
from metaclaw.store import enforcement, learning, schema, statements
from metaclaw.store.addresses import Addresses
from metaclaw.store.database import Database
from metaclaw.store.files import FilesLostError, Identity, Rescued, identify, rescue
from metaclaw.store.guard import RefusedError, store_errors
from metaclaw.store.migration import STORED_REVISION, require_head
from metaclaw.store.packing import Row, pack_instant, pack_json, pack_text
from metaclaw.store.patches import Lineages
from metaclaw.store.rows import body_row, draw_rows, payload_row, session_rows, tokens_row, turn_row
from metaclaw.store.statements import Insertion

_LOCK_PATIENCE_MS = 200


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """A session is over."""

    session: SessionId
    reason: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Announcement:
    """Something happened that readers of the event stream want to know."""

    kind: str
    data: dict[str, Json]
    at: datetime


Item: TypeAlias = Turn | SessionEnd | Announcement


class Scribe:
    """One connection that writes. Used by one thread; after a StoreError that is not a refusal it is closed and replaced."""

    def __init__(self, database: Database, max_lineage_bytes: int) -> None:
        self._database = database
        self._path = None if database.path is None else str(database.path)
        self._max_lineage_bytes = max_lineage_bytes
        self._rescued: Rescued | None = None
        self.is_lost = False
        """Whether the files were removed: then this connection may be all that is left of them."""
        self._statements = _Statements(database.dialect)
        self._forget()
        with store_errors("opening the store", database.dialect):
            self._connection = database.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            self._cursor: DBAPICursor = self._connection.connection.cursor()
            self._cursor.execute(self._statements.patience)
        self.files: Identity = () if self._path is None else identify(self._path)
        database.files = None if self._path is None else self.files

    def write(self, items: Sequence[Item]) -> None:
        """Make all of them durable in one transaction, or none. Raises RefusedError for what can never be stored."""
        with self._using_files("recording"):
            self._cursor.execute(self._statements.begin)
            self.check_files()
            self._check_schema()
            for turns, ends, announcements in _in_order(items):
                # After BEGIN: a session is noted as forgotten before its turns are deleted, so one of both takes this turn out.
                if self._database.forgotten:
                    turns = [turn for turn in turns if not self._database.is_dropped(turn.session, turn.times.received_at)]
                self._write_turns(turns)
                self._write_ends(ends)
                self._statements.events.run(self._cursor, [_event_row(item) for item in announcements])
            self._cursor.execute("COMMIT")

    @contextmanager
    def _using_files(self, doing: str) -> Iterator[None]:
        """Raise FilesLostError for failures that come from removed or truncated files: then this connection has to be kept."""
        try:
            with store_errors(doing, self._database.dialect):
                yield
        except RefusedError:
            raise
        except StoreError:
            self.check_files()
            raise

    def undo(self) -> None:
        """Leave the transaction that failed; what was remembered from it is no longer true."""
        with store_errors("undoing", self._database.dialect):
            self._cursor.execute("ROLLBACK")
        self._forget()

    def has(self, turn: Turn) -> bool:
        """Whether the turn is in the database already."""
        with self._using_files("looking for a turn"):
            self._cursor.execute(self._statements.find, (pack_text(turn.id),))
            return self._cursor.fetchone() is not None

    def close(self) -> None:
        """Close the connection for good: one that failed must not return to the pool."""
        if self._database.files is self.files:
            self._database.files = None
        with store_errors("closing the store", self._database.dialect):
            self._connection.invalidate()
            self._connection.close()

    def _forget(self) -> None:
        self._addresses = Addresses()
        self._lineages = Lineages(self._max_lineage_bytes)

    def _check_schema(self) -> None:
        """Refuse to write if a newer program has migrated the database since it was opened."""
        self._cursor.execute(STORED_REVISION)
        row = self._cursor.fetchone()
        require_head(row[0] if row else None, "recording")

    def check_files(self) -> None:
        """Raise FilesLostError if the files at the path are not those that this connection has open."""
        if self._path is not None and identify(self._path) != self.files:
            self.is_lost = True
            raise FilesLostError("recording: the files of the database were removed or replaced")

    def rescue(self) -> Rescued:
        """Write what the removed files held back to disk. Raises StoreError if that is not possible now."""
        connection, path = self._connection.connection.driver_connection, self._database.path
        assert isinstance(connection, sqlite3.Connection)
        assert path is not None
        with store_errors("writing removed files of the database anew", self._database.dialect):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self._database.seclude(1)
            if self._rescued is None or identify(str(path))[0] != self._rescued.written:
                self._rescued = rescue(connection, path, self.files)
            return self._rescued

    def _write_turns(self, turns: Sequence[Turn]) -> None:
        if not turns:
            return
        if any(turn.enforcement is not None for turn in turns):
            # Attempts before their turn, so that whoever has read the newest turn has read all.
            turns = [one for turn in turns for one in (*enforcement.attempts_of(turn), turn)]
        cursor, into, addresses = self._cursor, self._statements, self._addresses
        rows = [turn_row(turn, addresses.of_placements(turn.placements)) for turn in turns]
        splices = [addresses.of_splices(turn.exchange.splices) for turn in turns]
        if addresses.snippets or addresses.placements or addresses.splices:
            into.snippets.run(cursor, addresses.snippets)
            into.placements.run(cursor, addresses.placements)
            into.splices.run(cursor, addresses.splices)
            addresses.taken()
        into.sessions.run(cursor, session_rows(turns))
        numbered = list(zip(turns, into.turns.run_numbered(cursor, rows), strict=True))
        into.payloads.run(cursor, [self._payload(turn, seq, at) for (turn, seq), at in zip(numbered, splices, strict=True)])
        into.translations.run(cursor, list(self._translations(numbered)))
        into.tokens.run(cursor, [tokens_row(seq, turn.tokens) for turn, seq in numbered if turn.tokens is not None])
        into.draws.run(cursor, [row for turn, seq in numbered if turn.draws for row in draw_rows(seq, turn.draws)])
        self._write_enforcement(numbered)

    def _write_enforcement(self, numbered: Sequence[tuple[Turn, int]]) -> None:
        held = [(turn.enforcement, seq) for turn, seq in numbered if turn.enforcement is not None]
        if not held:
            return
        cursor, into = self._cursor, self._statements
        numbers = {turn.id: seq for turn, seq in numbered}
        into.held_rules.run(cursor, [row for found, seq in held for row in enforcement.rule_rows(seq, found)])
        into.attempts.run(cursor, [row for found, seq in held for row in enforcement.attempt_rows(seq, found, numbers)])
        into.true_answers.run(cursor, [row for found, seq in held for row in enforcement.answer_rows(seq, found)])

    def _payload(self, turn: Turn, seq: int, splices: bytes | None) -> Row:
        # Main and side requests of one session are different conversations; each is like its own predecessor.
        line = enforcement.ATTEMPT if turn.kind_reason == enforcement.ATTEMPT else turn.kind
        link = self._lineages.follow((turn.session, line), seq, turn.exchange.request)
        return payload_row(seq, link, splices, turn.exchange)

    def _translations(self, numbered: Iterable[tuple[Turn, int]]) -> Iterator[Row]:
        for turn, seq in numbered:
            if turn.exchange.translated is not None:
                line = (turn.session, turn.kind, "translated")
                yield body_row(seq, self._lineages.follow(line, seq, turn.exchange.translated))

    def _write_ends(self, ends: Sequence[SessionEnd]) -> None:
        if ends:
            rows = [(at := pack_instant(end.at), at, pack_text(end.reason), pack_text(end.session)) for end in ends]
            self._cursor.executemany(self._statements.number_end, [(session,) for *_, session in rows])
            self._cursor.executemany(self._statements.end_session, rows)


class _Statements:
    """The scribe's statements, compiled for its database."""

    def __init__(self, dialect: Dialect) -> None:
        is_sqlite = dialect.name == "sqlite"
        self.patience = f"PRAGMA busy_timeout = {_LOCK_PATIENCE_MS}" if is_sqlite else f"SET lock_timeout = {_LOCK_PATIENCE_MS}"
        # Taking the write lock first means a transaction that has begun cannot fail for a lock.
        self.begin = "BEGIN IMMEDIATE" if is_sqlite else "BEGIN"
        self.snippets = Insertion(dialect, schema.snippets, statements.once)
        self.placements = Insertion(dialect, schema.placements, statements.once)
        self.splices = Insertion(dialect, schema.splices, statements.once)
        self.sessions = Insertion(dialect, schema.sessions, statements.add_to_session)
        self.turns = Insertion(dialect, schema.turns)
        self.payloads = Insertion(dialect, schema.payloads)
        self.translations = Insertion(dialect, schema.translations)
        self.tokens = Insertion(dialect, schema.tokens)
        self.draws = Insertion(dialect, learning.draws)
        self.held_rules = Insertion(dialect, schema.held_rules)
        self.attempts = Insertion(dialect, schema.turn_attempts)
        self.true_answers = Insertion(dialect, schema.true_answers)
        self.events = Insertion(dialect, schema.events)
        self.find = str(select(schema.turns.c.seq).where(schema.turns.c.id == bindparam("id")).compile(dialect=dialect))
        self.number_end = str(_number_end().compile(dialect=dialect))
        self.end_session = str(_end_session().compile(dialect=dialect))


def _number_end() -> Insert:
    """Number the end of a session that has not ended yet."""
    session = schema.sessions.c
    still_open = select(session.id).where(session.id == bindparam("session"), session.ended_us.is_(None))
    return insert(schema.session_ends).from_select(["session"], still_open)


def _end_session() -> Update:
    session = schema.sessions.c
    at = bindparam("at", type_=session.last_us.type)
    # A clock that went back must not make an end that lies before the session's last turn.
    ended = case((at > session.last_us, bindparam("at_us", type_=session.last_us.type)), else_=session.last_us)
    change = update(schema.sessions).where(session.id == bindparam("session"), session.ended_us.is_(None))
    return change.values(ended_us=ended, end_reason=bindparam("reason"))


def _in_order(items: Iterable[Item]) -> Iterator[tuple[list[Turn], list[SessionEnd], list[Announcement]]]:
    """Groups that may be written turns first: a turn that comes after its session's end begins a new group."""
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


def _event_row(item: Announcement) -> Row:
    return (pack_instant(item.at), pack_text(item.kind), pack_json(item.data))

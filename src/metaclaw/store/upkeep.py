"""Upkeep of the database: keep it below a size limit, return unused space to the disk, check an
SQLite file without changing it, and copy all readable rows to a new file."""

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import exists, select

from metaclaw.clock import utc_now
from metaclaw.domain.ids import SessionId
from metaclaw.domain.status import StoreSize
from metaclaw.domain.training import BatchState
from metaclaw.errors import StoreError
from metaclaw.store.database import Database, open_database
from metaclaw.store.dialects import measure, plain_words, store_errors
from metaclaw.store.forgetting import SqlForgetting
from metaclaw.store.schema import (
    HEAD,
    STORED_REVISION,
    batch_turns,
    batches,
    is_newer,
    metadata,
    sessions,
    turns,
)

log = logging.getLogger(__name__)

_ROOM = 0.9
"""Sessions are removed down to this share of the limit, so that it is not reached again at once."""
_IDLE = timedelta(days=1)
_SESSIONS_AT_ONCE = 50
_PAGES_AT_ONCE = 512
_FREE_PAGES = 64
"""Free pages that stay in the file for the next turns."""
_CHECK_S = 120.0
"""Time limit of a check for damage, because the log cannot be emptied while it reads."""


class SqlUpkeep:
    """Measures a database and makes room in it. Blocks, but holds the write lock only briefly."""

    def __init__(
        self, database: Database, max_bytes: int = 0, now: Callable[[], datetime] = utc_now
    ) -> None:
        self._database = database
        self._forgetting = SqlForgetting(database)
        self._max_bytes = max_bytes
        self._now = now
        self.removed_sessions = 0
        """Sessions removed to make room, since the start."""

    def size(self) -> StoreSize:
        """The size of the database and its limit."""
        with self._database.reading("measuring the store") as connection:
            size_bytes, free_bytes = measure(connection)
        return StoreSize(size_bytes, free_bytes, self._max_bytes or None, self.removed_sessions)

    def make_room(self) -> int:
        """Remove the oldest sessions if the database is larger than its limit; return their number.
        Active sessions stay, and so do those whose turns are being trained on. What was learned
        from the removed sessions stays."""
        removed = 0
        excess: str | None = None
        if self._max_bytes and self._used() > self._max_bytes:
            while (used := self._used()) > self._max_bytes * _ROOM:
                if not (found := self._oldest()):
                    log.warning(
                        "store is over its limit and holds nothing to remove bytes=%d limit=%d",
                        used,
                        self._max_bytes,
                    )
                    if used > self._max_bytes:
                        excess = self._describe_excess(used)
                    break
                for session in found:
                    self._forgetting.drop_session(session)
                    removed += 1
                    if self._used() <= self._max_bytes * _ROOM:
                        break
        if excess is not None:
            self._database.notices["limit"] = excess
        else:
            self._database.notices.pop("limit", None)
        self.removed_sessions += removed
        if removed:
            log.info(
                "oldest sessions removed to keep the store below its limit sessions=%d limit=%d",
                removed,
                self._max_bytes,
            )
        return removed

    def check(self) -> None:
        """Look for damage and put it into the notices. Recording continues: new turns can be read
        again.
        """
        if self._database.kind != "sqlite":
            return
        deadline_s = time.monotonic() + _CHECK_S

        def is_over() -> bool:
            return time.monotonic() > deadline_s or self._database.refusal is not None

        with self._database.reading("checking the store") as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            problem = quick_check(driver, is_over)
        if problem is not None:
            self._database.notices["damage"] = (
                f"the database is damaged ({problem}); recording continues, but parts of it cannot"
                " be read. Run `metaclaw stop`, then `metaclaw store repair`, which saves the"
                " readable part"
            )
            log.error(
                "store is damaged; stop the program and run `metaclaw store repair` problem=%s",
                problem,
            )

    def give_back(self) -> int:
        """Return free pages of the file to the disk, a few at a time. Returns the number of
        bytes.
        """
        with self._database.reading("measuring the store") as connection:
            before, _ = measure(connection)
            if (
                self._database.kind != "sqlite"
                or connection.exec_driver_sql("PRAGMA auto_vacuum").scalar() != _INCREMENTAL
            ):
                return 0
        while True:
            began_s = time.monotonic()
            with self._database.writing("giving free space back") as connection:
                free = connection.exec_driver_sql("PRAGMA freelist_count").scalar() or 0
                if free <= _FREE_PAGES:
                    break
                # It returns one row for each page, which has to be fetched for the page to be
                # freed.
                cursor = connection.connection.cursor()
                cursor.execute(
                    f"PRAGMA incremental_vacuum({min(_PAGES_AT_ONCE, free - _FREE_PAGES)})"
                )
                cursor.fetchall()
            # Give writers that wait for the lock the time to wake up and take it.
            time.sleep(min(0.05, time.monotonic() - began_s))
        return max(0, before - self.size().size_bytes)

    def _describe_excess(self, used: int) -> str:
        return (
            f"the store is over its limit (store.max_gb): it has {used / 1e9:.3g} of"
            f" {self._max_bytes / 1e9:g} GB. Nothing is removed, because every session is active,"
            " was used within the last day, or is being trained on"
        )

    def _used(self) -> int:
        found = self.size()
        return found.size_bytes - found.free_bytes

    def _oldest(self) -> list[SessionId]:
        is_over = sessions.c.ended_us.is_not(None) | (sessions.c.last_us < self._now() - _IDLE)
        is_training = exists(
            select(turns.c.seq)
            .select_from(turns)
            .join(batch_turns)
            .join(batches)
            .where(turns.c.session == sessions.c.id, batches.c.state == BatchState.OPEN)
        )
        query = (
            select(sessions.c.id)
            .where(is_over, ~is_training)
            .order_by(sessions.c.last_us)
            .limit(_SESSIONS_AT_ONCE)
        )
        return self._database.read(
            "looking for the oldest sessions", query, lambda row: SessionId(row.id)
        )


_INCREMENTAL = 2


def compact(database: Database) -> None:
    """Rewrite an SQLite file of an older version, so that free space can be returned to the disk.
    No other program may use it.
    """
    with (
        store_errors(f"rewriting {database}", database.dialect),
        database.engine.connect() as connection,
    ):
        cursor = connection.connection.cursor()
        if cursor.execute("PRAGMA auto_vacuum").fetchone() != (_INCREMENTAL,):
            cursor.execute("PRAGMA auto_vacuum = INCREMENTAL")
            cursor.execute("VACUUM")


_SHOWN = 20
_STEPS = 100_000  # of SQLite's virtual machine: a few milliseconds
DAMAGE = (sqlite3.Error, UnicodeDecodeError)
"""Errors of reading a damaged file. UnicodeDecodeError: the driver decodes SQLite's messages, which
may quote the file.
"""

_UPGRADE = "Upgrade the program; this version must not repair it."
_RESTORE = (
    "Nothing can be read, so a repair would save nothing: metaclaw store restore PATH replaces it"
    " by a backup."
)
_REPAIR = (
    "metaclaw store repair saves the readable part; metaclaw store restore PATH replaces it by a"
    " backup."
)


@dataclass(frozen=True, slots=True)
class IntegrityReport:
    """The result of checking a database file."""

    revision: str | None
    turns: int | None
    sessions: int | None
    size_bytes: int
    free_bytes: int
    problems: tuple[str, ...]
    remedy: str | None = None
    """What to do about the problems."""
    is_newer: bool = False
    """Whether it belongs to a newer version of this program, and must not be repaired by this
    one.
    """


@contextmanager
def read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that cannot write. Raises StoreError if the file cannot be opened."""
    try:
        with closing(
            sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=5.0)
        ) as connection:
            yield connection
    except DAMAGE as error:
        raise StoreError(f"reading {path}: {plain_words(error)}") from error


def check_file(path: Path) -> IntegrityReport:
    """Read the whole file and report all problems."""
    problems: list[str] = []
    facts: dict[str, str | int | None] = {}
    with read_only(path) as connection:
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except DAMAGE as error:
            if not _is_damage(error):
                raise
            problem = f"its list of tables cannot be read: {' '.join(str(error).split())}"
            return IntegrityReport(None, None, None, path.stat().st_size, 0, (problem,), _RESTORE)
        for name, query in _FACTS.items():
            try:
                facts[name] = (connection.execute(query).fetchone() or [None])[0]
            except DAMAGE as error:
                problems.append(f"{name} cannot be read: {plain_words(error)}")
        problems += _problems(connection)
    revision, page = facts.get("revision"), int(facts.get("page_size") or 0)
    newer = revision is not None and is_newer(str(revision))
    if newer:
        problems.insert(
            0,
            f"it was written by a newer version of this program (schema {revision}; this one knows"
            f" up to {HEAD})",
        )
    remedy = _UPGRADE if newer else _REPAIR
    return IntegrityReport(
        None if revision is None else str(revision),
        _count(facts.get("turns")),
        _count(facts.get("sessions")),
        page * int(facts.get("pages") or 0),
        page * int(facts.get("free_pages") or 0),
        tuple(problems[:_SHOWN]),
        remedy if problems else None,
        newer,
    )


def find_damage(path: Path) -> str | None:
    """Read every page of the file and return the first problem, or None."""
    with read_only(path) as connection:
        return quick_check(connection)


def quick_check(
    connection: sqlite3.Connection, is_over: Callable[[], bool] = lambda: False
) -> str | None:
    """Read every page, without comparing tables with their indexes, and return the first problem,
    or None. Stops with None when `is_over`. Raises sqlite3.Error for failures that are not damage,
    such as a lock."""
    connection.set_progress_handler(is_over, _STEPS)
    try:
        (words,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except DAMAGE as error:
        if getattr(error, "sqlite_errorname", None) == "SQLITE_INTERRUPT":
            return None
        if _is_damage(error):
            return " ".join(str(error).split())
        raise
    finally:
        connection.set_progress_handler(None, 0)
    return (
        None if words == "ok" else " ".join(words.removeprefix("*** in database main ***").split())
    )


def _is_damage(error: Exception) -> bool:
    """Whether an error comes from the content of the file, not from a lock or the disk."""
    return getattr(error, "sqlite_errorname", "SQLITE_CORRUPT").startswith(
        ("SQLITE_CORRUPT", "SQLITE_NOTADB")
    )


_FACTS = {
    "page_size": "PRAGMA page_size",
    "pages": "PRAGMA page_count",
    "free_pages": "PRAGMA freelist_count",
    "revision": STORED_REVISION,
    "turns": "SELECT count(*) FROM turns",
    "sessions": "SELECT count(*) FROM sessions",
}


def _problems(connection: sqlite3.Connection) -> list[str]:
    found: list[str] = []
    try:
        found += [
            words
            for (words,) in connection.execute(f"PRAGMA integrity_check({_SHOWN})")
            if words != "ok"
        ]
        dangling: dict[tuple[str, str], int] = {}
        for table, _, parent, _ in connection.execute("PRAGMA foreign_key_check"):
            dangling[table, parent] = dangling.get((table, parent), 0) + 1
        found += [
            f"{count} rows of {table} refer to a missing row of {parent}"
            for (table, parent), count in dangling.items()
        ]
        present = {
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        if connection.execute(STORED_REVISION).fetchone() == (HEAD,):
            found += [
                f"the table {name} is missing" for name in sorted(set(metadata.tables) - present)
            ]
    except DAMAGE as error:
        found.append(plain_words(error))
    return found


def _count(value: str | int | None) -> int | None:
    return value if isinstance(value, int) else None


_ROWS_PER_PAGE = 512
_MAX_READS = 200_000

_MISSING_SESSIONS = """
    INSERT INTO sessions (id, key, agent, user_id, workspace_id, began_us, last_us, turns, main_turns)
    SELECT session, max(key), max(agent), max(user_id), max(workspace_id), min(received_us), max(received_us), count(*),
        sum(kind = 'main')
    FROM turns WHERE session NOT IN (SELECT id FROM sessions) GROUP BY session"""
_RECOUNT = (
    "DELETE FROM sessions WHERE id NOT IN (SELECT session FROM turns)",
    """UPDATE sessions SET turns = counted.turns, main_turns = counted.main_turns
    FROM (SELECT session, count(*) AS turns, sum(kind = 'main') AS main_turns FROM turns GROUP BY session) AS counted
    WHERE counted.session = sessions.id AND (sessions.turns <> counted.turns OR sessions.main_turns <> counted.main_turns)""",
    (
        "UPDATE rule_counts SET times = (SELECT count(*) FROM rule_results WHERE count ="
        " rule_counts.seq)"
    ),
    "DELETE FROM rule_counts WHERE times = 0",
)


@dataclass(frozen=True, slots=True)
class SalvagedTable:
    """The number of rows of one table that were saved, unreadable, and dropped because they
    referred to unreadable ones.
    """

    table: str
    saved: int
    unreadable: int
    dropped: int


def salvage(damaged: Path, target: Path) -> list[SalvagedTable]:
    """Write the readable part of `damaged`, which is not changed, to a new database `target`.
    Raises StoreError.
    """
    open_database(f"sqlite:///{target}").close()
    with (
        read_only(damaged) as source,
        closing(sqlite3.connect(target, isolation_level=None)) as connection,
    ):
        try:
            present = {
                name
                for (name,) in source.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
        except DAMAGE as error:
            raise StoreError(
                f"repairing {damaged}: its list of tables cannot be read, so nothing can be saved"
                f" ({error}). Replace it by a backup with `metaclaw store restore`, or move it away"
                " to begin with an empty one"
            ) from error
        return _salvage(source, connection, present)


def _salvage(
    source: sqlite3.Connection, target: sqlite3.Connection, present: set[str]
) -> list[SalvagedTable]:
    triggers = target.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
    ).fetchall()
    tables = [
        name for (name,) in target.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    ]
    tables = [
        name
        for name in tables
        if name in present and name not in ("alembic_version", "sqlite_sequence")
    ]
    target.execute("BEGIN")
    for name, _ in triggers:
        target.execute(f"DROP TRIGGER {name}")
    unreadable = {table: _Copy(source, target, table).run() for table in tables}
    read = {table: _rows(target, table) for table in tables}
    _drop_what_is_incomplete(target)
    _keep_numbers(source, target)
    for _, statement in triggers:
        target.execute(statement)
    target.execute("COMMIT")
    saved = {table: _rows(target, table) for table in tables}
    return [
        SalvagedTable(table, saved[table], unreadable[table], max(0, read[table] - saved[table]))
        for table in tables
    ]


def _rows(connection: sqlite3.Connection, table: str) -> int:
    count: int = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    return count


class _Copy:
    """Copies one table by ranges of rows; a range that cannot be read is halved until single rows
    are left out.
    """

    def __init__(self, source: sqlite3.Connection, target: sqlite3.Connection, table: str) -> None:
        self._source = source
        self._target = target
        self._table = table
        wanted = {row[1] for row in target.execute(f"PRAGMA table_info({table})")}
        columns = [
            row[1] for row in source.execute(f"PRAGMA table_info({table})") if row[1] in wanted
        ]
        names = ", ".join(f'"{name}"' for name in columns)
        self._select = (
            f"SELECT rowid, {names} FROM {table} WHERE rowid BETWEEN ? AND ? ORDER BY rowid"
        )
        self._insert = (
            f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({', '.join('?' * len(columns))})"
        )

    def run(self) -> int:
        """Copy the readable rows. Returns the approximate number of unreadable ones."""
        ranges = [(self._bound("min", lambda: 0), self._bound("max", self._largest))]
        unreadable = reads = 0
        while ranges and reads < _MAX_READS:
            reads += 1
            low, high = ranges.pop()
            failed_at = self._copy(low, high)
            if failed_at is None:
                continue
            if failed_at == high:
                unreadable += 1
            else:
                middle = (failed_at + high) // 2
                ranges += [(middle + 1, high), (failed_at, middle)]
        return unreadable

    def _copy(self, low: int, high: int) -> int | None:
        """Copy rows until one cannot be read. Returns the number to continue from, or None at the
        end.
        """
        try:
            for rowid, *values in self._source.execute(self._select, (low, high)):
                self._target.execute(self._insert, values)
                low = rowid + 1
        except DAMAGE:
            return min(low, high)
        return None

    def _bound(self, which: str, otherwise: Callable[[], int]) -> int:
        try:
            found = self._source.execute(f"SELECT {which}(rowid) FROM {self._table}").fetchone()[0]
        except DAMAGE:
            return otherwise()
        return 0 if found is None else int(found)

    def _largest(self) -> int:
        """An upper bound of the row numbers: the recorded maximum of a numbered table, else the
        most that the pages can hold.
        """
        known = 0
        with suppress(*DAMAGE):
            known = dict(self._source.execute("SELECT name, seq FROM sqlite_sequence")).get(
                self._table, 0
            )
        pages: int = self._source.execute("PRAGMA page_count").fetchone()[0]
        return int(known) or pages * _ROWS_PER_PAGE


def _drop_what_is_incomplete(connection: sqlite3.Connection) -> None:
    """Delete turns without a body, and rows that refer to missing ones, until none are left; then
    recount.
    """
    connection.execute(_MISSING_SESSIONS)
    while True:
        changes = connection.total_changes
        connection.execute("DELETE FROM turns WHERE seq NOT IN (SELECT turn FROM payloads)")
        dangling = {
            (table, rowid) for table, rowid, _, _ in connection.execute("PRAGMA foreign_key_check")
        }
        for table, rowid in dangling:
            connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (rowid,))
        if connection.total_changes == changes:
            break
    for statement in _RECOUNT:
        connection.execute(statement)


def _keep_numbers(source: sqlite3.Connection, target: sqlite3.Connection) -> None:
    """Copy the counters of numbered tables, so that the numbers of lost rows are not used again."""
    with suppress(*DAMAGE):
        for table, seq in source.execute("SELECT name, seq FROM sqlite_sequence").fetchall():
            target.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
            target.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table, seq))

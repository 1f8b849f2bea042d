"""Salvage of a damaged SQLite database: every row that can still be read goes into a new one."""

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from metaclaw.errors import StoreError
from metaclaw.store.database import open_database
from metaclaw.store.integrity import DAMAGE, read_only

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
    "UPDATE rule_counts SET times = (SELECT count(*) FROM rule_results WHERE count = rule_counts.seq)",
    "DELETE FROM rule_counts WHERE times = 0",
)


@dataclass(frozen=True, slots=True)
class Salvaged:
    """Rows of one table that could be saved, rows that could not be read, and rows that were useless without those."""

    table: str
    saved: int
    unreadable: int
    dropped: int


def salvage(damaged: Path, target: Path) -> list[Salvaged]:
    """Make a sound database at `target` of whatever can be read from `damaged`, which is not changed. Raises StoreError."""
    open_database(f"sqlite:///{target}").close()
    with read_only(damaged) as source, closing(sqlite3.connect(target, isolation_level=None)) as connection:
        try:
            present = {name for (name,) in source.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        except DAMAGE as error:
            raise StoreError(
                f"repairing {damaged}: its list of tables cannot be read, so nothing can be saved ({error})."
                " Put a backup in its place with `metaclaw store restore`, or move it away to begin anew"
            ) from error
        return _salvage(source, connection, present)


def _salvage(source: sqlite3.Connection, target: sqlite3.Connection, present: set[str]) -> list[Salvaged]:
    triggers = target.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    tables = [name for (name,) in target.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    tables = [name for name in tables if name in present and name not in ("alembic_version", "sqlite_sequence")]
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
    return [Salvaged(table, saved[table], unreadable[table], max(0, read[table] - saved[table])) for table in tables]


def _rows(connection: sqlite3.Connection, table: str) -> int:
    count: int = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    return count


class _Copy:
    """Copies one table by ranges of rows; a range that cannot be read is halved until single rows are left out."""

    def __init__(self, source: sqlite3.Connection, target: sqlite3.Connection, table: str) -> None:
        self._source = source
        self._target = target
        self._table = table
        wanted = {row[1] for row in target.execute(f"PRAGMA table_info({table})")}
        columns = [row[1] for row in source.execute(f"PRAGMA table_info({table})") if row[1] in wanted]
        names = ", ".join(f'"{name}"' for name in columns)
        self._select = f"SELECT rowid, {names} FROM {table} WHERE rowid BETWEEN ? AND ? ORDER BY rowid"
        self._insert = f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({', '.join('?' * len(columns))})"

    def run(self) -> int:
        """Copy what can be read. Returns about how many rows could not."""
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
        """Copy rows until one cannot be read. Returns where to go on, or None at the end."""
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
        """No row can have a larger number: numbered tables keep their largest, and others have so many rows at most."""
        known = 0
        with suppress(*DAMAGE):
            known = dict(self._source.execute("SELECT name, seq FROM sqlite_sequence")).get(self._table, 0)
        pages: int = self._source.execute("PRAGMA page_count").fetchone()[0]
        return int(known) or pages * _ROWS_PER_PAGE


def _drop_what_is_incomplete(connection: sqlite3.Connection) -> None:
    """A turn without its body, or with a reference to what is gone, cannot be read: it goes as a whole."""
    connection.execute(_MISSING_SESSIONS)
    while True:
        changes = connection.total_changes
        connection.execute("DELETE FROM turns WHERE seq NOT IN (SELECT turn FROM payloads)")
        dangling = {(table, rowid) for table, rowid, _, _ in connection.execute("PRAGMA foreign_key_check")}
        for table, rowid in dangling:
            connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (rowid,))
        if connection.total_changes == changes:
            break
    for statement in _RECOUNT:
        connection.execute(statement)


def _keep_numbers(source: sqlite3.Connection, target: sqlite3.Connection) -> None:
    """Numbers that were given are not given again, even if their rows are lost."""
    with suppress(*DAMAGE):
        for table, seq in source.execute("SELECT name, seq FROM sqlite_sequence").fetchall():
            target.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
            target.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table, seq))

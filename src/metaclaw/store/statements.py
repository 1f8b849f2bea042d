"""Precompiled statements: SQLAlchemy writes the SQL once, the driver runs it with plain tuples.

Many rows go in one statement rather than one by one: with 64 clients the writer spent about a fifth less processor time a turn.
(Probably because the driver gives up the interpreter lock with every statement it runs; the cause was not measured.)
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from sqlalchemy import BigInteger, ColumnElement, Dialect, Table, case, func, literal_column
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.sql.dml import ReturningInsert

from metaclaw.store import schema
from metaclaw.store.packing import Row, Value

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql

Insert: TypeAlias = "sqlite.Insert | postgresql.Insert"

# One hour in microseconds. A literal: statements that are compiled ahead take no parameters beside their rows.
_LONGEST_REQUEST = literal_column("3600000000", BigInteger())
_MAX_ROWS = 16
_LARGER = (64, 32)
"""A statement of every size would be compiled for most transactions anew; of these there are few, and all are kept."""


class Insertion:
    """One INSERT into one table, for 1 to 16, 32 or 64 rows."""

    def __init__(self, dialect: Dialect, table: Table, shape: Callable[["Insert"], "Insert"] = lambda insert: insert) -> None:
        self._dialect = dialect
        self._table = table
        self._columns = [column.name for column in table.columns if column.autoincrement is not True]
        self._is_numbered = len(self._columns) < len(table.columns)
        self._parts = self._compile(shape)
        self._sql: dict[int, str] = {}

    def run(self, cursor: DBAPICursor, rows: Sequence[Row]) -> None:
        """Insert the rows, each a tuple in the table's column order."""
        for chunk in _chunks(rows):
            cursor.execute(self._statement(len(chunk)), tuple(chain.from_iterable(chunk)))

    def run_numbered(self, cursor: DBAPICursor, rows: Sequence[Row]) -> list[int]:
        """Insert the rows and return the number that the database gave each."""
        numbers: list[int] = []
        for chunk in _chunks(rows):
            cursor.execute(self._statement(len(chunk)), tuple(chain.from_iterable(chunk)))
            if self._dialect.name == "postgresql":
                # The order of returned rows is not promised, so they are matched by their first column.
                found: dict[Value, int] = dict(cursor.fetchall())
                numbers += [found[row[0]] for row in chunk]
            else:
                # RETURNING would cost a third more here, and one statement by the only writer numbers its rows in order.
                last: int = cursor.lastrowid
                numbers += range(last - len(chunk) + 1, last + 1)
        return numbers

    def _statement(self, count: int) -> str:
        found = self._sql.get(count)
        if found is None:
            head, row, tail = self._parts
            found = self._sql[count] = f"{head}{', '.join([row] * count)}{tail}"
        return found

    def _compile(self, shape: Callable[["Insert"], "Insert"]) -> tuple[str, str, str]:
        """The statement for one row in three parts: before, within and after the values, which are then repeated.

        SQLAlchemy takes 30 ms to compile 16 rows of turns, at a moment when somebody waits.
        """
        insert = _insert_into(self._table, self._dialect).values(dict.fromkeys(self._columns)).inline()
        statement: Insert | ReturningInsert[*tuple[object, int]] = shape(insert)
        if self._is_numbered and self._dialect.name == "postgresql":
            statement = statement.returning(self._table.c[self._columns[0]], self._table.c.seq)
        head, values, rest = str(statement.compile(dialect=self._dialect)).partition("VALUES ")
        row, end, tail = rest.partition(")")
        return head + values, row + end, tail


def _insert_into(table: Table, dialect: Dialect) -> "Insert":
    if dialect.name == "postgresql":
        # Imported by those who use it: it takes its time.
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)
    return sqlite.insert(table)


def _chunks(rows: Sequence[Row]) -> Iterable[Sequence[Row]]:
    """The rows in as few pieces as there are statements for. The driver keeps a statement of each size compiled."""
    if len(rows) <= _MAX_ROWS:
        return (rows,) if rows else ()
    return _large_chunks(rows)


def _large_chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    begin = 0
    while begin < len(rows):
        left = len(rows) - begin
        size = next((size for size in _LARGER if size <= left), _MAX_ROWS)
        yield rows[begin : begin + size]
        begin += size


def once(insert: "Insert") -> "Insert":
    """A row whose key is already there is the same row."""
    return insert.on_conflict_do_nothing()


def add_to_session(insert: "Insert") -> "Insert":
    """Begin the session, or count more turns in it; a request that came after the session's end opens it again.

    So does one that came long before the end and is recorded only now: the clock was ahead when the session ended.
    """
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


# SQLite's two-argument min and max are spelled differently in PostgreSQL; CASE is the same in both.
def _lesser(a: ColumnElement[int], b: ColumnElement[int]) -> ColumnElement[int]:
    return case((a < b, a), else_=b)


def _greater(a: ColumnElement[int], b: ColumnElement[int]) -> ColumnElement[int]:
    return case((a > b, a), else_=b)

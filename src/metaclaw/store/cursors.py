"""Cursors: how far each background loop has read, so that it goes on there after a restart."""

from collections.abc import Collection
from typing import TypeVar

from sqlalchemy import Column, Connection, delete, insert, select

from metaclaw.store.database import Database
from metaclaw.store.rows import pack_text
from metaclaw.store.schema import cursors

_T = TypeVar("_T")
ENFORCEMENT_OFF = "enforcement:off"
"""1 while held rules are switched off."""


class SqlCursors:
    """A number by name. Each name has one reader that moves it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def cursor(self, name: str) -> int:
        """Where the reader of this name is; 0 for one that has not begun."""
        with self._database.reading("reading a cursor") as connection:
            return read_cursor(connection, name) or 0

    def has_cursor(self, name: str) -> bool:
        """Whether the reader of this name has begun."""
        with self._database.reading("reading a cursor") as connection:
            return read_cursor(connection, name) is not None

    def move_cursor(self, name: str, seq: int) -> None:
        """Note that the reader of this name is done with everything up to here."""
        with self._database.writing("moving a cursor") as connection:
            write_cursor(connection, name, seq)


def read_cursor(connection: Connection, name: str) -> int | None:
    """Where the reader of this name is; None for one that has not begun."""
    found: int | None = connection.execute(select(cursors.c.seq).where(cursors.c.name == pack_text(name))).scalar()
    return found


def write_cursor(connection: Connection, name: str, seq: int) -> None:
    """Set a cursor in the caller's transaction."""
    connection.execute(delete(cursors).where(cursors.c.name == pack_text(name)))
    connection.execute(insert(cursors), {"name": pack_text(name), "seq": seq})


def present(connection: Connection, column: Column[_T], wanted: Collection[_T]) -> set[_T]:
    """Which of these values the column has."""
    if not wanted:
        return set()
    return set(connection.execute(select(column).where(column.in_(wanted)).distinct()).scalars())

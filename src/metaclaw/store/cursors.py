"""Cursors: how far each background loop has read, so that it goes on there after a restart."""

from sqlalchemy import delete, insert, select

from metaclaw.store.database import Database
from metaclaw.store.learning import cursors
from metaclaw.store.packing import pack_text

ENFORCEMENT_OFF = "enforcement:off"
"""1 while held rules are switched off."""


class SqlCursors:
    """A number by name. Each name has one reader that moves it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def cursor(self, name: str) -> int:
        """Where the reader of this name is; 0 for one that has not begun."""
        query = select(cursors.c.seq).where(cursors.c.name == pack_text(name))
        with self._database.reading("reading a cursor") as connection:
            return connection.execute(query).scalar() or 0

    def has_cursor(self, name: str) -> bool:
        """Whether the reader of this name has begun."""
        query = select(cursors.c.seq).where(cursors.c.name == pack_text(name))
        with self._database.reading("reading a cursor") as connection:
            return connection.execute(query).first() is not None

    def move_cursor(self, name: str, seq: int) -> None:
        """The reader of this name has done with everything up to here."""
        with self._database.writing("moving a cursor") as connection:
            connection.execute(delete(cursors).where(cursors.c.name == pack_text(name)))
            connection.execute(insert(cursors), {"name": pack_text(name), "seq": seq})

"""Known backups: where copies of this database were written, and when."""

import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import delete, insert, select

from metaclaw.errors import StoreError
from metaclaw.store.database import Database
from metaclaw.store.files import copy_database
from metaclaw.store.integrity import check_file
from metaclaw.store.packing import pack_instant, pack_text, unpack_instant, unpack_text
from metaclaw.store.schema import backups


@dataclass(frozen=True, slots=True)
class Backup:
    """A copy of the database as it was at that time."""

    path: Path
    made_at: datetime


class SqlBackups:
    """The backups that `store backup` has written. A file may have been moved or deleted since."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, backup: Backup) -> None:
        """Note a backup, in place of an earlier one at the same path."""
        path = pack_text(str(backup.path))
        with self._database.writing("noting a backup") as connection:
            connection.execute(delete(backups).where(backups.c.path == path))
            connection.execute(insert(backups), {"path": path, "made_us": pack_instant(backup.made_at)})

    def remove(self, path: Path) -> None:
        """Forget a backup."""
        with self._database.writing("removing a backup from the list") as connection:
            connection.execute(delete(backups).where(backups.c.path == pack_text(str(path))))

    def known(self) -> list[Backup]:
        """Every noted backup, newest first."""
        query = select(backups).order_by(backups.c.made_us.desc(), backups.c.path)
        with self._database.reading("reading the known backups") as connection:
            return [Backup(Path(unpack_text(row.path)), unpack_instant(row.made_us)) for row in connection.execute(query)]


def back_up(database: Database, target: Path) -> Backup:
    """Write one moment of an SQLite database to a new file, also while a program records into it, and note it as known."""
    backup, known = Backup(target, datetime.now(UTC)), SqlBackups(database)
    known.add(backup)  # first, so that no copy is ever unknown
    try:
        with database.reading(f"backing up to {target}") as connection:
            source = connection.connection.driver_connection
            assert isinstance(source, sqlite3.Connection)
            copy_database(source, target)
        if problems := check_file(target).problems:
            raise StoreError(f"the backup {target} is not sound: {problems[0]}")
    except StoreError:
        if not target.exists():
            known.remove(target)
        raise
    return backup

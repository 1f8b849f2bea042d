"""Known backups: where copies of this database were written, and when."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import delete, insert, select

from metaclaw.store.database import Database
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

    def known(self) -> list[Backup]:
        """Every noted backup, newest first."""
        query = select(backups).order_by(backups.c.made_us.desc(), backups.c.path)
        with self._database.reading("reading the known backups") as connection:
            return [Backup(Path(unpack_text(row.path)), unpack_instant(row.made_us)) for row in connection.execute(query)]

"""Back up, restore and repair the database, and keep a list of known backups."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from sqlalchemy import delete, insert, select

from metaclaw.clock import local_now, utc_now
from metaclaw.domain.ids import SessionId
from metaclaw.durable_files import sync_path
from metaclaw.errors import StoreError
from metaclaw.store.database import (
    SUFFIXES,
    Database,
    Queries,
    copy_database,
    open_database,
    put_in_place,
)
from metaclaw.store.forgetting import SqlForgetting
from metaclaw.store.schema import backups
from metaclaw.store.upkeep import SalvagedTable, check_file, read_only, salvage


@dataclass(frozen=True, slots=True)
class Backup:
    """A copy of the database and its time."""

    path: Path
    made_at: datetime


class SqlBackups(Queries):
    """The list of backups that `store backup` has written. A file may have been moved or deleted
    since.
    """

    def add(self, backup: Backup) -> None:
        """Add a backup to the list, in place of an earlier one at the same path."""
        path = str(backup.path)
        with self._database.writing("noting a backup") as connection:
            connection.execute(delete(backups).where(backups.c.path == path))
            connection.execute(insert(backups), {"path": path, "made_us": backup.made_at})

    def remove(self, path: Path) -> None:
        with self._database.writing("removing a backup from the list") as connection:
            connection.execute(delete(backups).where(backups.c.path == str(path)))

    def known(self) -> list[Backup]:
        """The known backups, newest first."""
        query = select(backups).order_by(backups.c.made_us.desc(), backups.c.path)
        return self._database.read(
            "reading the known backups",
            query,
            lambda row: Backup(Path(row.path), row.made_us),
        )


def back_up(database: Database, target: Path) -> Backup:
    """Write a consistent copy of an SQLite database to a new file, also while a program writes to
    it, and add it to the list.
    """
    backup, known = Backup(target, utc_now()), SqlBackups(database)
    known.add(backup)  # first, so that every copy is in the list
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


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """The path of the former database, and the sessions that were forgotten again because they were
    forgotten after the backup.
    """

    former: Path | None
    forgotten_again: tuple[str, ...]


def restore(path: Path, backup: Path) -> RestoreResult:
    """Replace the database at `path` by a backup of this or an older schema. Raises StoreError,
    with nothing changed.
    """
    if not backup.is_file():
        raise StoreError(f"there is no file {backup}")
    if path.exists() and path.samefile(backup):
        raise StoreError(f"{backup} is the database itself")
    if problems := check_file(backup).problems:
        raise StoreError(f"{backup} is not a sound database: {problems[0]}")

    def write(partial: Path) -> tuple[str, ...]:
        with read_only(backup) as source:
            copy_database(source, partial)
        return _carry_over(path, partial)

    former, again = _replace(path, write, "replaced")
    return RestoreResult(former, again)


def repair(path: Path) -> tuple[Path, list[SalvagedTable]]:
    """Replace the database at `path` by its readable part. Returns the path of the damaged one, and
    what was saved. Raises StoreError, with nothing changed, for a database of a newer version,
    whose unknown parts would be lost."""
    if (found := check_file(path)).is_newer:
        raise StoreError(f"{path} is not repaired: {found.problems[0]}. {found.remedy}")
    former, saved = _replace(path, lambda partial: salvage(path, partial), "damaged")
    assert former is not None
    return former, saved


def _replace(path: Path, write: Callable[[Path], T], label: str) -> tuple[Path | None, T]:
    partial = path.with_name(f"{path.name}.new")
    _remove(partial)
    former = (
        path.with_name(f"{path.name}.{label}-{local_now():%Y%m%d-%H%M%S}")
        if path.exists()
        else None
    )
    try:
        result = write(partial)
        if former is not None:
            _note(partial, former)
        if problems := check_file(partial).problems:
            raise StoreError(f"the new database is not sound: {problems[0]}")
        if former is not None:
            _set_aside(path, former)
        put_in_place(partial, path)
    finally:
        _remove(partial)
    return former, result


def _carry_over(path: Path, partial: Path) -> tuple[str, ...]:
    """Forget sessions that were forgotten after the backup, and carry the list of later backups
    over. Returns the sessions.
    """
    database = open_database(f"sqlite:///{partial}", is_copy=True)
    try:
        forgotten, known = _read_forgotten(path)
        with database.reading("looking for forgotten sessions") as connection:
            present = {row[0] for row in connection.exec_driver_sql("SELECT id FROM sessions")}
        again = tuple(sorted(forgotten & present))
        for session in again:
            SqlForgetting(database).forget_session(SessionId(session))
        for backup in known:
            SqlBackups(database).add(backup)
    finally:
        database.close()
    return again


def _read_forgotten(path: Path) -> tuple[set[str], list[Backup]]:
    """Forgotten sessions and known backups of the present database, as far as it can be read: it
    may be damaged or missing.
    """
    forgotten: set[str] = set()
    known: list[Backup] = []
    with suppress(StoreError), read_only(path) as connection:
        forgotten = {
            session for (session,) in connection.execute("SELECT DISTINCT session FROM forgotten")
        }
        asked = connection.execute("SELECT substr(name, 8) FROM cursors WHERE name LIKE 'forget %'")
        forgotten |= {session for (session,) in asked}
        rows = connection.execute("SELECT path, made_us FROM backups").fetchall()
        known = [
            Backup(Path(name), datetime.fromtimestamp(made_us / 1e6, UTC)) for name, made_us in rows
        ]
    return forgotten, known


def _note(partial: Path, former: Path) -> None:
    """Add the former file to the list of backups: it still contains turns, and `forget` must name
    it.
    """
    database = open_database(f"sqlite:///{partial}")
    try:
        SqlBackups(database).add(Backup(former, utc_now()))
    finally:
        database.close()
    with closing(sqlite3.connect(partial)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")  # so that there is one file to move


def _set_aside(path: Path, former: Path) -> None:
    """Give the former database a second name, with its log; the new database takes over the first
    name next.
    """
    try:
        former.hardlink_to(path)
    except OSError:
        shutil.copy2(path, former)
    log = path.with_name(path.name + "-wal")
    if log.exists():
        log.replace(former.with_name(former.name + "-wal"))
    path.with_name(path.name + "-shm").unlink(missing_ok=True)
    sync_path(former)


def _remove(path: Path) -> None:
    for suffix in SUFFIXES:
        path.with_name(path.name + suffix).unlink(missing_ok=True)

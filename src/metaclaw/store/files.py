"""The files of an open SQLite database: noticing that they were removed, and writing what they held anew.

SQLite goes on reading and writing deleted files without an error, and their content is gone when the last connection closes.
Until then an open connection still sees all of it.
"""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

from metaclaw.errors import StoreError

Identity: TypeAlias = tuple[tuple[int, int] | None, ...]
"""Device and inode of the database file, its write-ahead log and its shared memory; None for one that is not there.

A database file of no bytes counts as not there: it was truncated. Its content is not looked at, because closing the file
afterwards would drop SQLite's locks."""

SUFFIXES = ("", "-wal", "-shm")


class FilesLostError(StoreError):
    """The files at the path are not those that are open."""


def identify(path: str) -> Identity:
    """The files that are at the path now."""
    return tuple(_identify(path + suffix, may_be_empty=suffix != "") for suffix in SUFFIXES)


def _identify(path: str, *, may_be_empty: bool) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 (three times for each transaction)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if found.st_size or may_be_empty else None


@dataclass(frozen=True, slots=True)
class Rescued:
    """What was done about removed files; `written` identifies the new database file, if one was written."""

    what: str
    written: tuple[int, int] | None = None


def rescue(connection: sqlite3.Connection, path: Path, opened: Identity) -> Rescued:
    """Write what the connection still sees back to disk, while no other connection of this process is open.

    Always to a new file: a database that lost only its log would otherwise share it or its memory with those who still have the
    removed ones open.
    """
    found = identify(str(path))
    has_file = found[0] == opened[0]
    if has_file:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # durable at once, even if the copy fails
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if has_file or not path.exists() or path.stat().st_size == 0:
        what = "write-ahead log had been removed" if has_file else "database file had been removed"
        write: Callable[[sqlite3.Connection, Path], tuple[int, int]] = copy_database
        if not has_file and path.exists():
            what, write = "database file had been truncated to 0 bytes", _copy_truncated
        return Rescued(f"its {what}; everything was written anew", write(connection, path))
    target = path.with_name(f"{path.name}.rescued-{datetime.now():%Y%m%d-%H%M%S}")
    copy_database(connection, target)
    for suffix, mine, now in zip(SUFFIXES[1:], opened[1:], found[1:], strict=True):
        if mine == now:  # SQLite would take our log for the new file's
            path.with_name(path.name + suffix).unlink(missing_ok=True)
    return Rescued(f"its file had been replaced; what it held before is in {target}")


def _copy_truncated(connection: sqlite3.Connection, path: Path) -> tuple[int, int]:
    """Copy to the path, unless what a truncated file held is neither in the log nor in the connection's cache."""
    try:
        return copy_database(connection, path, verify=True)
    except sqlite3.Error as error:
        if isinstance(error, sqlite3.OperationalError):  # such as a full disk: the next attempt may succeed
            raise
        raise StoreError(
            f"{path} was truncated to 0 bytes and what it held cannot be read any more. Stop the program, then put a backup in its"
            " place with `metaclaw store restore`, or delete the file to begin anew"
        ) from error


def copy_database(source: sqlite3.Connection, target: Path, *, verify: bool = False) -> tuple[int, int]:
    """Write one moment of a database to a file, durably, and put it at `target` when it is complete. Returns device and inode.

    With `verify`, raises sqlite3.DatabaseError if the copy is damaged.
    """
    partial = target.with_name(target.name + ".partial")
    partial.unlink(missing_ok=True)
    os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with closing(sqlite3.connect(partial)) as copy:
            copy.execute("PRAGMA synchronous = OFF")  # synced once, below
            source.backup(copy)
            if verify and (found := copy.execute("PRAGMA quick_check(1)").fetchone()) != ("ok",):
                raise sqlite3.DatabaseError(str(found))
        return put_in_place(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def put_in_place(partial: Path, target: Path) -> tuple[int, int]:
    """Give a complete database file its name, durably. A log beside the target belongs to what was there before."""
    with partial.open("rb+") as file:
        os.fsync(file.fileno())
        found = os.fstat(file.fileno())
    for suffix in SUFFIXES[1:]:
        target.with_name(target.name + suffix).unlink(missing_ok=True)
    partial.replace(target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return found.st_dev, found.st_ino

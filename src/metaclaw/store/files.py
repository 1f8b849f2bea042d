"""The files of an open SQLite database: noticing that they were removed, and writing what they held anew.

SQLite goes on reading and writing files that no longer have a name, without an error, and everything in them is gone when the last
connection closes. Until then an open connection still sees all of it.
"""

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

from metaclaw.errors import StoreError

Identity: TypeAlias = tuple[tuple[int, int] | None, ...]
"""Device and inode of the database file, its write-ahead log and its shared memory; None for one that is not there."""

SUFFIXES = ("", "-wal", "-shm")


class FilesLostError(StoreError):
    """The files at the path are not those that are open."""


def identify(path: str) -> Identity:
    """The files that are at the path now."""
    return tuple(_identify(path + suffix) for suffix in SUFFIXES)


def _identify(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 (three times for each transaction)
    except OSError:
        return None
    return found.st_dev, found.st_ino


@dataclass(frozen=True, slots=True)
class Rescued:
    """What was done about removed files, and the file that has to be at the path now if we wrote one."""

    what: str
    written: tuple[int, int] | None = None


def rescue(connection: sqlite3.Connection, path: Path, opened: Identity) -> Rescued:
    """Write what the connection still sees back to disk, while nobody else has the database open in this process.

    Always to a new file: a database that lost only its log would otherwise share it or its memory with those who still have the
    removed ones open.
    """
    found = identify(str(path))
    has_file = found[0] == opened[0]
    if has_file:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # durable at once, whatever becomes of the copy
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if has_file or not path.exists() or path.stat().st_size == 0:
        what = "write-ahead log" if has_file else "database file"
        return Rescued(f"its {what} had been removed; everything was written anew", copy_database(connection, path))
    target = path.with_name(f"{path.name}.rescued-{datetime.now():%Y%m%d-%H%M%S}")
    copy_database(connection, target)
    for suffix, mine, now in zip(SUFFIXES[1:], opened[1:], found[1:], strict=True):
        if mine == now:  # SQLite would take our log for the new file's
            path.with_name(path.name + suffix).unlink(missing_ok=True)
    return Rescued(f"its file had been replaced; what it held before is in {target}")


def copy_database(source: sqlite3.Connection, target: Path) -> tuple[int, int]:
    """Write one moment of a database to a file, durably, and put it at `target` when it is complete. Returns device and inode."""
    partial = target.with_name(target.name + ".partial")
    partial.unlink(missing_ok=True)
    os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with closing(sqlite3.connect(partial)) as copy:
            copy.execute("PRAGMA synchronous = OFF")  # synced once, below
            source.backup(copy)
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

"""Whether an SQLite database file is sound, looked at without changing it."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from metaclaw.errors import StoreError
from metaclaw.store.guard import plain_words
from metaclaw.store.migration import HEAD, STORED_REVISION, is_newer
from metaclaw.store.schema import metadata

_SHOWN = 20
_STEPS = 100_000  # of SQLite's virtual machine: a few milliseconds
DAMAGE = (sqlite3.Error, UnicodeDecodeError)
"""What reading a damaged file raises; the driver decodes SQLite's own messages, which may quote it."""

_UPGRADE = "Upgrade the program; this version must not repair it."
_RESTORE = "Nothing can be read, so a repair would save nothing: metaclaw store restore PATH puts a backup in its place."
_REPAIR = "metaclaw store repair saves what can be read; metaclaw store restore PATH puts a backup in its place."


@dataclass(frozen=True, slots=True)
class Integrity:
    """What a look at a database file found."""

    revision: str | None
    turns: int | None
    sessions: int | None
    size_bytes: int
    free_bytes: int
    problems: tuple[str, ...]
    remedy: str | None = None
    """What to do about the problems."""
    is_newer: bool = False
    """Whether it belongs to a newer version of this program, and must not be repaired by this one."""


@contextmanager
def read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that cannot write. Raises StoreError if the file cannot be opened."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=5.0)) as connection:
            yield connection
    except DAMAGE as error:
        raise StoreError(f"reading {path}: {plain_words(error)}") from error


def check_file(path: Path) -> Integrity:
    """Read the whole file and say what is wrong with it."""
    problems: list[str] = []
    facts: dict[str, str | int | None] = {}
    with read_only(path) as connection:
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except DAMAGE as error:
            if not _is_damage(error):
                raise
            problem = f"its list of tables cannot be read: {' '.join(str(error).split())}"
            return Integrity(None, None, None, path.stat().st_size, 0, (problem,), _RESTORE)
        for name, query in _FACTS.items():
            try:
                facts[name] = (connection.execute(query).fetchone() or [None])[0]
            except DAMAGE as error:
                problems.append(f"{name} cannot be read: {plain_words(error)}")
        problems += _problems(connection)
    revision, page = facts.get("revision"), int(facts.get("page_size") or 0)
    newer = revision is not None and is_newer(str(revision))
    if newer:
        problems.insert(0, f"it was written by a newer version of this program (schema {revision}; this one knows up to {HEAD})")
    return Integrity(
        None if revision is None else str(revision),
        _count(facts.get("turns")),
        _count(facts.get("sessions")),
        page * int(facts.get("pages") or 0),
        page * int(facts.get("free_pages") or 0),
        tuple(problems[:_SHOWN]),
        (_UPGRADE if newer else _REPAIR) if problems else None,
        newer,
    )


def quick_check(connection: sqlite3.Connection, is_over: Callable[[], bool] = lambda: False) -> str | None:
    """Read every page, without comparing tables with their indexes, and return the first problem, or None.

    Stops without a finding when `is_over`. Raises sqlite3.Error for failures that say nothing about the file, such as a lock.
    """
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
    return None if words == "ok" else " ".join(words.removeprefix("*** in database main ***").split())


def _is_damage(error: Exception) -> bool:
    """Whether an error comes from the content of the file, not from a lock or the disk."""
    return getattr(error, "sqlite_errorname", "SQLITE_CORRUPT").startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))


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
        found += [words for (words,) in connection.execute(f"PRAGMA integrity_check({_SHOWN})") if words != "ok"]
        dangling: dict[tuple[str, str], int] = {}
        for table, _, parent, _ in connection.execute("PRAGMA foreign_key_check"):
            dangling[table, parent] = dangling.get((table, parent), 0) + 1
        found += [
            f"{count} rows of {table} name a row of {parent} that is not there" for (table, parent), count in dangling.items()
        ]
        present = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if connection.execute(STORED_REVISION).fetchone() == (HEAD,):
            found += [f"the table {name} is missing" for name in sorted(set(metadata.tables) - present)]
    except DAMAGE as error:
        found.append(plain_words(error))
    return found


def _count(found: str | int | None) -> int | None:
    return found if isinstance(found, int) else None

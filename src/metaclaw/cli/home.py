"""The home folder for commands that work on it themselves: its preparation, its store and its skill
files.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from metaclaw.errors import ConfigError, SkillError

if TYPE_CHECKING:
    from metaclaw.config import Config
    from metaclaw.domain.skill import Skill
    from metaclaw.store import Database, LedgerReader


def prepared(home: Path, overrides: Sequence[str]) -> "Config":
    """Load the configuration; at the first start create the home folder, and generate and store a
    key.
    """
    from metaclaw.config import ensure_api_key, load, prepare_home

    config = load(home, sets=overrides)
    try:
        prepare_home(home)
    except ConfigError:
        if config.proxy.api_key is None:
            raise
        # On a full disk it serves without the folders that are missing.
    if config.proxy.api_key is None:
        ensure_api_key(home)
        config = load(home, sets=overrides)
    return config


@contextmanager
def reading(place: "Path | Config") -> "Iterator[LedgerReader | None]":
    """A reader of the store of a home, or of its configuration; None if nothing was ever
    recorded.
    """
    from metaclaw.store import LedgerReader

    with opened(place) as database:
        yield None if database is None else LedgerReader(database)


def database_file(config: "Config") -> Path | None:
    """The file of an SQLite database; None for a server."""
    from metaclaw.store import connect

    return connect(config.store.url.resolve()).path


@contextmanager
def opened(place: "Path | Config") -> "Iterator[Database | None]":
    """The store of a home, or of its configuration; None if nothing was ever recorded: reading
    creates no database.
    """
    from metaclaw.config import load
    from metaclaw.store import open_database

    config = load(place) if isinstance(place, Path) else place
    path = database_file(config)
    if path is not None and (not path.exists() or path.stat().st_size == 0):
        yield None
        return
    database = open_database(config.store.url.resolve())
    try:
        yield database
    finally:
        database.close()


def read_all(folder: Path) -> "tuple[list[Skill], list[tuple[Path, str]]]":
    """Every skill of a folder by name, and the unusable files with the reason."""
    from metaclaw.skills import read_skill

    found: list[Skill] = []
    skipped: list[tuple[Path, str]] = []
    for path in sorted(folder.glob("[!.]*/SKILL.md")):
        try:
            found.append(read_skill(path))
        except SkillError as error:
            skipped.append((path, str(error).removeprefix(f"{path}: ")))
    return found, skipped

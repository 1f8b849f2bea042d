"""What was recorded, straight from the store, whether or not a proxy runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from metaclaw.config import Config
from metaclaw.store import Database, LedgerReader, open_database


@contextmanager
def reading(config: Config) -> Iterator[LedgerReader | None]:
    """What reads the store; None where nothing was ever recorded."""
    with opened(config) as database:
        yield None if database is None else LedgerReader(database)


def database_file(config: Config) -> Path | None:
    """The file of an SQLite database; None for a server."""
    url = config.store.url.resolve()
    return Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None


@contextmanager
def opened(config: Config) -> Iterator[Database | None]:
    """The store itself; None where nothing was ever recorded, so that looking does not make a database."""
    path = database_file(config)
    if path is not None and (not path.exists() or path.stat().st_size == 0):
        yield None
        return
    database = open_database(config.store.url.resolve())
    try:
        yield database
    finally:
        database.close()

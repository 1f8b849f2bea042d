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


@contextmanager
def opened(config: Config) -> Iterator[Database | None]:
    """The store itself; None where nothing was ever recorded, so that looking does not make a database."""
    url = config.store.url.resolve()
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
        yield None
        return
    database = open_database(url)
    try:
        yield database
    finally:
        database.close()

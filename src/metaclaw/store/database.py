"""The database: where it is, how it is opened, and that its schema is the one this program knows."""

import logging
import operator
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL, Connection, Dialect, Engine, create_engine, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import ConnectionPoolEntry

from metaclaw.errors import StoreError
from metaclaw.store.guard import store_errors
from metaclaw.store.migration import HEAD, require_known, stored_revision, upgrade

log = logging.getLogger(__name__)

_WRITE = "metaclaw_write"

# The driver looks for an adapter for every value that is not exactly an int, float, str or bytearray, and is slow to find none.
# Told that these stay what they are, it inserts a turn in about a quarter less time.
sqlite3.register_adapter(type(None), dict[None, None]().get)
sqlite3.register_adapter(bytes, bytes.__bytes__)
sqlite3.register_adapter(bool, operator.index)

_SQLITE_PRAGMAS = (
    "PRAGMA busy_timeout = 5000",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
    "PRAGMA foreign_keys = ON",
    # So that INSERT OR REPLACE, too, asks the triggers that keep what was recorded.
    "PRAGMA recursive_triggers = ON",
    # `checkpoint` empties the log; these are for when it cannot keep up.
    "PRAGMA wal_autocheckpoint = 16000",
    "PRAGMA journal_size_limit = 67108864",
)


class Database:
    """An open database at this program's schema. Every failure is a StoreError."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def kind(self) -> str:
        """`sqlite` or `postgresql`."""
        return self.engine.dialect.name

    @property
    def dialect(self) -> Dialect:
        """What SQL the database speaks and how its driver fails."""
        return self.engine.dialect

    @property
    def path(self) -> Path | None:
        """The file, where the database is one."""
        return _file_of(self.engine.url)

    @contextmanager
    def reading(self, doing: str) -> Iterator[Connection]:
        """A connection that sees one moment of the database."""
        with store_errors(doing, self.dialect), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self, doing: str) -> Iterator[Connection]:
        """A transaction that holds the write lock from its beginning; committed at the end, or not at all."""
        with store_errors(doing, self.dialect), self.engine.connect() as connection:
            connection.execution_options(**{_WRITE: True})
            with connection.begin():
                yield connection

    def prepare(self) -> None:
        """Create what is missing: the folder and the file, readable by the owner only, and the tables."""
        with store_errors(f"opening {self}", self.dialect):
            if self.path is not None:
                _create_private(self.path)
            with self.engine.begin() as connection:
                stored = stored_revision(connection)
        if stored == HEAD:
            return
        require_known(stored, f"opening {self}")
        with self.writing(f"migrating {self}") as connection:
            upgrade(connection, f"opening {self}")
        if stored is not None:
            log.info("schema migrated from=%s to=%s database=%s", stored, HEAD, self)

    def close(self) -> None:
        """Give back every connection that is not in use."""
        self.engine.dispose()

    def __str__(self) -> str:
        return self.engine.url.render_as_string(hide_password=True)


def connect(url: str) -> Database:
    """The database at a `sqlite:///…` or `postgresql://…` URL, not touched yet; `prepare` it before it is read or written."""
    return Database(_engine(_parse(url)))


def open_database(url: str) -> Database:
    """Open, create or migrate the database at a `sqlite:///…` or `postgresql://…` URL. Raises StoreError."""
    database = connect(url)
    try:
        database.prepare()
    except StoreError:
        database.close()
        raise
    return database


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StoreError("store.url is not a URL; write sqlite:///path/to/ledger.db or postgresql://user@host/name") from error
    kind = parsed.get_backend_name()
    if kind == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if kind != "sqlite":
        raise StoreError(f"store.url names the database kind {kind}; only sqlite and postgresql are known")
    if _file_of(parsed) is None:
        raise StoreError("store.url names a database in memory; turns must outlive the program: write sqlite:///path/to/ledger.db")
    return parsed.set(drivername="sqlite+pysqlite")


def _engine(url: URL) -> Engine:
    if url.get_backend_name() == "sqlite":
        engine = create_engine(url, connect_args={"check_same_thread": False, "cached_statements": 256})
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    try:
        return create_engine(url, paramstyle="format", pool_pre_ping=True, connect_args={"connect_timeout": 5})
    except (ImportError, NoSuchModuleError) as error:
        raise StoreError("PostgreSQL needs its driver: pip install 'metaclaw[postgres]'") from error


def _set_up_sqlite(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    # The driver's own notion of transactions begins them late and commits them early; ours are explicit.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in _SQLITE_PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that begins as a reader and then writes can find that somebody wrote in between, and fail.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get(_WRITE) else "BEGIN")


def _file_of(url: URL) -> Path | None:
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return None
    return Path(str(url.database))


def _create_private(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # SQLite gives -wal and -shm the mode of the main file.
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT, 0o600))
    mode = path.stat().st_mode
    if mode & 0o077:
        path.chmod(mode & 0o700)

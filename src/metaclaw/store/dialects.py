"""What differs between SQLite and PostgreSQL: the statements of the schema, connections, locks, upserts,
and how their drivers fail.
"""

import operator
import re
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Final, TypeAlias

from sqlalchemy import (
    URL,
    Boolean,
    ColumnElement,
    Connection,
    Dialect,
    Engine,
    Table,
    and_,
    create_engine,
    event,
    literal_column,
    text,
    true,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError, StatementError
from sqlalchemy.pool import ConnectionPoolEntry, Pool, QueuePool

from metaclaw.errors import StoreError

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql

SQLITE: Final = "sqlite"
POSTGRESQL: Final = "postgresql"
WRITE: Final = "metaclaw_write"
"""The option of a connection whose next transaction takes the write lock at once."""

# The driver looks for an adapter for every value that is not exactly an int, float, str or
# bytearray, and is slow to find none. Told that these stay what they are, it inserts a turn in
# about a quarter less time.
sqlite3.register_adapter(type(None), dict[None, None]().get)
sqlite3.register_adapter(bytes, bytes.__bytes__)
sqlite3.register_adapter(bool, operator.index)

_WORDS: Final = {
    # Only a column that is declared as INTEGER is the number of its row.
    SQLITE: {"SERIAL": "INTEGER", "NUMBER": "INTEGER", "BYTES": "BLOB"},
    POSTGRESQL: {
        "SERIAL": "BIGSERIAL",
        "NUMBER": "BIGINT",
        "BYTES": "BYTEA",
        "DOUBLE": "DOUBLE PRECISION",
        "AUTOINCREMENT": "",
    },
}
_TRIGGER = re.compile(r"CREATE TRIGGER (\w+) (.+?)\nBEGIN\n(.*)END;", re.DOTALL)
_REFUSAL = re.compile(r"SELECT RAISE\(ABORT, ('[^']*')\)(?:\s+WHERE ([^;]*))?;")


@cache
def ddl(definition: str, kind: str) -> tuple[str, ...]:
    """The statements of `schema.sql` for one kind of database."""
    words = _WORDS[kind]
    found = re.sub(r"\b[A-Z]+\b", lambda word: words.get(word[0], word[0]), definition)
    return tuple(_statements(found, kind))


def _statements(found: str, kind: str) -> Iterator[str]:
    statement = ""
    for line in found.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield _TRIGGER.sub(_postgresql_trigger, statement) if kind == POSTGRESQL else statement
            statement = ""


def _postgresql_trigger(trigger: re.Match[str]) -> str:
    name, when, body = trigger.groups()
    body = _REFUSAL.sub(_postgresql_refusal, body.replace("--postgresql: ", ""))
    row = "OLD" if " DELETE " in when else "NEW"
    return (
        f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$\nBEGIN\n{body}  RETURN {row};\nEND $$;\n"
        f"CREATE OR REPLACE TRIGGER {name} {when} FOR EACH ROW EXECUTE FUNCTION {name}();"
    )


def _postgresql_refusal(refusal: re.Match[str]) -> str:
    words, condition = refusal.groups()
    raising = f"RAISE EXCEPTION {words} USING ERRCODE = 'restrict_violation';"
    return raising if condition is None else f"IF {condition} THEN {raising} END IF;"


def drop_triggers(connection: Connection) -> None:
    """Make way for new triggers; PostgreSQL replaces one of the same name."""
    if connection.dialect.name == SQLITE:
        found = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        for (name,) in found.all():
            connection.exec_driver_sql(f"DROP TRIGGER {name}")


@contextmanager
def unguarded(connection: Connection) -> Iterator[None]:
    """A transaction without triggers, in which rows may come in any order. References between them
    are checked at its end; everything else is taken as it is. Raises StoreError.
    """
    if connection.dialect.name == POSTGRESQL:
        with connection.begin():
            yield from _unguarded_postgresql(connection)
        return
    # Below SQLAlchemy, which would begin a transaction, and in one this has no effect.
    connection.connection.cursor().execute("PRAGMA foreign_keys = OFF")
    try:
        with connection.execution_options(**{WRITE: True}).begin():
            named = "SELECT sql FROM sqlite_master WHERE type = 'trigger'"
            triggers = connection.exec_driver_sql(named).scalars().all()
            drop_triggers(connection)
            yield
            if broken := connection.exec_driver_sql("PRAGMA foreign_key_check").first():
                raise StoreError(
                    f"a row of {broken[0]} refers to one of {broken[2]} that is missing"
                )
            for statement in triggers:
                connection.exec_driver_sql(statement)
    finally:
        connection.invalidate()  # references are not checked on it


_REFERENCES: Final = (
    "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
    " WHERE contype = 'f' AND connamespace = current_schema()::regnamespace"
)
_TRIGGERED: Final = (
    "SELECT DISTINCT tgrelid::regclass::text FROM pg_trigger JOIN pg_class ON tgrelid = pg_class.oid"
    " WHERE NOT tgisinternal AND relnamespace = current_schema()::regnamespace"
)


def _unguarded_postgresql(connection: Connection) -> Iterator[None]:
    tables = connection.exec_driver_sql(_TRIGGERED).scalars().all()
    references = connection.exec_driver_sql(_REFERENCES).all()
    for table in tables:
        connection.exec_driver_sql(f"ALTER TABLE {table} DISABLE TRIGGER USER")
    for table, name, _ in references:
        connection.exec_driver_sql(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
    yield
    for table, name, definition in references:
        connection.exec_driver_sql(f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition}")
    for table in tables:
        connection.exec_driver_sql(f"ALTER TABLE {table} ENABLE TRIGGER USER")


def last_number(connection: Connection, table: Table) -> int:
    """The last number that the database has given a row of this table; it may be gone."""
    if connection.dialect.name == SQLITE:
        query = f"SELECT seq FROM sqlite_sequence WHERE name = '{table.name}'"
        return connection.exec_driver_sql(query).scalar() or 0
    sequence = f"pg_get_serial_sequence('{table.name}', 'seq')::regclass"
    query = f"SELECT pg_sequence_last_value({sequence})"
    return connection.exec_driver_sql(query).scalar() or 0


def set_last_number(connection: Connection, table: Table, number: int) -> None:
    """Have the next row of this table get a higher number."""
    if not number:
        return
    if connection.dialect.name == SQLITE:
        name = f"'{table.name}'"
        connection.exec_driver_sql(f"DELETE FROM sqlite_sequence WHERE name = {name}")
        connection.exec_driver_sql(f"INSERT INTO sqlite_sequence VALUES ({name}, {number})")
    else:
        sequence = f"pg_get_serial_sequence('{table.name}', 'seq')"
        connection.exec_driver_sql(f"SELECT setval({sequence}, {number})")


def lock_schema(connection: Connection) -> None:
    """Let only one program change the schema. On SQLite the write lock is held already."""
    if connection.dialect.name == POSTGRESQL:
        # any number, the same in every program
        connection.execute(text("SELECT pg_advisory_xact_lock(1835365473)"))


def lock_table(connection: Connection, table: Table) -> None:
    """Lock a table against other writers. On SQLite the write lock is held already."""
    if connection.dialect.name == POSTGRESQL:
        connection.execute(text(f"LOCK TABLE {table.name} IN SHARE ROW EXCLUSIVE MODE"))


def committed(kind: str, table: Table) -> ColumnElement[bool]:
    """The condition under which no row with a lower `seq` can still appear."""
    if kind == SQLITE:
        return true()
    # With several writers a lower number may be committed later: leave out rows behind a
    # transaction that is still open.
    return literal_column(
        f"age({table.name}.xmin) > age(pg_snapshot_xmin(pg_current_snapshot())::xid)", Boolean
    )


def server_now_us(connection: Connection) -> int:
    """The time of the PostgreSQL server, in microseconds: clocks of several machines differ."""
    query = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    return int(connection.exec_driver_sql(query).scalar_one())


def limit_pauses(connection: Connection, most_ms: int) -> None:
    """End this transaction if the program pauses in it, such as one that was stopped: its locks
    would keep others waiting. On SQLite they do.
    """
    if connection.dialect.name == POSTGRESQL:
        setting = f"SET LOCAL idle_in_transaction_session_timeout = {most_ms}"
        connection.exec_driver_sql(setting)


def begins_with(kind: str, column: ColumnElement[str], prefix: str) -> ColumnElement[bool]:
    begins = column.startswith(prefix, autoescape=True)
    if kind == SQLITE:
        # SQLite's LIKE ignores case and uses no index.
        return and_(begins, column >= prefix, column < prefix + chr(0x10FFFF))
    return begins


def erase_deleted(connection: Connection) -> None:
    """Overwrite what this transaction deletes: in SQLite it would stay in the file until the space is
    used again.
    """
    if connection.dialect.name == SQLITE:
        connection.execute(text("PRAGMA secure_delete = ON"))


def measure(connection: Connection) -> tuple[int, int]:
    """The size of the database, and the unused part of it, in bytes."""
    if connection.dialect.name == POSTGRESQL:
        query = "SELECT pg_database_size(current_database())"
        return connection.exec_driver_sql(query).scalar() or 0, 0
    page, pages, free = (
        connection.exec_driver_sql(f"PRAGMA {name}").scalar() or 0
        for name in ("page_size", "page_count", "freelist_count")
    )
    return page * pages, page * free


def lock_patience(kind: str, patience_ms: int) -> str:
    """The statement that limits how long a connection waits for a lock."""
    setting = "PRAGMA busy_timeout" if kind == SQLITE else "SET lock_timeout"
    return f"{setting} = {patience_ms}"


def begin_write(kind: str) -> str:
    """Begin a transaction with the write lock, so that it cannot fail later because of a lock."""
    return "BEGIN IMMEDIATE" if kind == SQLITE else "BEGIN"


AnyInsert: TypeAlias = "sqlite.Insert | postgresql.Insert"


def insert_into(table: Table, kind: str) -> "AnyInsert":
    """An INSERT that may say what to do with a row that is there already."""
    if kind == POSTGRESQL:
        # Imported here, because it is slow to load.
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)
    return sqlite.insert(table)


_SQLITE_PRAGMAS = (
    "PRAGMA busy_timeout = 5000",
    "PRAGMA foreign_keys = ON",
    # So that INSERT OR REPLACE, too, asks the triggers that keep what was recorded.
    "PRAGMA recursive_triggers = ON",
)


def make_engine(url: URL, pool: type[Pool] = QueuePool) -> Engine:
    if url.get_backend_name() == SQLITE:
        engine = create_engine(
            url, poolclass=pool, connect_args={"check_same_thread": False, "cached_statements": 256}
        )
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    try:
        engine = create_engine(
            url,
            poolclass=pool,
            paramstyle="format",
            pool_pre_ping=True,
            connect_args={"connect_timeout": 5},
        )
    except (ImportError, NoSuchModuleError) as error:
        raise StoreError(
            "PostgreSQL needs its driver: pip install 'metaclaw-proxy[postgres]'"
        ) from error
    event.listen(engine, "connect", _set_up_postgresql)
    return engine


def _set_up_sqlite(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    # The driver's own notion of transactions begins them late and commits them early; ours are
    # explicit.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in _SQLITE_PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


def _set_up_postgresql(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    # PostgreSQL would compile our longer queries for up to a second before it runs them for a
    # millisecond.
    cursor = connection.cursor()
    cursor.execute("SET jit = off")
    cursor.close()
    connection.commit()


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that begins as a reader and then writes fails if another connection wrote in
    # between.
    is_writer = connection.get_execution_options().get(WRITE)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writer else "BEGIN")


class RefusedError(StoreError):
    """The store works but will not take this: a constraint or a type forbids it, now and later."""


@contextmanager
def store_errors(doing: str, dialect: Dialect) -> Iterator[None]:
    """Translate failures inside to a StoreError that says what was being done and why it failed."""
    driver = dialect.loaded_dbapi
    refusals = (driver.IntegrityError, driver.DataError)
    unfit = (OverflowError, struct.error, TypeError, ValueError)
    try:
        yield
    except (SQLAlchemyError, driver.Error, *unfit) as error:
        cause: BaseException = (error.orig if isinstance(error, StatementError) else None) or error
        if isinstance(cause, unfit):
            raise RefusedError(f"{doing}: a value cannot be stored: {cause}") from error
        kind = RefusedError if isinstance(cause, refusals) else StoreError
        raise kind(f"{doing}: {plain_words(cause)}") from error
    except OSError as error:
        raise StoreError(f"{doing}: {error.strerror or error}") from error


_PLAIN = {
    "SQLITE_BUSY": "another program holds the database locked",
    "SQLITE_LOCKED": "another program holds the database locked",
    "SQLITE_FULL": "the disk is full",
    "SQLITE_READONLY": "the database is read-only",
    "SQLITE_PERM": "the database may not be opened by this user",
    "SQLITE_CANTOPEN": "the database file cannot be opened",
    "SQLITE_CORRUPT": (
        "the database file is damaged; `metaclaw store repair` saves what can be read"
    ),
    "SQLITE_NOTADB": (
        "the file is damaged or not a database; `metaclaw store restore` puts a backup in its place"
    ),
    "SQLITE_IOERR": "the disk refused a read or a write",
    "SQLITE_IOERR_SHMSIZE": "the disk is full",
}


def plain_words(error: BaseException) -> str:
    """Why the database failed, for a person; the driver's own word follows in brackets."""
    own = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, sqlite3.Error):
        # An extended name such as SQLITE_READONLY_DBMOVED begins with the primary one.
        name: str = getattr(error, "sqlite_errorname", "")
        primary = "_".join(name.split("_")[:2])
        if words := _PLAIN.get(name) or _PLAIN.get(primary):
            return f"{words} ({own})"
    return own

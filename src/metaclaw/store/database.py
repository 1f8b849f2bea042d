"""The database: where it is, how it is opened, and that its schema is the one this program knows;
and its files.

SQLite goes on reading and writing deleted files without an error, and their content is gone when
the last connection closes. Until then an open connection still sees all of it, so removed files are
noticed and written anew."""

import logging
import os
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Dialect,
    Executable,
    Table,
    event,
    insert,
    make_url,
    select,
    true,
)
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool, QueuePool

from metaclaw.clock import local_now, utc_now
from metaclaw.domain.ids import SessionId
from metaclaw.durable_files import sync_path
from metaclaw.errors import DeposedError, StoreError
from metaclaw.store.dialects import WRITE, begins_with, limit_pauses, make_engine, store_errors
from metaclaw.store.rows import ResultRow, pack_json
from metaclaw.store.schema import (
    HEAD,
    STORED_REVISION,
    backups,
    check_schema,
    cursors,
    events,
    index_for_sharing,
    require_head,
    stored_revision,
    upgrade,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

EPOCH = "leader:epoch"
"""The cursor with the number of the program that leads (see `leadership`)."""
EPOCH_OF_WRITES: ContextVar[int | None] = ContextVar("epoch of writes", default=None)
FORGETTINGS = "forgettings"
"""The cursor that counts the sessions that a person wanted forgotten."""
FORGETTING = "forgetting"
"""The kind of the event by which programs on one store hear that a session is to be forgotten."""
MOST_FORGOTTEN = 10_000
_LEADERS_PAUSE_MS = 3500
_DISCONNECT_S = 5.0

# Only for a file that is known to be ours: the first of them changes it.
_OWN_SQLITE_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
    # `checkpoint` empties the log; these are for when it cannot keep up.
    "PRAGMA wal_autocheckpoint = 16000",
    "PRAGMA journal_size_limit = 67108864",
)


class Database:
    """A database at this program's schema. Every failure is a StoreError. A database of another
    schema is never written to: each new connection and each writing transaction looks at the
    revision."""

    def __init__(self, url: URL) -> None:
        self.engine = make_engine(url)
        event.listen(self.engine, "connect", self._take_over)
        if self.path is not None:
            event.listen(self.engine, "do_connect", self._require_files)
            event.listen(self.engine, "checkout", self._require_same_files)
        # Connections of `prepare`, which must see databases of any schema.
        self._unverified = make_engine(url, NullPool)
        self.is_shared = self.path is None
        """Whether other programs may serve the same sessions at the same time."""
        self.refusal: str | None = None
        """Why there are no connections until `prepare` succeeds: it failed, or the files are being
        written anew.
        """
        self.files: Identity | None = None
        """The files that the ledger has open; there are no connections to others."""
        self.forgotten: OrderedDict[tuple[str, str], datetime] = OrderedDict()
        """When sessions and users were last forgotten; what was asked before is not recorded any
        more.
        """
        self.forgettings = 0
        """How many times this program has heard that a session or user is to be forgotten."""
        self.notices: dict[str, str] = {}
        """What a person should know about the database although it is in use, by subject."""

    def drop_turns(self, kind: str, name: str, until: datetime) -> None:
        """Do not record turns of this `session` or `user` whose requests came before; answers may
        still be under way.
        """
        key = kind, name
        self.forgotten[key] = max(until, self.forgotten.get(key, until))
        while len(self.forgotten) > MOST_FORGOTTEN:
            self.forgotten.popitem(last=False)

    def is_dropped(self, session: SessionId, user: str | None, received_at: datetime) -> bool:
        """Whether a turn must not be recorded, because its session or user was forgotten since its
        request came.
        """
        keys = (("session", session), ("user", user or ""))
        return any(
            until is not None and received_at <= until for until in map(self.forgotten.get, keys)
        )

    @property
    def kind(self) -> str:
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

    def rows(self, doing: str, query: Executable) -> Sequence[ResultRow]:
        with self.reading(doing) as connection:
            return connection.execute(query).all()

    def read(self, doing: str, query: Executable, convert: Callable[[ResultRow], T]) -> list[T]:
        """The rows of a query, each converted."""
        with self.reading(doing) as connection:
            return [convert(row) for row in connection.execute(query)]

    def records(self, doing: str, query: Executable, kind: Callable[..., T]) -> list[T]:
        """The rows of a query, each as a record with the values of its columns in their order."""
        return self.read(doing, query, lambda row: kind(*row))

    def read_one(
        self, doing: str, query: Executable, convert: Callable[[ResultRow], T]
    ) -> T | None:
        """The one row of a query, converted; None if there is none."""
        with self.reading(doing) as connection:
            row = connection.execute(query).one_or_none()
            return None if row is None else convert(row)

    def ids(
        self,
        table: Table,
        prefix: str,
        limit: int,
        kind: Callable[[str], T],
        *conditions: ColumnElement[bool],
    ) -> list[T]:
        """The ids in a table that begin with `prefix`, in order."""
        is_wanted = begins_with(self.kind, table.c.id, prefix)
        query = select(table.c.id).where(is_wanted, *conditions).order_by(table.c.id).limit(limit)
        return self.records("looking for an id", query, kind)

    def read_number(self, doing: str, query: Executable) -> int:
        """The one number that a query gives; 0 for none."""
        with self.reading(doing) as connection:
            return int(connection.scalar(query) or 0)

    @contextmanager
    def writing(self, doing: str) -> Iterator[Connection]:
        """A transaction that holds the write lock from its beginning; committed at the end, or not
        at all.
        """
        with (
            store_errors(doing, self.dialect),
            self.engine.connect() as connection,
            _writing_on(connection),
        ):
            require_head(stored_revision(connection), doing)
            if (epoch := EPOCH_OF_WRITES.get()) is not None:
                _require_epoch(connection, epoch, doing)
            yield connection

    def prepare(self, *, is_copy: bool = False) -> None:
        """Create what is missing: the folder and the file, readable by the owner only, and the
        tables. A file of the schema before is brought over; unless it `is_copy`, it is copied to
        the folder `backups` first. Raises StoreError and changes nothing if the database belongs to
        a newer version or to another program."""
        try:
            self._prepare(f"opening {self}", is_copy=is_copy)
        except StoreError as error:
            self.refusal = str(error)
            raise
        self.refusal = None

    def _prepare(self, doing: str, *, is_copy: bool) -> None:
        with store_errors(doing, self.dialect):
            if self.path is not None:
                self._notice_empty(self.path)
                _create_private(self.path)
            with self._unverified.begin() as connection:
                stored = check_schema(connection, doing)
            if self.path is not None and (mode := self.path.stat().st_mode) & 0o077:
                self.path.chmod(mode & 0o700)
        if stored != HEAD:
            self._migrate(stored, is_copy=is_copy)
        if self.is_shared:
            with store_errors(doing, self.dialect), self._unverified.begin() as connection:
                index_for_sharing(connection)

    def _notice_empty(self, path: Path) -> None:
        if path.exists() and path.stat().st_size == 0:
            self.notices["empty"] = (
                f"{path} was empty (0 bytes), so a new database was begun; if it held turns before,"
                " stop the program and put a backup in its place with `metaclaw store restore`"
            )
            log.warning(
                "database file was empty, a new database is begun in its place database=%s", self
            )

    def _migrate(self, stored: str | None, *, is_copy: bool) -> None:
        doing = f"migrating {self}"
        with store_errors(doing, self.dialect), self._unverified.connect() as connection:
            if stored is None and self.path is not None:
                # Takes effect in a file without tables; `SqlUpkeep` gives free pages back.
                connection.connection.cursor().execute("PRAGMA auto_vacuum = INCREMENTAL")
            has_rows = stored is not None and not is_copy
            kept = self._keep_copy(connection, str(stored)) if has_rows else None
            with _writing_on(connection):
                upgrade(connection, doing)
                if kept is not None:
                    row = {"path": str(kept), "made_us": utc_now()}
                    connection.execute(insert(backups), row)
        if stored is not None:
            log.info("schema migrated from=%s to=%s database=%s", stored, HEAD, self)

    def _keep_copy(self, connection: Connection, stored: str) -> Path | None:
        """Copy a file of an older schema to the folder `backups`, for the program that wrote it."""
        if self.path is None:
            return None
        folder = self.path.parent / "backups"
        folder.mkdir(mode=0o700, exist_ok=True)
        kept = folder / f"{self.path.name}.schema-{stored}-{utc_now():%Y%m%d-%H%M%S-%f}"
        source = connection.connection.driver_connection
        assert isinstance(source, sqlite3.Connection)
        copy_database(source, kept, verify=True)
        return kept

    def _take_over(self, connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
        """Refuse a connection to what is not at this program's schema."""
        cursor = connection.cursor()
        try:
            if self.refusal is not None:
                raise StoreError(self.refusal)
            cursor.execute(STORED_REVISION)
            row = cursor.fetchone()
            require_head(row[0] if row else None, "opening the store")
            if self.path is not None:
                for pragma in _OWN_SQLITE_PRAGMAS:
                    cursor.execute(pragma)
                cursor.execute(
                    STORED_REVISION
                ).fetchone()  # opens the log, so that there is one to identify
                entry.info["files"] = (str(self.path), identify(str(self.path)))
            cursor.close()
            connection.commit()
        except BaseException:
            connection.close()
            raise

    def are_files_lost(self) -> bool:
        """Whether the files at the path are not those that the ledger has open."""
        return self.files is not None and identify(str(self.path)) != self.files

    def _require_files(self, *_: object) -> None:
        """Refuse to connect while the files are not those that are open: SQLite would mix both."""
        if self.are_files_lost():
            raise FilesLostError("the files of the database were removed or replaced")

    def _require_same_files(
        self, _connection: DBAPIConnection, entry: ConnectionPoolEntry, _proxy: object
    ) -> None:
        """Have the pool replace a connection whose files were removed since it was opened."""
        if self.refusal is not None:
            raise StoreError(self.refusal)
        path, files = entry.info["files"]
        if identify(path) != files:
            raise DisconnectionError

    def disconnect_others(self, own: int) -> None:
        """Refuse every connection but the caller's `own` until `refusal` is None. Raises StoreError
        if others stay in use.
        """
        self.refusal = (
            "the files of the database were removed; what they held is being written anew"
        )
        pool = self.engine.pool
        assert isinstance(pool, QueuePool)
        deadline_s = time.monotonic() + _DISCONNECT_S
        while pool.checkedout() > own:
            if time.monotonic() > deadline_s:
                raise StoreError(
                    "the files of the database were removed, and are still in use; trying again"
                )
            time.sleep(0.001)
        self.engine.dispose()

    def close(self) -> None:
        """Give back every connection that is not in use."""
        self.engine.dispose()

    def __str__(self) -> str:
        return self.engine.url.render_as_string(hide_password=True)


class RemoteWrites(Protocol):
    """Carries out writes in the process that may write."""

    def run(self, name: str, *arguments: object) -> Any:
        """The result of the method of this name (`writes_of`), or its error. Blocks."""


class Queries:
    """The reads and writes of one subject. They block: call them from a thread. With `remote`, its
    process carries out the writes. For a `user`, what the API reads has no rows of others."""

    def __init__(
        self,
        database: Database,
        clock: Callable[[], datetime] = utc_now,
        remote: RemoteWrites | None = None,
        *,
        user: str | None = None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._remote = remote
        self._user = user

    def _of_user(self, table: Table) -> ColumnElement[bool]:
        """The condition under which a row of sessions or turns is the user's."""
        return true() if self._user is None else table.c.user_id == self._user


_Q = TypeVar("_Q", bound=Queries)
_P = ParamSpec("_P")


def writes(
    method: Callable[Concatenate[_Q, _P], T],
) -> Callable[Concatenate[_Q, _P], T]:
    """Mark a method of `Queries` as one that another process may carry out. It is then called with
    arguments by position that can be pickled.
    """

    @wraps(method)
    def write(self: _Q, /, *args: _P.args, **kwargs: _P.kwargs) -> T:
        if self._remote is None or kwargs:
            return method(self, *args, **kwargs)
        done: T = self._remote.run(method.__qualname__, *args)
        return done

    return write


def writes_of(stores: Iterable[Queries]) -> dict[str, Callable[..., object]]:
    """The methods that another process may ask for, by the names under which it does."""
    return {
        method.__qualname__: getattr(store, name)
        for store in stores
        for name, method in vars(type(store)).items()
        if hasattr(method, "__wrapped__")
    }


@contextmanager
def _writing_on(connection: Connection) -> Iterator[None]:
    connection.execution_options(**{WRITE: True})
    with connection.begin():
        yield


def _require_epoch(connection: Connection, epoch: int, doing: str) -> None:
    """Refuse a write of a former leader. The next one waits until this transaction has ended."""
    limit_pauses(connection, _LEADERS_PAUSE_MS)
    query = select(cursors.c.seq).where(cursors.c.name == EPOCH).with_for_update(read=True)
    if connection.scalar(query) != epoch:
        raise DeposedError(f"{doing}: another program on this store leads now")


def append_event(
    connection: Connection, at: datetime, kind: str, data: Mapping[str, object]
) -> None:
    """Append an event to the event stream, in the caller's transaction."""
    connection.execute(insert(events), {"at_us": at, "kind": kind, "data": pack_json(data)})


def connect(url: str) -> Database:
    """The database at a `sqlite:///…` or `postgresql://…` URL, not touched yet; `prepare` it before
    it is read or written.
    """
    return Database(_parse(url))


def open_database(url: str, *, is_copy: bool = False) -> Database:
    """Open, create or bring over the database at a `sqlite:///…` or `postgresql://…` URL (see
    `Database.prepare`). Raises StoreError.
    """
    database = connect(url)
    try:
        database.prepare(is_copy=is_copy)
    except StoreError:
        database.close()
        raise
    return database


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StoreError(
            "store.url is not a URL; write sqlite:///path/to/ledger.db or"
            " postgresql://user@host/name"
        ) from error
    kind = parsed.get_backend_name()
    if kind == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if kind != "sqlite":
        raise StoreError(
            f"store.url names the database kind {kind}; only sqlite and postgresql are known"
        )
    if _file_of(parsed) is None:
        raise StoreError(
            "store.url names a database in memory; turns must outlive the program: write"
            " sqlite:///path/to/ledger.db"
        )
    return parsed.set(drivername="sqlite+pysqlite")


def _file_of(url: URL) -> Path | None:
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return None
    return Path(str(url.database))


def _create_private(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # SQLite gives -wal and -shm the mode of the main file. One that is there is not opened: closing
    # it would drop SQLite's locks.
    if not path.exists():
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT, 0o600))


Identity: TypeAlias = tuple[tuple[int, int] | None, ...]
"""Device and inode of the database file, its write-ahead log and its shared memory; None for one
that is not there.

A database file of no bytes counts as not there: it was truncated. Its content is not looked at,
because closing the file afterwards would drop SQLite's locks."""

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
    """What was done about removed files; `written` identifies the new database file, if one was
    written.
    """

    what: str
    written: tuple[int, int] | None = None


def rescue(connection: sqlite3.Connection, path: Path, opened: Identity) -> Rescued:
    """Write what the connection still sees back to disk, while no other connection of this process
    is open. Always to a new file: a database that lost only its log would otherwise share it or its
    memory with those who still have the removed ones open."""
    found = identify(str(path))
    has_file = found[0] == opened[0]
    if has_file:
        connection.execute(
            "PRAGMA wal_checkpoint(TRUNCATE)"
        )  # durable at once, even if the copy fails
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if has_file or not path.exists() or path.stat().st_size == 0:
        what = "write-ahead log had been removed" if has_file else "database file had been removed"
        write: Callable[[sqlite3.Connection, Path], tuple[int, int]] = copy_database
        if not has_file and path.exists():
            what, write = "database file had been truncated to 0 bytes", _copy_truncated
        return Rescued(f"its {what}; everything was written anew", write(connection, path))
    target = path.with_name(f"{path.name}.rescued-{local_now():%Y%m%d-%H%M%S}")
    copy_database(connection, target)
    for suffix, mine, now in zip(SUFFIXES[1:], opened[1:], found[1:], strict=True):
        if mine == now:  # SQLite would take our log for the new file's
            path.with_name(path.name + suffix).unlink(missing_ok=True)
    return Rescued(f"its file had been replaced; what it held before is in {target}")


def _copy_truncated(connection: sqlite3.Connection, path: Path) -> tuple[int, int]:
    """Copy to the path, unless what a truncated file held is neither in the log nor in the
    connection's cache.
    """
    try:
        return copy_database(connection, path, verify=True)
    except sqlite3.Error as error:
        if isinstance(
            error, sqlite3.OperationalError
        ):  # such as a full disk: the next attempt may succeed
            raise
        raise StoreError(
            f"{path} was truncated to 0 bytes and what it held cannot be read any more. Stop the"
            " program, then put a backup in its place with `metaclaw store restore`, or delete the"
            " file to begin anew"
        ) from error


def copy_database(
    source: sqlite3.Connection, target: Path, *, verify: bool = False
) -> tuple[int, int]:
    """Write one moment of a database to a file, durably, and put it at `target` when it is
    complete. Returns device and inode. With `verify`, raises sqlite3.DatabaseError if the copy is
    damaged."""
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
    """Give a complete database file its name, durably. A log beside the target belongs to what was
    there before.
    """
    sync_path(partial)
    found = partial.stat()
    for suffix in SUFFIXES[1:]:
        target.with_name(target.name + suffix).unlink(missing_ok=True)
    partial.replace(target)
    sync_path(target.parent)
    return found.st_dev, found.st_ino

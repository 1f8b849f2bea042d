"""The size of the database: keeping it below a limit, and giving space that is no longer used back to the disk."""

import logging
import sqlite3
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy import Connection, exists, select

from metaclaw.domain.ids import SessionId
from metaclaw.domain.status import StoreSize
from metaclaw.store.database import Database, store_errors, utc_now
from metaclaw.store.forgetting import SqlForgetting
from metaclaw.store.integrity import quick_check
from metaclaw.store.records import BatchState
from metaclaw.store.rows import pack_instant, unpack_text
from metaclaw.store.schema import batch_turns, batches, sessions, turns

log = logging.getLogger(__name__)

_ROOM = 0.9
"""Share of the limit down to which sessions are removed, so that it is not reached again at once."""
_IDLE = timedelta(days=1)
_SESSIONS_AT_ONCE = 50
_PAGES_AT_ONCE = 512
_FREE_PAGES = 64
"""Free pages that stay in the file for what is recorded next."""
_CHECK_S = 120.0
"""Longest that a check for damage may take: while it reads, the log cannot be emptied."""


class SqlUpkeep:
    """Measures a database and makes room in it. Blocks, but holds the write lock only for moments."""

    def __init__(self, database: Database, max_bytes: int = 0, now: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._forgetting = SqlForgetting(database)
        self._max_bytes = max_bytes
        self._now = now
        self.removed_sessions = 0
        """Sessions removed to make room, since the start."""

    def size(self) -> StoreSize:
        """How large the database is and may become."""
        with self._database.reading("measuring the store") as connection:
            size_bytes, free_bytes = _measure(connection)
        return StoreSize(size_bytes, free_bytes, self._max_bytes or None, self.removed_sessions)

    def make_room(self) -> int:
        """Remove the oldest sessions if the database is larger than its limit. Returns how many went.

        Sessions that are going on stay, and so do those whose turns are being trained on. What was learned from the others stays.
        """
        removed = 0
        excess: str | None = None
        if self._max_bytes and self._used() > self._max_bytes:
            while (used := self._used()) > self._max_bytes * _ROOM:
                if not (found := self._oldest()):
                    log.warning("store is over its limit and holds nothing to remove bytes=%d limit=%d", used, self._max_bytes)
                    if used > self._max_bytes:
                        excess = self._describe_excess(used)
                    break
                for session in found:
                    self._forgetting.drop_session(session)
                    removed += 1
                    if self._used() <= self._max_bytes * _ROOM:
                        break
        if excess is not None:
            self._database.notices["limit"] = excess
        else:
            self._database.notices.pop("limit", None)
        self.removed_sessions += removed
        if removed:
            log.info("oldest sessions removed to keep the store below its limit sessions=%d limit=%d", removed, self._max_bytes)
        return removed

    def check(self) -> None:
        """Look for damage and note it. Recording goes on: what can be written can be read again."""
        if self._database.kind != "sqlite":
            return
        deadline_s = time.monotonic() + _CHECK_S

        def is_over() -> bool:
            return time.monotonic() > deadline_s or self._database.refusal is not None

        with self._database.reading("checking the store") as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            problem = quick_check(driver, is_over)
        if problem is not None:
            self._database.notices["damage"] = (
                f"the database is damaged ({problem}); recording goes on, but some of it cannot be read."
                " Run `metaclaw stop`, then `metaclaw store repair`, which saves what can be read"
            )
            log.error("store is damaged; stop the program and run `metaclaw store repair` problem=%s", problem)

    def give_back(self) -> int:
        """Return free pages of the file to the disk, a few at a time. Returns how many bytes."""
        with self._database.reading("measuring the store") as connection:
            before, _ = _measure(connection)
            if self._database.kind != "sqlite" or connection.exec_driver_sql("PRAGMA auto_vacuum").scalar() != _INCREMENTAL:
                return 0
        while True:
            began_s = time.monotonic()
            with self._database.writing("giving free space back") as connection:
                free = connection.exec_driver_sql("PRAGMA freelist_count").scalar() or 0
                if free <= _FREE_PAGES:
                    break
                # One row for each page, which has to be fetched for the page to go.
                cursor = connection.connection.cursor()
                cursor.execute(f"PRAGMA incremental_vacuum({min(_PAGES_AT_ONCE, free - _FREE_PAGES)})")
                cursor.fetchall()
            # Give writers that wait for the lock the time to wake up and take it.
            time.sleep(min(0.05, time.monotonic() - began_s))
        return max(0, before - self.size().size_bytes)

    def _describe_excess(self, used: int) -> str:
        return (
            f"the store is over its limit (store.max_gb): it holds {used / 1e9:.3g} of {self._max_bytes / 1e9:g} GB. Nothing is"
            " removed, because every session is going on, was used within the last day, or is being trained on"
        )

    def _used(self) -> int:
        found = self.size()
        return found.size_bytes - found.free_bytes

    def _oldest(self) -> list[SessionId]:
        is_over = sessions.c.ended_us.is_not(None) | (sessions.c.last_us < pack_instant(self._now() - _IDLE))
        is_training = exists(
            select(turns.c.seq)
            .join(batch_turns, batch_turns.c.turn == turns.c.seq)
            .join(batches, batches.c.seq == batch_turns.c.batch)
            .where(turns.c.session == sessions.c.id, batches.c.state == BatchState.OPEN.value)
        )
        query = select(sessions.c.id).where(is_over, ~is_training).order_by(sessions.c.last_us).limit(_SESSIONS_AT_ONCE)
        with self._database.reading("looking for the oldest sessions") as connection:
            return [SessionId(unpack_text(found)) for found in connection.execute(query).scalars()]


_INCREMENTAL = 2


def compact(database: Database) -> None:
    """Rewrite an SQLite file of an older version, so that free space can be given back. No other program may use it."""
    with store_errors(f"rewriting {database}", database.dialect), database.engine.connect() as connection:
        cursor = connection.connection.cursor()
        if cursor.execute("PRAGMA auto_vacuum").fetchone() != (_INCREMENTAL,):
            cursor.execute("PRAGMA auto_vacuum = INCREMENTAL")
            cursor.execute("VACUUM")


def _measure(connection: Connection) -> tuple[int, int]:
    if connection.dialect.name == "postgresql":
        return connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar() or 0, 0
    page, pages, free = (
        connection.exec_driver_sql(f"PRAGMA {name}").scalar() or 0 for name in ("page_size", "page_count", "freelist_count")
    )
    return page * pages, page * free

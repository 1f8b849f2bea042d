"""Delete turns older than the configured number of days; what was learned from them stays.

Deleting cannot be undone and a wall clock can be wrong, so a clock that jumped is not believed at once: if it is more than a day
ahead of the last time retention ran, nothing is deleted until it has stayed ahead for a day. A clock that comes back is believed
at once, since an earlier time only deletes less.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import anyio
from anyio.to_thread import run_sync

from metaclaw.store import LedgerReader, SqlCursors, SqlForgetting

log = logging.getLogger(__name__)

TRUSTED_CURSOR: Final = "retention"
"""When retention last ran, in microseconds since 1970."""
DOUBTED_CURSOR: Final = "retention doubts"
"""When it first saw the clock it does not believe yet; 0 while it believes the clock."""
_EVERY_S: Final = 3_600.0
_EVERY_DOUBTED_S: Final = 60.0
_DAY: Final = timedelta(days=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)


class Retention:
    """Runs once an hour, and once a minute while the clock is doubted."""

    def __init__(
        self,
        forgetting: SqlForgetting,
        cursors: SqlCursors,
        reader: LedgerReader,
        days: int,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._forgetting = forgetting
        self._cursors = cursors
        self._reader = reader
        self._days = days
        self._now = now
        self.trouble: str | None = None
        """Why nothing is deleted now, for `status`; None where everything is in order."""

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self.look()
            await anyio.sleep(_EVERY_S if self.trouble is None else _EVERY_DOUBTED_S)

    async def look(self) -> None:
        """Delete what is too old, unless the clock may be wrong."""
        now = self._now()
        trouble = await run_sync(self._doubt, now)
        if trouble is not None and self.trouble is None:
            log.warning("retention_waits reason=%s", trouble)
        self.trouble = trouble
        if trouble is not None:
            return
        gone = await run_sync(self._forgetting.forget_before, now - timedelta(days=self._days))
        if gone.turns:
            log.info("forgotten turns=%d sessions=%d older_than_days=%d", gone.turns, gone.sessions, self._days)

    def _doubt(self, now: datetime) -> str | None:
        """Why this clock is not believed, or None. Blocks."""
        trusted, doubted = self._time(TRUSTED_CURSOR), self._time(DOUBTED_CURSOR)
        if trusted is None:
            # Kept, because later turns may come with the time of a clock that is wrong.
            trusted = self._reader.last_received() or now
            self._keep(TRUSTED_CURSOR, trusted)
        if now > trusted + _DAY and (doubted is None or now < doubted + _DAY):
            if doubted is None or now < doubted:
                doubted = now
                self._keep(DOUBTED_CURSOR, now)
            return (
                f"deletes nothing until {doubted + _DAY:%Y-%m-%d %H:%M} UTC: the clock is {(now - trusted).days} days ahead of when"
                " retention last ran, so it may be wrong. If it is right, do nothing; else set the clock"
            )
        self._keep(TRUSTED_CURSOR, now)
        if doubted is not None:
            self._keep(DOUBTED_CURSOR, _EPOCH)
        return None

    def _time(self, cursor: str) -> datetime | None:
        at_us = self._cursors.cursor(cursor)
        return _EPOCH + at_us * _US if at_us else None

    def _keep(self, cursor: str, at: datetime) -> None:
        self._cursors.move_cursor(cursor, (at - _EPOCH) // _US)

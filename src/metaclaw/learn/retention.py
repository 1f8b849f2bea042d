"""Forgetting by age: turns older than the configured days go; what was learned from them stays."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import anyio
from anyio.to_thread import run_sync

from metaclaw.store import SqlForgetting

log = logging.getLogger(__name__)

_EVERY_S: Final = 3_600.0


class Retention:
    """Looks once an hour."""

    def __init__(self, forgetting: SqlForgetting, days: int, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._forgetting = forgetting
        self._days = days
        self._now = now

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await anyio.sleep(_EVERY_S)

    async def look(self) -> None:
        """Forget what is too old."""
        gone = await run_sync(self._forgetting.forget_before, self._now() - timedelta(days=self._days))
        if gone.turns:
            log.info("forgotten turns=%d sessions=%d older_than_days=%d", gone.turns, gone.sessions, self._days)

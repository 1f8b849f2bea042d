"""Upkeep of the store: its size is kept below the limit, unused space is given back to the disk, and damage is looked for."""

import logging
import time
from typing import Final

import anyio
from anyio.to_thread import run_sync

from metaclaw.store import SqlUpkeep

log = logging.getLogger(__name__)

_FIRST_S: Final = 2.0
_EVERY_S: Final = 60.0
_CHECK_EVERY_S: Final = 86_400.0


class Upkeep:
    """Looks at the size once a minute and for damage once a day, in a thread."""

    def __init__(self, store: SqlUpkeep) -> None:
        self._store = store
        self._check_due_s = 0.0

    async def run(self) -> None:
        """Until cancelled."""
        await anyio.sleep(_FIRST_S)
        while True:
            if time.monotonic() >= self._check_due_s:
                self._check_due_s = time.monotonic() + _CHECK_EVERY_S
                await run_sync(self._store.check)
            await self.look()
            await anyio.sleep(_EVERY_S)

    async def look(self) -> None:
        """Remove what is over the limit, then shrink the file."""
        await run_sync(self._store.make_room)
        if given := await run_sync(self._store.give_back):
            log.info("unused space given back bytes=%d", given)

"""Upkeep of the store: its size is kept below the limit, and unused space is given back to the disk."""

import logging
from typing import Final

import anyio
from anyio.to_thread import run_sync

from metaclaw.store import SqlUpkeep

log = logging.getLogger(__name__)

_FIRST_S: Final = 2.0
_EVERY_S: Final = 60.0


class Upkeep:
    """Looks once a minute, in a thread."""

    def __init__(self, store: SqlUpkeep) -> None:
        self._store = store

    async def run(self) -> None:
        """Until cancelled."""
        await anyio.sleep(_FIRST_S)
        while True:
            await self.look()
            await anyio.sleep(_EVERY_S)

    async def look(self) -> None:
        """Remove what is over the limit, then shrink the file."""
        await run_sync(self._store.make_room)
        if given := await run_sync(self._store.give_back):
            log.info("unused space given back bytes=%d", given)

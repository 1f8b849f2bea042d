"""Several programs on one store: every one serves, one leads the learning, and a change that one
makes reaches the others within a second.

Changes are found by asking the store for a few numbers: a notification of PostgreSQL would take a
lock that all its commits share, does not pass through pgbouncer, and SQLite has none."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import anyio
from anyio.to_thread import run_sync

from metaclaw.errors import MetaClawError, StoreError
from metaclaw.learn import Supervisor
from metaclaw.store import Database, Leadership, SharedState, carrying, shared_state

log = logging.getLogger(__name__)

_CLAIM_EVERY_S: Final = 0.5
_LOOK_EVERY_S: Final = 0.25
_ALONE_LOOK_EVERY_S: Final = 1.0
"""Homes on one SQLite file, of which each serves its own sessions."""
_RESIGN_WITHIN_S: Final = 1.0


class Leading:
    """Leads whenever no other program does: what `begin` starts runs meanwhile."""

    def __init__(self, database: Database, begin: Callable[[Supervisor], None]) -> None:
        self._leadership = Leadership(database)
        self._begin = begin
        self.supervisor: Supervisor | None = None
        """While this program leads: the loops that only a leader runs."""
        self._has_claimed = anyio.Event()

    async def is_leading(self) -> bool:
        """Whether this program leads, once it has tried to."""
        await self._has_claimed.wait()
        return self.supervisor is not None

    async def run(self) -> None:
        """Claim the lead, and lead for as long as it has it, until cancelled."""
        while True:
            epoch: int | None = None
            with suppress(StoreError):  # its health is shown elsewhere
                epoch = await run_sync(self._leadership.claim)
            if epoch is None:
                self._has_claimed.set()
            else:
                log.info("leads epoch=%d", epoch)
                await self._lead(epoch)
                log.warning("leads_no_more epoch=%d; another program on this store does", epoch)
            await anyio.sleep(_CLAIM_EVERY_S)

    async def _lead(self, epoch: int) -> None:
        try:
            async with anyio.create_task_group() as group:
                self.supervisor = Supervisor(group)
                with carrying(epoch):
                    self._begin(self.supervisor)
                self._has_claimed.set()
                while await self._still_leads():
                    await anyio.sleep(_CLAIM_EVERY_S)
                group.cancel_scope.cancel()
        finally:
            self.supervisor = None
            with anyio.move_on_after(_RESIGN_WITHIN_S, shield=True), suppress(StoreError):
                await run_sync(self._leadership.resign, abandon_on_cancel=True)

    async def _still_leads(self) -> bool:
        """False once another program leads. While the store cannot be asked, nothing can be written
        there, by this program or another.
        """
        try:
            return await run_sync(self._leadership.claim) is not None
        except StoreError as error:
            log.debug("lead_unknown reason=%s", error)
            return True


@dataclass(eq=False)
class Following:
    """Looks at the store for what other programs have changed. `changed` is called with the state
    before and now, until it succeeds.
    """

    database: Database
    changed: Callable[[SharedState, SharedState], Awaitable[None]]
    _known: SharedState | None = field(default=None, init=False)

    async def run(self) -> None:
        """Look again and again until cancelled."""
        pause_s = _LOOK_EVERY_S if self.database.is_shared else _ALONE_LOOK_EVERY_S
        while True:
            try:
                now = await run_sync(shared_state, self.database)
                if self._known is not None and now != self._known:
                    await self.changed(self._known, now)
                self._known = now
            except MetaClawError as error:
                log.debug("changes_unread reason=%s", error)
            await anyio.sleep(pause_s)

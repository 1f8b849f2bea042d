"""The requests of keys with limits, counted together with the other programs on the store.

A program takes shares: it counts an eighth of the requests that are left as used, answers that many
without asking again, and gives back what was not needed for a second. So all programs together
answer no more than the limit, and only one request in many waits for the store. While the store
does not answer, each program counts by itself, and the store learns of it with the next share."""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Final

from anyio.to_thread import run_sync

from metaclaw.domain.person import Limit, Person, period_of
from metaclaw.errors import StoreError
from metaclaw.store import SqlKeys

log = logging.getLogger(__name__)

_PATIENCE_S: Final = 2.0
"""A request waits no longer for the store."""


class RequestShares:
    """This program's shares of what people may ask."""

    def __init__(self, stored: SqlKeys) -> None:
        self._stored = stored
        self._shares: dict[tuple[str, str], _Share] = {}

    async def take(self, person: Person, now: datetime) -> Limit | None:
        """Count a request; or the limit that it would exceed."""
        shares = [self._share(person.name, limit, now) for limit in _counted(person)]
        # Once nothing is awaited any more, no other request can take what was found.
        while (empty := next((one for one in shares if not one.left), None)) is not None:
            if not await empty.fill():
                return empty.limit
        for share in shares:
            share.left -= 1
            share.answered += 1
        return None

    def used(self, person: Person, now: datetime) -> dict[str, float]:
        """How many requests of each limit are used, as far as is known here. Blocks."""
        return {str(limit): self._used(person.name, limit, now) for limit in _counted(person)}

    async def settle(self, now: datetime | None = None) -> None:
        """Give back what was not needed since the last time; without `now`, all that is left."""
        for key, share in list(self._shares.items()):
            if now is not None and now >= share.end:
                del self._shares[key]
            else:
                await share.settle(is_last=now is None)

    def _used(self, user: str, limit: Limit, now: datetime) -> float:
        begin, _ = period_of(now, limit.period)
        mine = self._shares.get((user, limit.period))
        if mine is not None and mine.begin != begin:
            mine = None
        try:
            stored = self._stored.requests_used(user, limit, begin)
        except StoreError:
            return 0.0 if mine is None else mine.answered
        return stored if mine is None else stored - mine.left + mine.owed

    def _share(self, user: str, limit: Limit, now: datetime) -> "_Share":
        begin, end = period_of(now, limit.period)
        key = (user, limit.period)
        found = self._shares.get(key)
        if found is None or (found.limit, found.begin) != (limit, begin):
            found = self._shares[key] = _Share(self._stored, user, limit, begin, end)
        return found


def _counted(person: Person) -> Iterator[Limit]:
    return (limit for limit in person.limits if limit.used == "requests")


class _Share:
    """What this program may answer of one limit in one period. `left` is what it may still."""

    def __init__(
        self, stored: SqlKeys, user: str, limit: Limit, begin: datetime, end: datetime
    ) -> None:
        self.limit, self.begin, self.end = limit, begin, end
        self.left = 0
        self.answered = 0
        self._stored, self._user = stored, user
        self.owed = 0
        """Answered without the store, which does not know of it yet."""
        self._asking: asyncio.Task[None] | None = None
        self._asked_s = 0.0
        self._refused: bool | None = None
        """What came of asking the store, which is not asked again within a second: that none is
        left, or (False) an error.
        """
        self._settled = 0

    async def fill(self) -> bool:
        """Have at least one left; False if the limit is reached."""
        # Others that waited may have taken what the store gave.
        while not self.left and self._refused is None:
            if self._asking is None:
                self._asked_s = time.monotonic()
                self._asking = asyncio.create_task(self._ask())
            wait_s = max(0.0, self._asked_s + _PATIENCE_S - time.monotonic())
            _, waiting = await asyncio.wait([self._asking], timeout=wait_s)
            if waiting:
                break
        if not self.left and not self._refused and self.answered + 1 <= self.limit.most:
            self.left += 1
            self.owed += 1
        return self.left > 0

    async def _ask(self) -> None:
        owed = self.owed
        try:
            reserve = self._stored.reserve_requests
            found = await run_sync(reserve, self._user, self.limit, self.begin, owed)
        except StoreError as error:
            log.debug("requests_counted_alone reason=%s", error)
            self._refused = False
        else:
            self.owed -= owed
            self.left += found
            self._refused = None if found else True
        finally:
            self._asking = None

    async def settle(self, *, is_last: bool) -> None:
        self._refused = None
        is_idle, self._settled = self._settled == self.answered, self.answered
        if not self.left or not (is_idle or is_last):
            return
        unused, self.left = self.left, 0
        with suppress(StoreError):
            await run_sync(self._stored.return_requests, self._user, self.limit, self.begin, unused)
            return
        self.left += unused

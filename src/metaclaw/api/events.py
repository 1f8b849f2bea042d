"""The stream of events (`/api/events`): each client gets the ledger's events as server-sent events,
one reader for all of them.
"""

import asyncio
import logging
import random
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Final, TypeAlias, TypeVar

import anyio
import anyio.to_thread

from metaclaw.errors import OUT_OF_RESOURCES, StoreError
from metaclaw.store import LedgerEvent, LedgerReader
from metaclaw.wires import encode_json

log = logging.getLogger(__name__)

_POLL_S: Final = 0.25
_BEAT_S: Final = 15.0
_MAX_SUBSCRIBERS: Final = 1024
_PAGE: Final = 100
_KEPT: Final = 1000
_WOKEN_AT_ONCE: Final = 64
_UNKNOWN: Final = sys.maxsize
_HELLO: Final = b": events of MetaClaw\n: from %d\n\n"
_BEAT: Final = b": still here\n\n"
_T = TypeVar("_T")
Filter: TypeAlias = Callable[[Sequence[LedgerEvent]], Sequence[LedgerEvent]]
"""Chooses the events that a subscriber may see. Blocks."""
_Sent: TypeAlias = tuple[int, bytes, LedgerEvent]
"""An event's cursor, and its bytes."""


class EventFeed:
    """Polls the store for new events while there are subscribers, and wakes them. The newest events
    are kept in memory. A subscriber is only a cursor: if it is further behind, because it resumes
    or reads slowly, it reads from the store until it has caught up."""

    def __init__(
        self,
        reader: LedgerReader,
        *,
        max_subscribers: int = _MAX_SUBSCRIBERS,
        poll_s: float = _POLL_S,
        beat_s: float = _BEAT_S,
    ) -> None:
        """The store is polled every `poll_s`; a subscriber gets at least a comment every
        `beat_s`.
        """
        self.max_subscribers = max_subscribers
        self._reader = reader
        self._poll_s = poll_s
        self._beat_s = beat_s
        self._subscribers = 0
        self._polling: asyncio.Task[None] | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._recent: deque[_Sent] = deque()
        self._since = _UNKNOWN
        """Every event behind this cursor is in `_recent`."""
        self._threads = anyio.CapacityLimiter(2)
        self.trouble: str | None = None
        """Why no events are sent now, or None."""

    @property
    def is_full(self) -> bool:
        """Whether no further subscriber is accepted."""
        return self._subscribers >= self.max_subscribers

    async def newest(self) -> int:
        """The cursor of the newest event. Raises StoreError."""
        return await anyio.to_thread.run_sync(self._reader.last_event, limiter=self._threads)

    async def follow(self, after: int, own: Filter | None = None) -> AsyncGenerator[bytes, None]:
        """Yield events behind the cursor `after`, then new ones as they come, and a comment after a
        long silence; of the events only those that `own` lets through. The first comment names the
        cursor, from which a client that has seen no event can resume."""
        self._subscribers += 1
        if self._polling is None:
            self._polling = asyncio.create_task(self._poll())
        try:
            yield _HELLO % after
            while True:
                since = self._since
                found = self._newer(after) if after >= since else await self._read(after)
                if found:
                    shown = [event for *_, event in found]
                    kept = shown if own is None else await self._try(partial(own, shown))
                    if kept is None:
                        await asyncio.sleep(self._poll_s)
                        continue
                    after, wanted = found[-1][0], {event.seq for event in kept}
                    if wanted:
                        yield b"".join([data for seq, data, _ in found if seq in wanted])
                elif found is not None and after < since < _UNKNOWN:
                    after = since  # no event in between
                elif self._since == since and not await self._woken():
                    yield _BEAT
        finally:
            self._subscribers -= 1
            if not self._subscribers:
                self._stop_polling()

    def _newer(self, after: int) -> list[_Sent]:
        found: list[_Sent] = []
        for sent in reversed(self._recent):
            if sent[0] <= after:
                break
            found.append(sent)
        found.reverse()
        return found

    async def _woken(self) -> bool:
        """Wait for new events; False if none come for about `beat_s`, a random time, so that not
        all subscribers wake at once.
        """
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            async with asyncio.timeout(self._beat_s * random.uniform(0.75, 1)):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(waiter)
        return True

    async def _poll(self) -> None:
        while (last := await self._try(self._reader.last_event)) is None:
            await asyncio.sleep(self._poll_s)
        self._since = last
        await self._wake()
        while True:
            found = await self._read(last)
            if not found:
                await asyncio.sleep(self._poll_s)
                continue
            last = found[-1][0]
            self._recent.extend(found)
            while len(self._recent) > _KEPT:
                self._since = self._recent.popleft()[0]
            await self._wake()

    async def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for number, waiter in enumerate(waiting, 1):
            if not waiter.done():
                waiter.set_result(None)
            if number % _WOKEN_AT_ONCE == 0:
                await asyncio.sleep(0)  # lets requests run in between

    def _stop_polling(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            self._polling = self.trouble = None
        self._recent.clear()
        self._since = _UNKNOWN

    async def _read(self, after: int) -> list[_Sent] | None:
        events = await self._try(partial(self._reader.events, after, _PAGE))
        return None if events is None else [(event.seq, _as_sent(event), event) for event in events]

    async def _try(self, read: Callable[[], _T]) -> _T | None:
        """Read in a thread; None if the store cannot be read now, which `trouble` then says."""
        try:
            value = await anyio.to_thread.run_sync(read, limiter=self._threads)
        except (StoreError, *OUT_OF_RESOURCES) as error:
            self.trouble = f"failed: {error}; trying again"
            log.debug("events_unread reason=%s", error)
            return None
        self.trouble = None
        return value


def _as_sent(event: LedgerEvent) -> bytes:
    data = encode_json({"at": event.at.isoformat(), **event.data})
    return f"id: {event.seq}\nevent: {event.kind}\ndata: ".encode() + data + b"\n\n"

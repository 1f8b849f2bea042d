"""Whether a provider accepts connections, found out without a request. Nothing is sent."""

import asyncio
import time
from typing import Protocol

from metaclaw.errors import UpstreamError


class Reachable(Protocol):
    """A provider over a network."""

    @property
    def open_connections(self) -> int: ...
    async def reach(self, within_s: float) -> None: ...


class ProviderReachability:
    """Tries to connect now and then, when asked, and remembers how that went."""

    def __init__(self, provider: Reachable, *, keep_s: float = 5.0, patience_s: float = 0.5, within_s: float = 5.0) -> None:
        """A result is good for `keep_s`. A caller waits at most `patience_s` for a new one, which may take `within_s`."""
        self._provider = provider
        self._keep_s, self._patience_s, self._within_s = keep_s, patience_s, within_s
        self._trouble: str | None = None
        self._known_at: float | None = None
        self._trying: asyncio.Task[None] | None = None

    @property
    def is_known(self) -> bool:
        """Whether a try has ended lately."""
        return self._known_at is not None and time.monotonic() - self._known_at < self._keep_s + self._within_s

    async def trouble(self) -> str | None:
        """Why it accepts no connection, as far as is known; None where it does."""
        if self._provider.open_connections:
            self._trouble, self._known_at = None, time.monotonic()
        elif self._known_at is None or time.monotonic() - self._known_at >= self._keep_s:
            if self._trying is None or self._trying.done():
                self._trying = asyncio.create_task(self._try())
            await asyncio.wait([self._trying], timeout=self._patience_s)
        return self._trouble

    async def _try(self) -> None:
        try:
            await self._provider.reach(self._within_s)
        except UpstreamError as error:
            self._trouble = str(error)
        else:
            self._trouble = None
        self._known_at = time.monotonic()

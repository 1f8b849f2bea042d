"""Slow down clients that send wrong keys, each address by itself."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

_FREE: Final = 10
"""Wrong keys that are answered at once."""
_FORGET_S: Final = 60.0
_FIRST_S: Final = 0.1
_LONGEST_S: Final = 1.0
_MOST_ADDRESSES: Final = 1024


class WrongKeys:
    """Counts wrong keys by address, until none came for a minute. A right key is never delayed,
    whatever its address has sent: all programs of a machine share one address."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str | None, tuple[int, float]] = {}

    async def slow_down(self, address: str | None) -> None:
        """Call this before a wrong key is refused."""
        await asyncio.sleep(self.count(address))

    def count(self, address: str | None) -> float:
        """Count a wrong key; return how many seconds its refusal must wait."""
        number, at = self._seen.pop(address, (0, 0.0))
        now = self._clock()
        number = number + 1 if now - at < _FORGET_S else 1
        self._seen[address] = number, now  # last, so that the first is the one to forget
        if len(self._seen) > _MOST_ADDRESSES:
            del self._seen[next(iter(self._seen))]
        doublings = min(number - _FREE - 1, 10)
        return 0.0 if doublings < 0 else min(_FIRST_S * 2**doublings, _LONGEST_S)

"""Requests that come together are prepared in step: all are read, all recognised, all get their skills, all are sent on.

A request goes through much code once. Run for one request after another, the code of one stage is still in the processor's
caches when the next request comes to it.
"""

import types
from collections.abc import Generator
from typing import Final

MAX_ABREAST: Final = 32
"""More would wait too long for each other, and push each other's data out of the caches."""


class Ranks:
    """Where requests wait for those beside them."""

    def __init__(self) -> None:
        self.arriving = 0
        """Requests that have come, and that nobody has begun to read."""
        self._waiting = 0

    @property
    def in_company(self) -> bool:
        """Whether somebody else has come in the same moment. Whoever is alone has nobody to wait for."""
        return self.arriving > 0 or self._waiting > 0

    async def step(self) -> None:
        """Let the others that are ready come as far; one too many does not wait."""
        if self._waiting >= MAX_ABREAST:
            return
        self._waiting += 1
        try:
            await _one_round()
        finally:
            self._waiting -= 1


@types.coroutine
def _one_round() -> Generator[None]:
    """Go on when the event loop has been round once; `asyncio.sleep(0)` does the same in more time."""
    yield

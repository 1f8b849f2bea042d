"""Pieces of work that fit into a window: one that cannot stand still is begun only where it will very likely end before the window
does.

How long a piece takes is known from those of its kind before it. One that can stand still in the middle (`Abilities.yields`)
loses nothing when a window shuts, and is begun in any. One for which three windows were too short is begun all the same: some
waste is better than no progress.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import anyio

from metaclaw.domain.training import Window
from metaclaw.ports import Windows

log = logging.getLogger(__name__)

_REMEMBERED: Final = 8
_MOST_PASSED_OVER: Final = 3
_ASK_AGAIN_S: Final = 30.0
"""Poll interval: the longer a person is away, the longer they will likely stay, so a window may prove long enough after all."""


class Pace:
    """How long pieces take, and whether there is room for one."""

    def __init__(self, windows: Windows, *, yields: bool, now: Callable[[], float] = time.monotonic) -> None:
        self._windows = windows
        self._yields = yields
        self._now = now
        self._took: dict[str, deque[float]] = {}

    def expected_s(self, kind: str) -> float | None:
        """The longest that the last pieces of this kind took; None where there was none."""
        return max(self._took[kind]) if kind in self._took else None

    @contextmanager
    def timed(self, kind: str) -> Iterator[None]:
        """Remember how long a piece takes that is done in this block. One that fails says nothing."""
        began = self._now()
        yield
        self._took.setdefault(kind, deque(maxlen=_REMEMBERED)).append(self._now() - began)

    async def room_for(self, kind: str) -> None:
        """Wait for a window in which a piece of this kind may be begun."""
        passed_over: set[Window] = set()
        while True:
            window = await self._windows.until_open()
            expected_s = self.expected_s(kind)
            if self._yields or expected_s is None or self._windows.has_room(expected_s):
                return
            passed_over.add(window)
            if len(passed_over) > _MOST_PASSED_OVER:
                log.info("piece_begun_without_room kind=%s expected_s=%.1f", kind, expected_s)
                return
            log.info("window_too_short kind=%s expected_s=%.1f", kind, expected_s)
            with anyio.move_on_after(_ASK_AGAIN_S):
                await self._other_than(window)

    async def _other_than(self, window: Window) -> None:
        while self._windows.window == window:
            await anyio.sleep(0.2)

"""Supervise background loops: restart one that fails, with a growing pause, and report it in `status`."""

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from anyio.abc import TaskGroup

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 60.0


class Supervisor:
    """Run loops in one task group. One that returns is done; one that raises is restarted.

    The pause before a restart doubles each time, and begins anew once the loop has run for a minute or has made progress.
    """

    def __init__(
        self,
        group: TaskGroup,
        *,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group = group
        self._sleep = sleep
        self._now = now
        self._states: dict[str, str] = {}

    @property
    def states(self) -> dict[str, str]:
        """Each loop's name and state: running, done, or why it failed and when it is restarted."""
        return dict(self._states)

    def run(self, name: str, loop: Callable[[], Awaitable[None]], progress: Callable[[], int] = lambda: 0) -> None:
        """Start a loop under this name. `progress` counts what the loop has finished."""
        self._states[name] = "running"
        self._group.start_soon(self._keep, name, loop, progress)

    async def _keep(self, name: str, loop: Callable[[], Awaitable[None]], progress: Callable[[], int]) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            began_s, finished = self._now(), progress()
            try:
                await loop()
            except Exception as error:
                if self._now() - began_s > _LONGEST_PAUSE_S or progress() > finished:
                    pause_s = _FIRST_PAUSE_S
                log.exception("loop_failed loop=%s again_in_s=%g", name, pause_s)
                self._states[name] = f"failed: {type(error).__name__}: {error}; restarting in {pause_s:g} s"
            else:
                self._states[name] = "done"
                return
            await self._sleep(pause_s)
            self._states[name] = "running"
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


class LoopWakeup:
    """One waiter and any number of notifiers, all on one event loop."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def notify(self) -> None:
        """Wake the waiter, now or at its next wait."""
        self._event.set()

    @property
    def is_set(self) -> bool:
        """Whether there was a notification since the last wait ended."""
        return self._event.is_set()

    async def wait(self, at_most_s: float) -> None:
        """Return at the next notification, at once if there was one since the last wait, or after `at_most_s`."""
        with anyio.move_on_after(at_most_s):
            await self._event.wait()
        self._event = anyio.Event()


TURNS_CURSOR: Final = "sensing"
"""The name of the cursor behind which every turn has been sensed."""
LISTEN_CURSOR: Final = "listening"
"""The name of the cursor behind which every message of a person has been read."""
ENDS_CURSOR: Final = "sensing session ends"
"""The name of the cursor behind which the end of every session has been looked at."""


class LoopProgress:
    """A point that moves forward, held back by the oldest thing that is still under way."""

    def __init__(self, reached: int = 0) -> None:
        self._reached = reached
        self._under_way: Counter[int] = Counter()

    @property
    def reached(self) -> int:
        """Up to where everything has been taken up."""
        return self._reached

    @property
    def settled(self) -> int:
        """Up to where everything is done: a reader that begins behind this point misses nothing."""
        return min(self._reached, min(self._under_way, default=self._reached + 1) - 1)

    def reach(self, point: int) -> None:
        """Everything up to here has been taken up."""
        self._reached = max(self._reached, point)

    def begin(self, point: int) -> None:
        """Something of this point is under way; several things may be."""
        self._under_way[point] += 1

    def end(self, point: int) -> None:
        """It is done."""
        self._under_way[point] -= 1
        if self._under_way[point] <= 0:
            del self._under_way[point]

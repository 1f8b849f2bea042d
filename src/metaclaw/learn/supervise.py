"""Supervise background loops: restart one that fails, with a growing pause, and report it in `status`."""

import logging
import time
from collections.abc import Awaitable, Callable

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

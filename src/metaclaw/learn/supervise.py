"""Keeping background loops alive: one that fails is started again, later each time, and says so in `status`."""

import logging
import time
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 60.0


class Supervisor:
    """Runs loops in one task group. One that ends by itself is done; one that raises is started again, soon if it ran for long."""

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
        """Each loop's name and state: running, done, or why it waits."""
        return dict(self._states)

    def run(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Start a loop under this name."""
        self._states[name] = "running"
        self._group.start_soon(self._keep, name, loop)

    async def _keep(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            began = self._now()
            try:
                await loop()
            except Exception as error:
                pause_s = _FIRST_PAUSE_S if self._now() - began > _LONGEST_PAUSE_S else pause_s
                log.exception("loop_failed loop=%s again_in_s=%g", name, pause_s)
                self._states[name] = f"failed, will be tried again: {type(error).__name__}: {error}"
            else:
                self._states[name] = "done"
                return
            await self._sleep(pause_s)
            self._states[name] = "running"
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

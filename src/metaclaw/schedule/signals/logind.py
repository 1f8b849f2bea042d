"""logind's word on this user's sessions: idle, and locked. A hint, given late: idle means away, not idle means nothing."""

import time
from collections.abc import Callable
from typing import Final

from metaclaw.schedule.signals.bus import Bus, BusType, connected
from metaclaw.schedule.signals.inactivity import Report, SignalError

_NAME: Final = "org.freedesktop.login1"
_MANAGER: Final = "org.freedesktop.login1.Manager"
_SESSION: Final = "org.freedesktop.login1.Session"
_ROOT: Final = "/org/freedesktop/login1"
_LOOK_EVERY_S: Final = 20.0


class LogindInput:
    """A source of input. `clock` is the one logind measures by."""

    name = "session (logind)"
    hears_all = False
    tells_after_s = 0.0

    def __init__(self, uid: int, address: str | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._uid = uid
        self._address = address
        self._clock = clock

    async def follow(self, report: Report) -> None:
        """Report hints and locks as they change. Raises SignalError where there is no logind, or no session."""
        async with connected(BusType.SYSTEM, self._address) as bus:
            await bus.listen(f"type='signal',interface='org.freedesktop.DBus.Properties',path_namespace='{_ROOT}/session'")
            was_idle: bool | None = None
            while True:
                was_idle = await self._look(bus, report, was_idle)
                await bus.next_signal(_LOOK_EVERY_S)

    async def _look(self, bus: Bus, report: Report, was_idle: bool | None) -> bool:
        sessions = await self._sessions(bus)
        idle = [await self._idle_s(bus, path) for path in sessions]
        report.lock(all([bool(await bus.property(_NAME, path, _SESSION, "LockedHint")) for path in sessions]))
        known = [seconds for seconds in idle if seconds is not None]
        is_idle = len(known) == len(idle)
        if is_idle:
            report.idle(min(known))
        elif was_idle:
            report.input()
        return is_idle

    async def _sessions(self, bus: Bus) -> list[str]:
        (listed,) = await bus.call(_NAME, _ROOT, _MANAGER, "ListSessions")
        paths = [str(one[4]) for one in listed if one[1] == self._uid] if isinstance(listed, list) else []
        mine = [path for path in paths if await bus.property(_NAME, path, _SESSION, "Class") == "user"]
        if not mine:
            raise SignalError("logind knows no session of yours")
        return mine

    async def _idle_s(self, bus: Bus, path: str) -> float | None:
        """How long a session has been idle, None where it is not."""
        if not await bus.property(_NAME, path, _SESSION, "IdleHint"):
            return None
        since = await bus.property(_NAME, path, _SESSION, "IdleSinceHintMonotonic")
        return max(0.0, self._clock() - since / 1e6) if isinstance(since, int) else 0.0

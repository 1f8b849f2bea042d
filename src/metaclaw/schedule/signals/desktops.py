"""Input idle from desktops over D-Bus, which works under Wayland too: GNOME's idle monitor, and KDE's screen saver service."""

import time
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from metaclaw.schedule.signals.bus import Bus, BusType, connected
from metaclaw.schedule.signals.inactivity import Report, SignalError

_MUTTER: Final = "org.gnome.Mutter.IdleMonitor"
_CORE: Final = "/org/gnome/Mutter/IdleMonitor/Core"
_SAVER: Final = "org.freedesktop.ScreenSaver"
_SAVER_PATH: Final = "/org/freedesktop/ScreenSaver"
_LOOK_EVERY_S: Final = 5.0
_ASK_EVERY_S: Final = 0.7


class GnomeInput:
    """A source of input: GNOME tells of the first input after a silence."""

    name = "input (GNOME)"
    hears_all = True

    def __init__(self, address: str | None = None) -> None:
        self._address = address

    async def follow(self, report: Report) -> None:
        """Report input as it happens. Raises SignalError where this is not GNOME."""
        async with connected(BusType.SESSION, self._address) as bus:
            await bus.listen(f"type='signal',interface='{_MUTTER}',member='WatchFired',path='{_CORE}'")
            watch: object = None
            while True:
                (idle_ms,) = await bus.call(_MUTTER, _CORE, _MUTTER, "GetIdletime")
                report.idle(_number(idle_ms) / 1000)
                if watch is None:
                    (watch,) = await bus.call(_MUTTER, _CORE, _MUTTER, "AddUserActiveWatch")
                if await self._fired(bus, watch):
                    report.input()
                    watch = None

    async def _fired(self, bus: Bus, watch: object) -> bool:
        message = await bus.next_signal(_LOOK_EVERY_S)
        return message is not None and message.member == "WatchFired" and message.body == [watch]


class ScreenSaverInput:
    """A source of input: KDE (and whoever else has this service). It can only be asked, and some answer in milliseconds where the
    specification says seconds; how fast the answer grows tells which."""

    name = "input (screen saver)"
    hears_all = True

    def __init__(
        self,
        address: str | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self._address = address
        self._clock = clock
        self._sleep = sleep

    async def follow(self, report: Report) -> None:
        """Ask again and again. Raises SignalError where nobody offers the service."""
        async with connected(BusType.SESSION, self._address) as bus:
            asked_at, before, units = 0.0, 0.0, 0.0
            while True:
                (answer,) = await bus.call(_SAVER, _SAVER_PATH, _SAVER, "GetSessionIdleTime")
                now, idle = self._clock(), _number(answer)
                grown, passed = idle - before, now - asked_at
                if asked_at and not units and passed >= 2.5 and grown > 0:
                    units = 1000.0 if grown / passed > 30 else 1.0
                if not asked_at or idle < before or passed >= 2.5:
                    asked_at, before = now, idle
                if units:
                    report.idle(idle / units)
                elif idle < before:
                    report.input()
                await self._sleep(_ASK_EVERY_S)


def _number(answer: object) -> float:
    if not isinstance(answer, int):
        raise SignalError("the desktop answers with something that is no length of time")
    return float(answer)

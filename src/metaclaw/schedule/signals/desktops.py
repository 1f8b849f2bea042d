"""Input idle from desktops over D-Bus, which works under Wayland too: GNOME's idle monitor, and KDE's screen saver service."""

import time
from collections.abc import Callable
from typing import Final

import anyio

from metaclaw.schedule.signals.asking import Sleep, ask_again_and_again
from metaclaw.schedule.signals.bus import Bus, BusType, connected
from metaclaw.schedule.signals.inactivity import Report, SignalError

_MUTTER: Final = "org.gnome.Mutter.IdleMonitor"
_CORE: Final = "/org/gnome/Mutter/IdleMonitor/Core"
_SAVER: Final = "org.freedesktop.ScreenSaver"
_SAVER_PATH: Final = "/org/freedesktop/ScreenSaver"
_LOOK_EVERY_S: Final = 5.0
_LONG_ENOUGH_S: Final = 2.5


class GnomeInput:
    """A source of input: GNOME tells of the first input after a silence."""

    name = "input (GNOME)"
    hears_all = True
    tells_after_s = 0.0

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
    """A source of input: KDE (and whoever else has this service). It can only be asked."""

    name = "input (screen saver, asked)"
    hears_all = True
    tells_after_s = 0.0

    def __init__(
        self, address: str | None = None, *, clock: Callable[[], float] = time.monotonic, sleep: Sleep = anyio.sleep
    ) -> None:
        self._address = address
        self._clock = clock
        self._sleep = sleep

    async def follow(self, report: Report) -> None:
        """Ask again and again. Raises SignalError where nobody offers the service."""
        async with connected(BusType.SESSION, self._address) as bus:
            answers = _Answers()

            async def ask() -> float | None:
                (answer,) = await bus.call(_SAVER, _SAVER_PATH, _SAVER, "GetSessionIdleTime")
                return answers.seconds(_number(answer), self._clock())

            await ask_again_and_again(ask, report, sleep=self._sleep)


class _Answers:
    """Some answer in milliseconds where the specification says seconds; how fast the answer grows tells which."""

    def __init__(self) -> None:
        self._asked_at, self._before, self._units = 0.0, 0.0, 0.0

    def seconds(self, idle: float, now: float) -> float | None:
        """An answer in seconds; None while nobody knows what it means, unless it is smaller than before: there was input."""
        was_used = bool(self._asked_at) and idle < self._before
        grown, passed = idle - self._before, now - self._asked_at
        if self._asked_at and not self._units and passed >= _LONG_ENOUGH_S and grown > 0:
            self._units = 1000.0 if grown / passed > 30 else 1.0
        if not self._asked_at or was_used or passed >= _LONG_ENOUGH_S:
            self._asked_at, self._before = now, idle
        if self._units:
            return idle / self._units
        return 0.0 if was_used else None


def _number(answer: object) -> float:
    if not isinstance(answer, int):
        raise SignalError("the desktop answers with something that is no length of time")
    return float(answer)

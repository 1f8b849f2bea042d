"""Input idle on Windows: GetLastInputInfo. It can only be asked, so it is asked often; asking costs a microsecond."""

import ctypes
import sys
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from metaclaw.schedule.signals.inactivity import Report, SignalError

_ASK_EVERY_S: Final = 0.3
_WRAP: Final = 1 << 32


class _LastInput(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint), ("ticks", ctypes.c_uint))


class WindowsInput:
    """A source of input. `ask` gives the tick of the last input and the tick of now, in milliseconds."""

    name = "input (Windows)"
    hears_all = True

    def __init__(
        self, ask: Callable[[], tuple[int, int]] | None = None, *, sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    ) -> None:
        self._ask = _ask if ask is None else ask
        self._sleep = sleep

    async def follow(self, report: Report) -> None:
        """Ask again and again. Raises SignalError where this is not Windows."""
        while True:
            last, now = self._ask()
            report.idle(ticks_between_s(last, now))
            await self._sleep(_ASK_EVERY_S)


def ticks_between_s(last: int, now: int) -> float:
    """Seconds between two ticks, which begin anew every 49.7 days."""
    return (now - last) % _WRAP / 1000


def _ask() -> tuple[int, int]:
    if sys.platform == "win32":
        found = _LastInput(ctypes.sizeof(_LastInput), 0)
        if not ctypes.windll.user32.GetLastInputInfo(ctypes.byref(found)):
            raise SignalError("Windows does not tell when the last input was")
        return found.ticks, ctypes.windll.kernel32.GetTickCount()
    raise SignalError("this is not Windows")

"""Input idle on Windows: GetLastInputInfo. It can only be asked; asking costs a microsecond."""

import ctypes
import sys
from collections.abc import Callable
from typing import Final

import anyio

from metaclaw.schedule.signals.asking import Sleep, ask_again_and_again
from metaclaw.schedule.signals.inactivity import Report, SignalError

_WRAP: Final = 1 << 32


class _LastInput(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint), ("ticks", ctypes.c_uint))


class WindowsInput:
    """A source of input. `ask` gives the tick of the last input and the tick of now, in milliseconds."""

    name = "input (Windows, asked)"
    hears_all = True

    def __init__(self, ask: Callable[[], tuple[int, int]] | None = None, *, sleep: Sleep = anyio.sleep) -> None:
        self._ask = _ask if ask is None else ask
        self._sleep = sleep

    async def follow(self, report: Report) -> None:
        """Ask again and again. Raises SignalError where this is not Windows."""

        async def ask() -> float:
            return ticks_between_s(*self._ask())

        await ask_again_and_again(ask, report, sleep=self._sleep)


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

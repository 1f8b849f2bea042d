"""Input idle on Windows: GetLastInputInfo, asked for, which costs a microsecond; and at once when raw input comes."""

import ctypes
import sys
from collections.abc import Callable
from typing import Final

import anyio

from metaclaw.schedule.signals.asking import Bell, Sleep, ToldAndAsked
from metaclaw.schedule.signals.inactivity import SignalError
from metaclaw.schedule.signals.raw_input import RawInputBell

_WRAP: Final = 1 << 32


class _LastInput(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint), ("ticks", ctypes.c_uint))


def windows_input(
    ask: Callable[[], tuple[int, int]] | None = None, *, bell: Bell | None = None, sleep: Sleep = anyio.sleep
) -> ToldAndAsked:
    """The source of input on Windows; elsewhere it raises SignalError when followed. `ask` gives the tick of the last input and the
    tick of now, in milliseconds."""
    asking = _ask if ask is None else ask

    async def idle_s() -> float:
        return ticks_between_s(*asking())

    return ToldAndAsked("Windows", idle_s, RawInputBell() if bell is None else bell, sleep=sleep)


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

"""Input idle on macOS: IOKit's HIDIdleTime, as `ioreg` prints it, asked for; and at once when powerd says that somebody is back."""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio

from metaclaw.schedule.signals.asking import Bell, Sleep, ToldAndAsked
from metaclaw.schedule.signals.inactivity import SignalError
from metaclaw.schedule.signals.powerd import PowerdBell

# From the object itself (-r): counted from the root, how deep it lies differs from system to system, and too few print nothing.
_COMMAND: Final = ("/usr/sbin/ioreg", "-r", "-c", "IOHIDSystem", "-d", "1")
# For powerd somebody has left after five minutes; how long it takes to notice that is not written down.
_RINGS_AFTER_S: Final = 310.0
_IDLE: Final = re.compile(rb'"HIDIdleTime"\s*=\s*(?P<nanoseconds>\d+)')

Run = Callable[[Sequence[str]], Awaitable[bytes]]


def mac_input(run: Run | None = None, *, bell: Bell | None = None, sleep: Sleep = anyio.sleep) -> ToldAndAsked:
    """The source of input on a Mac. Where this is none, or it does not tell, it raises SignalError when followed."""
    running = _run if run is None else run

    async def ask() -> float:
        return parse_idle_s(await running(_COMMAND))

    return ToldAndAsked("macOS", ask, PowerdBell() if bell is None else bell, rings_after_s=_RINGS_AFTER_S, sleep=sleep)


def parse_idle_s(printed: bytes) -> float:
    """Seconds since the last input, from what ioreg prints: of several such objects, the one used last. Raises SignalError."""
    told = [int(match["nanoseconds"]) for match in _IDLE.finditer(printed)]
    if not told:
        raise SignalError("ioreg does not tell how long the keyboard was idle")
    return min(told) / 1e9


async def _run(command: Sequence[str]) -> bytes:
    try:
        return (await anyio.run_process(list(command), check=False)).stdout
    except OSError as error:
        raise SignalError(f"ioreg cannot be run ({error.strerror})") from error

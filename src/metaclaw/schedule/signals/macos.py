"""Input idle on macOS: IOKit's HIDIdleTime, as `ioreg` prints it. It can only be asked."""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio

from metaclaw.schedule.signals.asking import Sleep, ask_again_and_again
from metaclaw.schedule.signals.inactivity import Report, SignalError

# From the object itself (-r): counted from the root, how deep it lies differs from system to system, and too few print nothing.
_COMMAND: Final = ("/usr/sbin/ioreg", "-r", "-c", "IOHIDSystem", "-d", "1")
_IDLE: Final = re.compile(rb'"HIDIdleTime"\s*=\s*(?P<nanoseconds>\d+)')

Run = Callable[[Sequence[str]], Awaitable[bytes]]


class MacInput:
    """A source of input."""

    name = "input (macOS, asked)"
    hears_all = True

    def __init__(self, run: Run | None = None, *, sleep: Sleep = anyio.sleep) -> None:
        self._run = _run if run is None else run
        self._sleep = sleep

    async def follow(self, report: Report) -> None:
        """Ask again and again. Raises SignalError where this is no Mac, or it does not tell."""

        async def ask() -> float:
            return parse_idle_s(await self._run(_COMMAND))

        await ask_again_and_again(ask, report, sleep=self._sleep)


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

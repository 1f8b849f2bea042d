"""Input idle on macOS: IOKit's HIDIdleTime, as `ioreg` prints it. It can only be asked, so it is asked often while that matters."""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio

from metaclaw.schedule.signals.inactivity import Report, SignalError

_COMMAND: Final = ("/usr/sbin/ioreg", "-c", "IOHIDSystem", "-d", "4")
_IDLE: Final = re.compile(rb'"HIDIdleTime"\s*=\s*(?P<nanoseconds>\d+)')
_ASK_EVERY_S: Final = 0.7

Run = Callable[[Sequence[str]], Awaitable[bytes]]


class MacInput:
    """A source of input."""

    name = "input (macOS)"
    hears_all = True

    def __init__(self, run: Run | None = None, *, sleep: Callable[[float], Awaitable[None]] = anyio.sleep) -> None:
        self._run = _run if run is None else run
        self._sleep = sleep

    async def follow(self, report: Report) -> None:
        """Ask again and again. Raises SignalError where this is no Mac, or it does not tell."""
        while True:
            report.idle(parse_idle_s(await self._run(_COMMAND)))
            await self._sleep(_ASK_EVERY_S)


def parse_idle_s(printed: bytes) -> float:
    """Seconds since the last input, from what ioreg prints. Raises SignalError."""
    match = _IDLE.search(printed)
    if match is None:
        raise SignalError("ioreg does not tell how long the keyboard was idle")
    return int(match["nanoseconds"]) / 1e9


async def _run(command: Sequence[str]) -> bytes:
    try:
        return (await anyio.run_process(list(command), check=False)).stdout
    except OSError as error:
        raise SignalError(f"ioreg cannot be run ({error.strerror})") from error

"""Sources that cannot tell and must be asked: how long ago was the last input? Asked as soon as the answer matters again."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import anyio

from metaclaw.schedule.signals.inactivity import ANSWER_WITHIN_S, NotOfferedError, Report, SignalError, Source

Sleep = Callable[[float], Awaitable[None]]


async def ask_again_and_again(
    ask: Callable[[], Awaitable[float | None]],
    report: Report,
    *,
    sleep: Sleep = anyio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Report what `ask` answers, in seconds (None: it cannot say yet), for ever. Raises SignalError where an answer takes so long
    that it would be old."""
    while True:
        asked_at = clock()
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                idle_s = await ask()
        except TimeoutError as error:
            raise SignalError(f"asked for the last input, nobody answers within {ANSWER_WITHIN_S:g} s") from error
        if idle_s is not None:
            report.idle(idle_s)
        await sleep(max(0.0, report.ask_again_s() - (clock() - asked_at)))


class ToldOrAsked:
    """A source of input: one that tells; where such a thing is not offered, one that must be asked."""

    hears_all = True

    def __init__(self, telling: Source, asked: Source) -> None:
        self._telling, self._asked = telling, asked
        self._heard = telling

    @property
    def name(self) -> str:
        """That of the one that is heard."""
        return self._heard.name

    async def follow(self, report: Report) -> None:
        """Report what is told, or else what is answered. Raises SignalError where neither can be had."""
        self._heard = self._telling
        try:
            await self._telling.follow(report)
        except NotOfferedError as missing:
            self._heard = self._asked
            try:
                await self._asked.follow(report)
            except SignalError as error:
                raise SignalError(f"{missing}; {error}") from error

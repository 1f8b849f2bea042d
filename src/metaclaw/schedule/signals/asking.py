"""Sources that must be asked: how long ago was the last input? Asked as soon as the answer matters again, or a bell rings."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio

from metaclaw.schedule.signals.inactivity import ANSWER_WITHIN_S, ASK_SHUT_S, NotOfferedError, Report, SignalError, Source

log = logging.getLogger(__name__)

Ask = Callable[[], Awaitable[float | None]]
Sleep = Callable[[float], Awaitable[None]]


class Bell(Protocol):
    """What tells that there may have been input. Whether there was, the answer to a question says, so that a bell may ring for
    nothing, and one that never rings only makes a source one that is asked."""

    @property
    def is_heard(self) -> bool:
        """Whether it would be heard."""

    async def begin(self) -> None:
        """Listen for it. Raises SignalError where there is none."""

    async def rings(self, within_s: float) -> bool:
        """Arm it, and wait for it at most so long; whether it rang. It stays armed until it rings."""

    def disarm(self) -> None:
        """Somebody is there; it need not ring."""

    def end(self) -> None:
        """Listen no more."""


async def is_rung(rung: asyncio.Event, within_s: float) -> bool:
    """Whether a bell's event is set within so long."""
    try:
        async with asyncio.timeout(within_s):
            await rung.wait()
    except TimeoutError:
        return False
    return True


async def ask_again_and_again(
    ask: Ask,
    report: Report,
    *,
    bell: Bell | None = None,
    sleep: Sleep = anyio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Report what `ask` answers, in seconds (None: it cannot say yet), for ever. Raises SignalError where an answer takes so long
    that it would be old."""
    was_rung = False
    while True:
        asked_at = clock()
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                idle_s = await ask()
        except TimeoutError as error:
            raise SignalError(f"asked for the last input, nobody answers within {ANSWER_WITHIN_S:g} s") from error
        if idle_s is not None:
            report.idle(idle_s)
        again_s = report.ask_again_s()
        rest_s = max(0.0, again_s - (clock() - asked_at))
        # One ring, one question: a bell that rings for nothing is not listened to again before the question that comes anyway.
        if bell is not None and not was_rung and again_s <= ASK_SHUT_S:
            was_rung = await bell.rings(rest_s)
            continue
        if bell is not None:
            bell.disarm()
        was_rung = False
        await sleep(rest_s)


class ToldAndAsked:
    """A source of input that is asked, and at once when its bell rings. Where there is none, its name says that it is asked.
    `rings_after_s` is the silence after which the bell rings for the next input."""

    hears_all = True

    def __init__(self, system: str, ask: Ask, bell: Bell, *, rings_after_s: float = 0.0, sleep: Sleep = anyio.sleep) -> None:
        self._system = system
        self._rings_after_s = rings_after_s
        self._ask = ask
        self._bell = bell
        self._sleep = sleep

    @property
    def name(self) -> str:
        """What people know it by, and whether it is told."""
        return f"input ({self._system}{'' if self._bell.is_heard else ', asked'})"

    @property
    def tells_after_s(self) -> float:
        """Where nothing rings, waiting for a bell would only cost windows."""
        return self._rings_after_s if self._bell.is_heard else 0.0

    async def follow(self, report: Report) -> None:
        """Ask again and again. Raises SignalError where nobody answers."""
        try:
            bell = await self._begun()
            await ask_again_and_again(self._ask, report, bell=bell, sleep=self._sleep)
        finally:
            self._bell.end()

    async def _begun(self) -> Bell | None:
        try:
            await self._bell.begin()
        except SignalError as error:
            log.info("input_only_asked system=%s reason=%s", self._system, error)
            return None
        return self._bell


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

    @property
    def tells_after_s(self) -> float:
        """That of the one that is heard."""
        return self._heard.tells_after_s

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

"""Input idle: how long ago the keyboard or the mouse was last used, from whatever can tell on this machine.

Each way to tell is a source that reports what it sees as it happens; this signal keeps the last report. A source that ends or fails
is begun again, later each time, and meanwhile nothing is known.
"""

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final, Protocol

import anyio

from metaclaw.errors import MetaClawError
from metaclaw.schedule.clock import Clock
from metaclaw.schedule.habits import Patience
from metaclaw.schedule.reading import Presence, Reading
from metaclaw.schedule.signals.traffic import ago

log = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 300.0
# A source that cannot tell is asked: often while a window is open, rarely while the last input is too fresh for one to open,
# and between those often enough that none opens on old news. From question to question; an answer that takes too long is none.
# Input just after a question is known with the next answer: both together stay below a second.
ASK_OPEN_S: Final = 0.3
ASK_SHUT_S: Final = 0.5
ASK_FRESH_S: Final = 5.0
ANSWER_WITHIN_S: Final = 0.45


class SignalError(MetaClawError):
    """A signal cannot be read. The owner may do something about it; until then it is unknown."""


class NotOfferedError(SignalError):
    """What runs there has no such thing, and will not have it before it is updated."""


class Report(Protocol):
    """What a source tells, and when it matters to whom. All on the event loop."""

    def input(self) -> None:
        """A key or the mouse, just now."""

    def idle(self, seconds: float) -> None:
        """The last input was so long ago."""

    def lock(self, is_locked: bool) -> None:
        """The screen was locked, or unlocked."""

    def ask_again_s(self) -> float:
        """How soon a source that can only ask must ask again."""


class Source(Protocol):
    """One way to learn of input. `follow` reports until it is cancelled; raises SignalError where it cannot.

    One that does not hear everything (`hears_all`) says away only while it reports that the person is idle. One that is told of
    input only after a longer silence (`tells_after_s`) counts a person as present until then, so that no window is open of which
    it would not be told that it must shut.
    """

    @property
    def name(self) -> str: ...
    @property
    def hears_all(self) -> bool: ...
    @property
    def tells_after_s(self) -> float: ...
    async def follow(self, report: Report) -> None: ...


class Inactivity:
    """A signal. `hear` is called at once on input, with how long ago it was; `is_open` says whether a window is open."""

    def __init__(
        self,
        source: Source,
        *,
        clock: Clock,
        patience: Callable[[], Patience],
        hear: Callable[[float], None],
        is_open: Callable[[], bool] = lambda: True,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self._source = source
        self._clock = clock
        self._patience = patience
        self._hear = hear
        self._is_open = is_open
        self._sleep = sleep
        self._last: float | None = None
        self._is_locked, self._is_idle = False, False
        self._trouble = "not asked yet"

    @property
    def name(self) -> str:
        """What people know it by."""
        return self._source.name

    @property
    def knows(self) -> bool:
        """Whether it can tell at all."""
        return self._is_locked or self._is_idle or (self._last is not None and self._source.hears_all)

    def input(self) -> None:
        """A key or the mouse, just now."""
        self._is_idle = False
        self._note(self._clock.monotonic(), 0.0)

    def idle(self, seconds: float) -> None:
        """The last input was so long ago."""
        self._is_idle = True
        ago_s = max(0.0, seconds)
        self._note(self._clock.monotonic() - ago_s, ago_s)

    def lock(self, is_locked: bool) -> None:
        """The screen was locked, or unlocked, which only a person does."""
        if self._is_locked and not is_locked:
            self.input()
        self._is_locked, self._trouble = is_locked, "neither idle nor locked"

    def ask_again_s(self) -> float:
        """No window opens before the silence is long enough to open one; once it may, or is open, what is known must be fresh."""
        if self._is_open():
            return ASK_OPEN_S
        if self._last is None:
            return ASK_SHUT_S
        silence_s = max(0.0, self._clock.monotonic() - self._last)
        return min(ASK_FRESH_S, max(ASK_SHUT_S, self._present_s() - silence_s - 1.0))

    def jumped(self) -> None:
        """The machine slept or its clock was set: what was known is of another time."""
        if self._last is not None:
            self._last = self._clock.monotonic()

    def read(self, now: datetime) -> Reading:
        """How long ago the last input was."""
        if self._last is None and not self._is_locked:
            return Reading(Presence.UNKNOWN, self._trouble)
        silence_s = max(0.0, self._clock.monotonic() - (self._last or 0.0))
        patience, present_s = self._patience(), self._present_s()
        if self._last is not None and silence_s < present_s:
            return Reading(Presence.PRESENT, f"input {ago(silence_s)}", now + timedelta(seconds=present_s - silence_s))
        if self._is_locked:
            return Reading(Presence.AWAY, "the screen is locked")
        if silence_s < patience.away_s or not self.knows:
            wait = timedelta(seconds=max(0.0, patience.away_s - silence_s))
            return Reading(Presence.UNKNOWN, f"last input {ago(silence_s)}", now + wait)
        return Reading(Presence.AWAY, f"no input for {ago(silence_s).removesuffix(' ago')}")

    def _present_s(self) -> float:
        return max(self._patience().present_s, self._source.tells_after_s)

    def _note(self, when: float, ago_s: float) -> None:
        last = self._last
        if last is None or when > last:
            self._last = when
        if last is None or when > last + 0.5:
            self._hear(ago_s)

    async def follow(self) -> None:
        """Listen to the source; begin again where it fails."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                await self._source.follow(self)
                self._trouble = "it has ended"
            except SignalError as error:
                self._trouble = str(error)
                log.debug("source_failed source=%s reason=%s again_in_s=%g", self.name, error, pause_s)
            pause_s = _FIRST_PAUSE_S if self._last is not None else min(pause_s * 2, _LONGEST_PAUSE_S)
            self._last, self._is_locked, self._is_idle = None, False, False
            await self._sleep(pause_s)

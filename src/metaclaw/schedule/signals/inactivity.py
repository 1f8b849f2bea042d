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


class SignalError(MetaClawError):
    """A signal cannot be read. The owner may do something about it; until then it is unknown."""


class Report(Protocol):
    """What a source tells. All on the event loop."""

    def input(self) -> None:
        """A key or the mouse, just now."""

    def idle(self, seconds: float) -> None:
        """The last input was so long ago."""

    def lock(self, is_locked: bool) -> None:
        """The screen was locked, or unlocked."""


class Source(Protocol):
    """One way to learn of input. `follow` reports until it is cancelled; raises SignalError where it cannot.

    One that does not hear everything (`hears_all`) says away only while it reports that the person is idle.
    """

    @property
    def name(self) -> str: ...
    @property
    def hears_all(self) -> bool: ...
    async def follow(self, report: Report) -> None: ...


class Inactivity:
    """A signal. `hear` is called at once on input, with how long ago it was."""

    def __init__(
        self,
        source: Source,
        *,
        clock: Clock,
        patience: Callable[[], Patience],
        hear: Callable[[float], None],
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self.name = source.name
        self._source = source
        self._clock = clock
        self._patience = patience
        self._hear = hear
        self._sleep = sleep
        self._last: float | None = None
        self._is_locked, self._is_idle = False, False
        self._trouble = "not asked yet"

    @property
    def knows(self) -> bool:
        """Whether it can tell at all."""
        return self._is_locked or self._is_idle or (self._last is not None and self._source.hears_all)

    def input(self) -> None:
        """A key or the mouse, just now."""
        self.idle(0.0)
        self._is_idle = False

    def idle(self, seconds: float) -> None:
        """The last input was so long ago."""
        self._is_idle = True
        when = self._clock.monotonic() - max(0.0, seconds)
        is_news = self._last is None or when > self._last + 0.5
        self._last = when if self._last is None else max(when, self._last)
        if is_news:
            self._hear(max(0.0, seconds))

    def lock(self, is_locked: bool) -> None:
        """The screen was locked, or unlocked, which only a person does."""
        if self._is_locked and not is_locked:
            self.input()
        self._is_locked, self._trouble = is_locked, "neither idle nor locked"

    def jumped(self) -> None:
        """The machine slept or its clock was set: what was known is of another time."""
        if self._last is not None:
            self._last = self._clock.monotonic()

    def read(self, now: datetime) -> Reading:
        """How long ago the last input was."""
        if self._last is None and not self._is_locked:
            return Reading(Presence.UNKNOWN, self._trouble)
        silence_s = max(0.0, self._clock.monotonic() - (self._last or 0.0))
        patience = self._patience()
        if self._last is not None and silence_s < patience.present_s:
            return Reading(Presence.PRESENT, f"input {ago(silence_s)}", now + timedelta(seconds=patience.present_s - silence_s))
        if self._is_locked:
            return Reading(Presence.AWAY, "the screen is locked")
        if silence_s < patience.away_s or not self.knows:
            wait = timedelta(seconds=max(0.0, patience.away_s - silence_s))
            return Reading(Presence.UNKNOWN, f"last input {ago(silence_s)}", now + wait)
        return Reading(Presence.AWAY, f"no input for {ago(silence_s).removesuffix(' ago')}")

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

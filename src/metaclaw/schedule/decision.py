"""The decision whether a window is open: some signal says away, none says present, and the machine is free. Pure.

| away | present | objection | forecast        | cool-down | window |
|------|---------|-----------|-----------------|-----------|--------|
| none | –       | –         | –               | –         | shut   |
| some | some    | –         | –               | –         | shut   |
| some | none    | some      | –               | –         | shut   |
| some | none    | none      | below the least | –         | shut, unless it is open already |
| some | none    | none      | enough          | running   | shut   |
| some | none    | none      | enough          | over      | open   |

Presence is a veto over everything, and unknown counts for nothing.

`SharedWindows` gives training with its own processor a share of the time while the user works.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, Protocol

import anyio

from metaclaw.domain.training import Window
from metaclaw.ports import Windows


class Presence(StrEnum):
    """Whether the user is there, according to one signal. Unknown never counts as away."""

    AWAY = "away"
    PRESENT = "present"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Reading:
    """What one signal says, the reason in words, and until when it holds if nothing happens (None: unknown).

    `is_trouble` is set if it is unknown because of a problem that the user can solve.
    """

    presence: Presence
    why: str
    until: datetime | None = None
    is_trouble: bool = False


@dataclass(frozen=True, slots=True)
class NamedReading:
    """A reading with the name of the signal it comes from."""

    signal: str
    reading: Reading


class PresenceSignal(Protocol):
    """A source of presence readings. `read` never raises and never blocks; problems give an unknown reading."""

    @property
    def name(self) -> str: ...
    def read(self, now: datetime) -> Reading: ...


class FollowedSignal(PresenceSignal, Protocol):
    """A signal that must run: `follow` keeps it up to date until it is cancelled."""

    async def follow(self) -> None: ...


@dataclass(frozen=True, slots=True)
class WindowRules:
    """A window shorter than `least` is not opened; after one was shut by presence none opens for `cooldown`."""

    least: timedelta = timedelta(minutes=2)
    cooldown: timedelta = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Moment:
    """The input of a decision. `objections` are reasons not to use the machine; `expected` is how long a window opened now
    would last, or None if unknown."""

    now: datetime
    readings: Sequence[NamedReading]
    objections: Sequence[str] = ()
    is_open: bool = False
    shut_at: datetime | None = None
    expected: timedelta | None = None


@dataclass(frozen=True, slots=True)
class WindowDecision:
    """Open or shut, and why."""

    is_open: bool
    reason: str


def decide(moment: Moment, rules: WindowRules) -> WindowDecision:
    """Whether a window may be open at this moment."""
    present = [one for one in moment.readings if one.reading.presence is Presence.PRESENT]
    away = [one for one in moment.readings if one.reading.presence is Presence.AWAY]
    if present:
        return WindowDecision(False, "; ".join(f"{one.signal}: {one.reading.why}" for one in present))
    if not away:
        return WindowDecision(False, "nothing says that you are away")
    if moment.objections:
        return WindowDecision(False, "; ".join(moment.objections))
    reason = "; ".join(f"{one.signal}: {one.reading.why}" for one in away)
    if moment.is_open:
        return WindowDecision(True, reason)
    if moment.expected is not None and moment.expected < rules.least:
        return WindowDecision(
            False, f"a window now would be over in {in_words(moment.expected)}, and {in_words(rules.least)} are the least"
        )
    if moment.shut_at is not None and timedelta(0) <= moment.now - moment.shut_at < rules.cooldown:
        return WindowDecision(False, f"cooling down for {in_words(moment.shut_at + rules.cooldown - moment.now)}")
    return WindowDecision(True, reason)


def in_words(span: timedelta) -> str:
    """A duration for people."""
    seconds = max(0, round(span.total_seconds()))
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h {seconds % 3600 // 60} min"


_PERIOD_S: Final = 60.0


class SharedWindows:
    """Scheduled windows and, while none is open, the first `share` of every minute."""

    def __init__(
        self,
        windows: Windows,
        share: float,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        period_s: float = _PERIOD_S,
    ) -> None:
        self._windows = windows
        self._share = share
        self._now = now
        self._period_s = period_s
        self._mine: Window | None = None
        self._was_open = windows.window is not None
        self._opened = anyio.Event()
        self._hearers: list[Callable[[Window | None], None]] = []
        windows.on_change(lambda window: self._changed())

    @property
    def window(self) -> Window | None:
        """The schedule's window, or our own; None while both are shut."""
        return self._windows.window or self._mine

    @property
    def shut_because(self) -> str:
        """Why no window is open; empty while one is."""
        if self.window is not None:
            return ""
        return f"training has {self._share:.0%} of the time (policy.train_share) while you work; {self._windows.shut_because}"

    async def until_open(self) -> Window:
        """Wait for an open window; at once if one is open."""
        while (window := self.window) is None:
            await self._opened.wait()
        return window

    def has_room(self, seconds: float) -> bool:
        """Whether work of this length fits. In our part of a minute everything does."""
        return self._mine is not None or self._windows.has_room(seconds)

    def on_change(self, hear: Callable[[Window | None], None]) -> None:
        """Call this at once whenever a window opens or the last one shuts."""
        self._hearers.append(hear)

    def open(self) -> None:
        """Our part of a minute begins."""
        self._mine = Window(self._now(), f"{self._share:.0%} of the time while you work", None)
        self._changed()

    def shut(self) -> None:
        """Our part of a minute is over."""
        self._mine = None
        self._changed()

    async def run(self) -> None:
        """Open and shut, for ever."""
        while True:
            self.open()
            await anyio.sleep(math.inf if self._share >= 1.0 else self._period_s * self._share)
            self.shut()
            await anyio.sleep(self._period_s * (1.0 - self._share))

    def _changed(self) -> None:
        is_open = self.window is not None
        if is_open == self._was_open:
            return
        self._was_open = is_open
        if is_open:
            self._opened.set()
        else:
            self._opened = anyio.Event()
        for hear in self._hearers:
            hear(self.window)

"""Windows for training: open while the user is away, shut as soon as they are back.

A main turn or a key shuts the window before the call that reports it returns. Whether to open one
is decided again whenever something may have changed. A window opened by hand stays open while the
user is present, until a main turn comes, or until they leave and come back.

`SharedWindows` gives training with its own processor a share of the time while the user works.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

import anyio

from metaclaw.clock import utc_now
from metaclaw.domain.training import Window
from metaclaw.ports import Windows
from metaclaw.schedule.clock import Clock, ClockJumps
from metaclaw.schedule.forecast import Habits, keep_history
from metaclaw.schedule.input import Inactivity, InputSource
from metaclaw.schedule.presence import (
    FollowedSignal,
    Moment,
    NamedReading,
    Presence,
    PresenceSignal,
    Traffic,
    WindowThresholds,
    decide,
    in_words,
)

log = logging.getLogger(__name__)

Announce = Callable[[str, Mapping[str, object]], None]
_LONGEST_PAUSE_S: Final = 5.0
_SHORTEST_PAUSE_S: Final = 0.05
_KEEP_EVERY_S: Final = 600.0
_PERIOD_S: Final = 60.0


class _Gate:
    """At most one open window, and those who wait for it."""

    def __init__(self, now: Callable[[], datetime] = utc_now) -> None:
        self._now = now
        self._window: Window | None = None
        self._why = "it has not been opened"
        self._is_opened = anyio.Event()
        self._hearers: list[Callable[[Window | None], None]] = []

    @property
    def window(self) -> Window | None:
        """The open window, or None while it is shut."""
        return self._window

    @property
    def shut_because(self) -> str:
        """Why no window is open; empty while one is."""
        return "" if self._window is not None else self._why

    async def until_open(self) -> Window:
        """Wait for an open window; at once if one is open."""
        while self._window is None:
            await self._is_opened.wait()
        return self._window

    def on_change(self, hear: Callable[[Window | None], None]) -> None:
        """Call `hear` at once whenever the window opens or shuts. It must not block."""
        self._hearers.append(hear)

    def _set(self, window: Window | None) -> None:
        was_open, self._window = self._window is not None, window
        if was_open == (window is not None):
            return
        if window is None:
            self._is_opened = anyio.Event()
        else:
            self._is_opened.set()
        for hear in self._hearers:
            hear(window)


class ManualWindows(_Gate):
    """Windows without a scheduler, opened and shut by their owner."""

    def open(self, reason: str) -> None:
        """Open the window; an open window does not change."""
        if self._window is None:
            self._set(Window(self._now(), reason, None))

    def shut(self, why: str) -> None:
        """Shut the window."""
        self._why = why
        self._set(None)

    def facts(self) -> dict[str, object]:
        """The state as JSON."""
        reason = self._why if self._window is None else self._window.reason
        return {"open": self._window is not None, "reason": reason, "signals": []}


class LoadMonitor(Protocol):
    """Reports reasons not to use the machine."""

    @property
    def objections(self) -> Sequence[str]: ...
    async def follow(self) -> None: ...


@dataclass(eq=False, kw_only=True)
class ScheduledWindows(_Gate):
    """Windows decided by signals. At most one is open. Used on one event loop."""

    habits: Habits
    traffic: Traffic
    sources: Sequence[InputSource]
    sleep: PresenceSignal | None
    calendars: Sequence[FollowedSignal] = ()
    machine_load: LoadMonitor
    rules: WindowThresholds
    clock: Clock
    announce: Announce
    keep: Path | None = None

    def __post_init__(self) -> None:
        super().__init__(self.clock.now)
        self.inputs = tuple(
            Inactivity(
                source,
                clock=self.clock,
                patience=self.habits.patience,
                hear=self._heard_input,
                is_open=lambda: self.window is not None,
                is_blind=self._is_blind,
            )
            for source in self.sources
        )
        asleep = () if self.sleep is None else (self.sleep,)
        self._signals: tuple[PresenceSignal, ...] = (
            *self.inputs,
            self.traffic,
            *asleep,
            *self.calendars,
        )
        self._why = "not looked at yet"
        self._jumps = ClockJumps(self.clock)
        self._shut_at: float | None = None
        self._by_hand, self._has_left = False, False
        self._wake = anyio.Event()
        self.traffic.connect(self._heard_turn, self.habits.patience, self._is_deaf)

    def room_s(self) -> float:
        """How much longer the open window will very likely last; 0 while it is shut."""
        if self.window is None:
            return 0.0
        if self._by_hand and not self._has_left:
            return math.inf
        room_s = self.habits.room_s()
        if self.sleep is not None and not self.habits.are_known:
            now = self.clock.now()
            asleep = self.sleep.read(now)
            if asleep.presence is Presence.AWAY and asleep.until is not None:
                room_s = max(room_s, (asleep.until - now).total_seconds() / 2)
        return room_s

    def open(self, reason: str) -> None:
        """Open by hand. The user may be present."""
        self._by_hand = True
        self._has_left = not _is_present(self.readings())
        if self.window is None:
            self._opened(reason, None)
        self._wake.set()

    def shut(self, why: str) -> None:
        """Shut by hand. It opens again when the signals say so."""
        self._shut(why)

    def readings(self) -> list[NamedReading]:
        """The current reading of every signal."""
        now = self.clock.now()
        return [NamedReading(one.name, one.read(now)) for one in self._signals]

    def refresh(self) -> list[NamedReading]:
        """Decide again, and open or shut; return the readings."""
        jump = self._jumps.look()
        if jump is not None:
            self._jumped(jump)
        self.habits.learn()
        readings = self.readings()
        self._decide(readings)
        return readings

    def look(self) -> float:
        """Decide again; return the number of seconds until a reading may change without an
        event.
        """
        readings = self.refresh()
        now = self.clock.now()
        ends = [one.reading.until for one in readings]
        waits = [(end - now).total_seconds() for end in ends if end is not None and end > now]
        cooling = self._cooling_s()
        if cooling is not None and cooling > 0:
            waits.append(cooling)
        return max(_SHORTEST_PAUSE_S, min(waits, default=3600.0) + 0.01)

    async def run(self) -> None:
        """Follow the signals and open and shut the window, for ever."""
        async with anyio.create_task_group() as group:
            for one in (*self.inputs, *self.calendars):
                group.start_soon(one.follow)
            group.start_soon(self.machine_load.follow)
            if self.keep is not None:
                group.start_soon(self._keep_habits, self.keep)
            try:
                await self._look_forever()
            finally:
                self._shut("the program stops")

    def facts(self) -> dict[str, object]:
        """The window, all readings, the forecast and the next expected window, as JSON."""
        readings, window, room_s = self.readings(), self.window, self.room_s()
        is_known = window is not None and math.isfinite(room_s)
        expected = self.expected(readings)
        next_at, because = (None, None) if window is not None else _next(readings)
        return {
            "open": window is not None,
            "reason": self.shut_because if window is None else window.reason,
            "opened_at": None if window is None else window.opened.isoformat(),
            "by_hand": window is not None and self._by_hand,
            "signals": [_shown(one) for one in readings],
            "objections": list(self.machine_load.objections),
            "forecast": {
                "silence_s": round(self.habits.silence_s, 1),
                "away_after_s": round(self.habits.patience().away_s, 1),
                "expected_s": None if expected is None else round(expected.total_seconds(), 1),
                "room_s": round(room_s, 1) if is_known else None,
                "from_history": self.habits.are_known,
            },
            "next": {"at": None if next_at is None else next_at.isoformat(), "because": because},
        }

    def expected(self, readings: Sequence[NamedReading]) -> timedelta | None:
        """How long a window would likely last: by habit or until a meeting ends; without history,
        also by sleep hours.
        """
        habit = self.habits.expected()
        names = {one.name for one in self.calendars}
        if habit is None and self.sleep is not None:
            names.add(self.sleep.name)
        now = self.clock.now()
        spans = [
            one.reading.until - now
            for one in readings
            if one.signal in names
            and one.reading.presence is Presence.AWAY
            and one.reading.until is not None
        ]
        return max([*spans, *([] if habit is None else [habit])], default=None)

    def _is_deaf(self) -> bool:
        """Whether no input can be heard and there is no screen: then traffic replaces it."""
        return not any(one.knows or one.source.is_screen for one in self.inputs)

    def _is_blind(self) -> bool:
        """Whether there is a screen whose input cannot be heard."""
        screens = [one for one in self.inputs if one.source.is_screen]
        return bool(screens) and not any(one.knows for one in screens)

    async def _look_forever(self) -> None:
        while True:
            wait_s = self.look()
            self._wake = anyio.Event()
            with anyio.move_on_after(min(wait_s, _LONGEST_PAUSE_S)):
                await self._wake.wait()

    async def _keep_habits(self, path: Path) -> None:
        try:
            while True:
                await anyio.sleep(_KEEP_EVERY_S)
                await anyio.to_thread.run_sync(_keep, path, self.habits)
        finally:
            _keep(path, self.habits)

    def _decide(self, readings: Sequence[NamedReading]) -> None:
        if self._by_hand and self.window is not None:
            self._look_after_hand(readings)
            return
        cooling = self._cooling_s()
        now = self.clock.now()
        shut_at = (
            None if cooling is None else now - (self.rules.cooldown - timedelta(seconds=cooling))
        )
        is_open = self.window is not None
        expected = None if is_open else self.expected(readings)
        moment = Moment(now, readings, self.machine_load.objections, is_open, shut_at, expected)
        decision = decide(moment, self.rules)
        if not decision.is_open:
            self._shut(decision.reason)
        elif not is_open:
            self._by_hand = False
            self._opened(decision.reason, None if expected is None else now + expected)

    def _look_after_hand(self, readings: Sequence[NamedReading]) -> None:
        """Shut a window opened by hand when the user had left and is back."""
        is_present = _is_present(readings)
        if self._has_left and is_present:
            self._shut("you are back")
        elif not is_present:
            self._has_left = True

    def _heard_turn(self) -> None:
        """Called from the request path."""
        self.habits.active()
        if self._window is not None:
            self._shut("traffic: a main turn")

    def _heard_input(self, ago_s: float) -> None:
        self.habits.active(ago_s)
        if self._window is None or (self._by_hand and not self._has_left):
            return
        if ago_s < self.habits.patience().present_s:
            self._shut("input: a key or the mouse")

    def _jumped(self, jump: timedelta) -> None:
        """Restart everything after a sleep of the machine or a clock change; the user is probably
        present.
        """
        log.info("clock_jumped seconds=%.0f", jump.total_seconds())
        self.announce("window.clock_jumped", {"seconds": round(jump.total_seconds(), 1)})
        self.habits.jumped()
        self.traffic.jumped()
        for one in self.inputs:
            one.jumped()
        self._shut("the machine slept, or its clock was set")
        self._shut_at = self.clock.monotonic()  # the cool-down gives the user time to become active

    def _opened(self, reason: str, until: datetime | None) -> None:
        log.info("window_opened reason=%r until=%s", reason, until)
        self.announce(
            "window.opened",
            {
                "reason": reason,
                "until": None if until is None else until.isoformat(),
                "by_hand": self._by_hand,
            },
        )
        self._set(Window(self._now(), reason, until))

    def _shut(self, why: str) -> None:
        """Shut at once; running work is stopped before this returns."""
        window = self._window
        self._why = why
        self._set(None)
        if window is not None:
            self._by_hand, self._shut_at = False, self.clock.monotonic()
            self._wake.set()
            lasted = self.clock.now() - window.opened
            log.info("window_shut why=%r lasted=%s", why, in_words(lasted))
            self.announce(
                "window.shut",
                {
                    "why": why,
                    "opened": window.opened.isoformat(),
                    "lasted_s": round(lasted.total_seconds(), 1),
                },
            )

    def _cooling_s(self) -> float | None:
        """How long the cool-down still lasts; None before the first shut."""
        if self._shut_at is None:
            return None
        return self.rules.cooldown.total_seconds() - (self.clock.monotonic() - self._shut_at)


def _is_present(readings: Sequence[NamedReading]) -> bool:
    return any(one.reading.presence is Presence.PRESENT for one in readings)


def _keep(path: Path, habits: Habits) -> None:
    try:
        keep_history(path, habits.history)
    except OSError as error:
        log.warning("history_not_kept path=%s reason=%s", path, error)


def _shown(one: NamedReading) -> dict[str, object]:
    reading = one.reading
    until = None if reading.until is None else reading.until.isoformat()
    return {
        "name": one.signal,
        "says": reading.presence.value,
        "why": reading.why,
        "until": until,
        "trouble": reading.is_trouble,
    }


def _next(readings: Sequence[NamedReading]) -> tuple[datetime | None, str | None]:
    """When a window may open next, and why."""
    vetoes = [one.reading.until for one in readings if one.reading.presence is Presence.PRESENT]
    if None in vetoes:
        return None, None
    earliest = max((until for until in vetoes if until is not None), default=None)
    if earliest is not None and any(one.reading.presence is Presence.AWAY for one in readings):
        return earliest, "if nothing happens until then"
    coming = [
        (one.reading.until, one.signal)
        for one in readings
        if one.reading.presence is Presence.UNKNOWN
    ]
    known = sorted(
        (until if earliest is None else max(until, earliest), signal)
        for until, signal in coming
        if until is not None
    )
    if known:
        return known[0]
    return earliest, None if earliest is None else "at the earliest"


class SharedWindows(_Gate):
    """The scheduled windows and, while none is open, the first `share` of every minute."""

    def __init__(self, windows: Windows, share: float, *, period_s: float = _PERIOD_S) -> None:
        super().__init__()
        self._windows, self._share, self._period_s = windows, share, period_s
        self._mine: Window | None = None
        self._set(windows.window)
        windows.on_change(lambda window: self._set(window or self._mine))

    @property
    def shut_because(self) -> str:
        """Why no window is open; empty while one is."""
        if self.window is not None:
            return ""
        return (
            f"training has {self._share:.0%} of the time (policy.train_share) while you work;"
            f" {self._windows.shut_because}"
        )

    def open(self) -> None:
        """Begin our share of a minute."""
        self._mine = Window(self._now(), f"{self._share:.0%} of the time while you work", None)
        self._set(self._windows.window or self._mine)

    def shut(self) -> None:
        """End our share of a minute."""
        self._mine = None
        self._set(self._windows.window)

    async def run(self) -> None:
        """Open and shut, for ever."""
        while True:
            self.open()
            await anyio.sleep(math.inf if self._share >= 1.0 else self._period_s * self._share)
            self.shut()
            await anyio.sleep(self._period_s * (1.0 - self._share))

"""Windows: open while the person is away, shut the moment they are back. Driven by events; the clock only opens.

A main turn and a key shut the window before the call that reports them returns. Opening waits for the decision, which is looked at
whenever something may have changed. A window opened by hand stays open although somebody sits at the keyboard, until a main turn,
or until they had left and are back.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

import anyio

from metaclaw.domain.window import Window
from metaclaw.schedule.byhand import HandOpened
from metaclaw.schedule.clock import Clock, Jumps
from metaclaw.schedule.decide import Moment, Rules, decide, in_words
from metaclaw.schedule.habits import Habits, keep_history
from metaclaw.schedule.reading import Followed, Named, Presence, Signal
from metaclaw.schedule.signals.inactivity import Inactivity, Source
from metaclaw.schedule.signals.traffic import Traffic

log = logging.getLogger(__name__)

Announce = Callable[[str, Mapping[str, object]], None]
_LONGEST_PAUSE_S: Final = 5.0
_SHORTEST_PAUSE_S: Final = 0.05
_KEEP_EVERY_S: Final = 600.0


class Objecting(Protocol):
    """Who may want the machine left alone."""

    @property
    def objections(self) -> Sequence[str]: ...
    async def follow(self) -> None: ...


class Windows:
    """When the slow loop may run. At most one window is open; one event loop calls everything."""

    def __init__(
        self,
        *,
        habits: Habits,
        traffic: Traffic,
        sources: Sequence[Source] = (),
        sleep: Signal | None = None,
        calendars: Sequence[Followed] = (),
        neighbours: Objecting | None = None,
        rules: Rules,
        clock: Clock,
        announce: Announce,
        keep: Path | None = None,
    ) -> None:
        self._habits, self._traffic, self._sleep, self._calendars = habits, traffic, sleep, tuple(calendars)
        self._neighbours, self._rules, self._clock, self._announce, self._keep = neighbours, rules, clock, announce, keep
        self._inputs = tuple(
            Inactivity(
                source, clock=clock, patience=habits.patience, hear=self._heard_input, is_open=lambda: self.window is not None
            )
            for source in sources
        )
        asleep = () if sleep is None else (sleep,)
        self._signals: tuple[Signal, ...] = (*self._inputs, traffic, *asleep, *self._calendars)
        self._gate = HandOpened(clock.now)
        self._gate.shut("not looked at yet")
        self._jumps = Jumps(clock)
        self._shut_at: float | None = None
        self._by_hand, self._has_left = False, False
        self._wake = anyio.Event()
        traffic.on_main_turn(self._heard_turn, habits.patience, lambda: not any(one.knows for one in self._inputs))

    @property
    def window(self) -> Window | None:
        """The open window, or None while it is shut."""
        return self._gate.window

    @property
    def shut_because(self) -> str:
        """Why no window is open; empty while one is."""
        return self._gate.shut_because

    async def until_open(self) -> Window:
        """Wait for an open window; at once if one is open."""
        return await self._gate.until_open()

    def on_change(self, hear: Callable[[Window | None], None]) -> None:
        """Call this at once whenever the window opens or shuts. It must not block."""
        self._gate.on_change(hear)

    def has_room(self, seconds: float) -> bool:
        """Whether a piece of work of this length will very likely finish before the open window shuts; False while it is shut."""
        return self.window is not None and seconds <= self.room_s()

    def room_s(self) -> float:
        """How much longer the open window will very likely last; 0 while it is shut."""
        if self.window is None:
            return 0.0
        if self._by_hand and not self._has_left:
            return math.inf
        room_s = self._habits.room_s()
        if self._sleep is not None and not self._habits.are_known:
            now = self._clock.now()
            asleep = self._sleep.read(now)
            if asleep.presence is Presence.AWAY and asleep.until is not None:
                room_s = max(room_s, (asleep.until - now).total_seconds() / 2)
        return room_s

    def open(self, reason: str) -> None:
        """Open by hand: whoever says so may be sitting here."""
        self._by_hand = True
        self._has_left = not _is_present(self.readings())
        if self.window is None:
            self._opened(reason, None)
        self._wake.set()

    def shut(self, why: str) -> None:
        """Shut by hand. It opens again when the signals say so."""
        self._shut(why)

    def readings(self) -> list[Named]:
        """What every signal says now."""
        now = self._clock.now()
        return [Named(one.name, one.read(now)) for one in self._signals]

    def refresh(self) -> None:
        """Look at everything, and open or shut."""
        self._look()

    def look(self) -> float:
        """Look at everything, open or shut, and say in how many seconds something may have changed by itself."""
        return self._wait_s(self._look())

    async def run(self) -> None:
        """Follow the signals and keep the window right, for ever."""
        async with anyio.create_task_group() as group:
            for one in (*self._inputs, *self._calendars):
                group.start_soon(one.follow)
            if self._neighbours is not None:
                group.start_soon(self._neighbours.follow)
            if self._keep is not None:
                group.start_soon(self._keep_habits, self._keep)
            try:
                await self._look_again_and_again()
            finally:
                self._shut("the program stops")

    @property
    def objections(self) -> Sequence[str]:
        """Why the machine should be left alone now."""
        return () if self._neighbours is None else self._neighbours.objections

    @property
    def inputs(self) -> tuple[Inactivity, ...]:
        """The signals of input."""
        return self._inputs

    @property
    def habits(self) -> Habits:
        """What is known of the person's habits."""
        return self._habits

    @property
    def is_by_hand(self) -> bool:
        """Whether the open window was opened by a person."""
        return self.window is not None and self._by_hand

    def expected(self, readings: Sequence[Named]) -> timedelta | None:
        """How long a window would likely last: by habit or until a meeting ends; sleep hours count where no habit is known."""
        habit = self._habits.expected()
        names = {one.name for one in self._calendars}
        if habit is None and self._sleep is not None:
            names.add(self._sleep.name)
        now = self._clock.now()
        spans = [
            one.reading.until - now
            for one in readings
            if one.signal in names and one.reading.presence is Presence.AWAY and one.reading.until is not None
        ]
        return max([*spans, *([] if habit is None else [habit])], default=None)

    async def _look_again_and_again(self) -> None:
        while True:
            wait_s = self.look()
            self._wake = anyio.Event()
            with anyio.move_on_after(min(wait_s, _LONGEST_PAUSE_S)):
                await self._wake.wait()

    async def _keep_habits(self, path: Path) -> None:
        try:
            while True:
                await anyio.sleep(_KEEP_EVERY_S)
                await anyio.to_thread.run_sync(_keep, path, self._habits)
        finally:
            _keep(path, self._habits)

    def _look(self) -> list[Named]:
        jump = self._jumps.look()
        if jump is not None:
            self._jumped(jump)
        self._habits.learn()
        readings = self.readings()
        self._decide(readings)
        return readings

    def _wait_s(self, readings: Sequence[Named]) -> float:
        now = self._clock.now()
        ends = [one.reading.until for one in readings]
        waits = [(end - now).total_seconds() for end in ends if end is not None and end > now]
        cooling = self._cooling_s()
        if cooling is not None and cooling > 0:
            waits.append(cooling)
        return max(_SHORTEST_PAUSE_S, min(waits, default=3600.0) + 0.01)

    def _decide(self, readings: Sequence[Named]) -> None:
        if self._by_hand and self.window is not None:
            self._look_after_hand(readings)
            return
        cooling = self._cooling_s()
        now = self._clock.now()
        shut_at = None if cooling is None else now - (self._rules.cooldown - timedelta(seconds=cooling))
        is_open = self.window is not None
        expected = None if is_open else self.expected(readings)
        moment = Moment(now, readings, self.objections, is_open, shut_at, expected)
        decision = decide(moment, self._rules)
        if not decision.is_open:
            self._shut(decision.reason)
        elif not is_open:
            self._by_hand = False
            self._opened(decision.reason, None if expected is None else now + expected)

    def _look_after_hand(self, readings: Sequence[Named]) -> None:
        """Once whoever opened it has left, their return shuts it."""
        is_present = _is_present(readings)
        if self._has_left and is_present:
            self._shut("you are back")
        elif not is_present:
            self._has_left = True

    def _heard_turn(self) -> None:
        """Called from the request path."""
        self._habits.active()
        if self._gate.window is not None:
            self._shut("traffic: a main turn")

    def _heard_input(self, ago_s: float) -> None:
        self._habits.active(ago_s)
        if self._gate.window is None or (self._by_hand and not self._has_left):
            return
        if ago_s < self._habits.patience().present_s:
            self._shut("input: a key or the mouse")

    def _jumped(self, jump: timedelta) -> None:
        """After a sleep of the machine or a new clock nothing known before counts, and somebody is probably here."""
        log.info("clock_jumped seconds=%.0f", jump.total_seconds())
        self._announce("window.clock_jumped", {"seconds": round(jump.total_seconds(), 1)})
        self._habits.jumped()
        self._traffic.jumped()
        for one in self._inputs:
            one.jumped()
        self._shut("the machine slept, or its clock was set")
        self._shut_at = self._clock.monotonic()  # whoever opened the lid has a moment to show themselves

    def _opened(self, reason: str, until: datetime | None) -> None:
        log.info("window_opened reason=%r until=%s", reason, until)
        self._announce(
            "window.opened", {"reason": reason, "until": None if until is None else until.isoformat(), "by_hand": self._by_hand}
        )
        self._gate.open(reason, until)

    def _shut(self, why: str) -> None:
        """Shut at once; whoever works in it is stopped before this returns."""
        window = self._gate.window
        self._gate.shut(why)
        if window is not None:
            self._by_hand, self._shut_at = False, self._clock.monotonic()
            self._wake.set()
            lasted = self._clock.now() - window.opened
            log.info("window_shut why=%r lasted=%s", why, in_words(lasted))
            self._announce(
                "window.shut", {"why": why, "opened": window.opened.isoformat(), "lasted_s": round(lasted.total_seconds(), 1)}
            )

    def _cooling_s(self) -> float | None:
        """How long the cool-down still lasts; None where no window was shut yet."""
        if self._shut_at is None:
            return None
        return self._rules.cooldown.total_seconds() - (self._clock.monotonic() - self._shut_at)


def _is_present(readings: Sequence[Named]) -> bool:
    return any(one.reading.presence is Presence.PRESENT for one in readings)


def _keep(path: Path, habits: Habits) -> None:
    try:
        keep_history(path, habits.history)
    except OSError as error:
        log.warning("history_not_kept path=%s reason=%s", path, error)

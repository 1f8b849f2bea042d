"""A clock to turn by hand, sources that say what they are told, and windows built of them."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from metaclaw.config import sleep_range
from metaclaw.schedule.forecast import Habits, History
from metaclaw.schedule.input import Inactivity, InputReport
from metaclaw.schedule.presence import Presence, Reading, SleepHours, Traffic, WindowThresholds
from metaclaw.schedule.training_windows import ScheduledWindows

NOON = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)  # a Wednesday
VIENNA = ZoneInfo("Europe/Vienna")


def is_empty(history: History) -> bool:
    return not any(history.counts)


def chance_to_last(history: History, idle_s: float, more_s: float) -> float:
    """The probability that a spell of `idle_s` lasts `more_s` longer; Lindy's rule counts as one
    spell.
    """
    idle_s = max(idle_s, 1.0)
    here, there = history.evidence(idle_s), history.evidence(idle_s + more_s)
    return (there + idle_s / (idle_s + more_s)) / (here + 1.0)


@dataclass(slots=True)
class HandClock:
    """Moves only when told. `sleep` lets the wall go on alone, as when the machine is suspended."""

    wall: datetime = NOON
    steady: float = 1000.0

    def now(self) -> datetime:
        return self.wall

    def monotonic(self) -> float:
        return self.steady

    def go(self, **span: float) -> None:
        passed = timedelta(**span)
        self.wall += passed
        self.steady += passed.total_seconds()

    def jump(self, **span: float) -> None:
        self.wall += timedelta(**span)


class ScriptedSource:
    """A source whose report is spoken through by the test."""

    hears_all = True

    def __init__(self, name: str = "input", *, is_screen: bool = False) -> None:
        self.name, self.is_screen = name, is_screen
        self.report: InputReport | None = None

    async def follow(self, report: InputReport) -> None:
        self.report = report
        await asyncio.Event().wait()


@dataclass(slots=True)
class Saying:
    """A calendar that says what it is told."""

    name: str = "calendar"
    reading: Reading = field(default_factory=lambda: Reading(Presence.UNKNOWN, "no event now"))

    def read(self, now: datetime) -> Reading:
        return self.reading

    async def follow(self) -> None:
        await asyncio.Event().wait()


@dataclass(slots=True)
class Objector:
    """A neighbour."""

    objections: Sequence[str] = ()

    async def follow(self) -> None:
        await asyncio.Event().wait()


class Stage:
    """Windows with a keyboard, traffic, sleep hours, a calendar and a neighbour, all in the test's
    hands.
    """

    def __init__(
        self,
        *,
        sleep: Sequence[str] = (),
        idle_minutes: float = 30,
        least_minutes: float = 1,
        cooldown_minutes: float = 1,
        history: History | None = None,
        has_keyboard: bool = True,
        has_screen: bool = False,
        clock: HandClock | None = None,
    ) -> None:
        self.clock = HandClock() if clock is None else clock
        self.events: list[tuple[str, Mapping[str, object]]] = []
        self.changes: list[bool] = []
        self.traffic = Traffic(clock=self.clock.monotonic)
        self.calendar, self.neighbour = Saying(), Objector()
        self.habits = Habits(
            idle_s=idle_minutes * 60, least_s=least_minutes * 60, clock=self.clock, history=history
        )
        ranges = [sleep_range(text) for text in sleep]
        self.windows = ScheduledWindows(
            habits=self.habits,
            traffic=self.traffic,
            sources=[
                *([ScriptedSource()] if has_keyboard else []),
                *([ScriptedSource("screen", is_screen=True)] if has_screen else []),
            ],
            sleep=SleepHours(ranges, lambda: VIENNA) if ranges else None,
            calendars=[self.calendar],
            machine_load=self.neighbour,
            rules=WindowThresholds(
                timedelta(minutes=least_minutes), timedelta(minutes=cooldown_minutes)
            ),
            clock=self.clock,
            announce=lambda kind, facts: self.events.append((kind, facts)),
        )
        self.windows.on_change(lambda window: self.changes.append(window is not None))

    @property
    def keyboard(self) -> Inactivity:
        return self.windows.inputs[0]

    @property
    def screen(self) -> Inactivity:
        return self.windows.inputs[-1]

    @property
    def is_open(self) -> bool:
        return self.windows.window is not None

    def go(self, **span: float) -> bool:
        """Let time pass as the program's own loop does, looking whenever it asks to; whether a
        window is open afterwards.
        """
        left = timedelta(**span).total_seconds()
        while left > 0:
            step = min(left, self.windows.look())
            self.clock.go(seconds=step)
            left -= step
        self.windows.refresh()
        return self.is_open

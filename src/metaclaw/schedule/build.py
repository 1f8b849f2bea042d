"""The scheduler put together from `[schedule]`."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import anyio

from metaclaw.config import CalendarConfig, Config, ScheduleConfig
from metaclaw.errors import ConfigError
from metaclaw.schedule.byhand import HandOpened
from metaclaw.schedule.calendars.child import read as read_in_child
from metaclaw.schedule.calendars.event import CalendarError, Event, Question
from metaclaw.schedule.clock import Clock, SystemClock
from metaclaw.schedule.decide import Rules
from metaclaw.schedule.habits import Habits, read_history
from metaclaw.schedule.inputs import input_sources
from metaclaw.schedule.neighbours import Limits, Neighbours
from metaclaw.schedule.signals.calendar import Calendar
from metaclaw.schedule.signals.inactivity import SignalError, Source
from metaclaw.schedule.signals.sleep import SleepHours
from metaclaw.schedule.signals.traffic import Traffic
from metaclaw.schedule.windows import Announce, Windows
from metaclaw.schedule.zone import LocalZone, fixed

_BEHIND, _AHEAD = timedelta(days=1), timedelta(days=8)
_FOLDER: Final = "schedule"
_HISTORY: Final = "habits.json"


def build_windows(
    config: Config,
    traffic: Traffic,
    *,
    home: Path,
    announce: Announce,
    clock: Clock | None = None,
    sources: Sequence[Source] | None = None,
) -> Windows | HandOpened:
    """What says when to train, by `policy.mode`: decided (`auto`), always open (`rl`), or never (`skills_only`)."""
    mode = "skills_only" if config.policy is None else config.policy.mode
    clock = SystemClock() if clock is None else clock
    if mode != "auto":
        windows = HandOpened(clock.now)
        windows.shut("mode skills_only trains no weights")
        if mode == "rl":
            windows.open("mode rl trains whenever a batch is full")
        return windows
    schedule, folder = config.schedule, home / _FOLDER
    zone = LocalZone() if schedule.timezone is None else fixed(schedule.timezone)
    least_s = schedule.min_window_minutes * 60
    history = read_history(folder / _HISTORY)
    habits = Habits(idle_s=schedule.idle_minutes * 60, least_s=least_s, zone=zone, clock=clock, history=history)
    neighbours = _neighbours(schedule, trains_here=config.policy is not None and config.policy.backend == "embedded")
    calendars = build_calendars(schedule, folder, clock.now)
    built = Windows(
        habits=habits,
        traffic=traffic,
        sources=input_sources() if sources is None else sources,
        sleep=SleepHours(schedule.sleep_ranges, zone, schedule.sleep_trouble) if schedule.sleep else None,
        calendars=calendars,
        neighbours=neighbours,
        rules=Rules(timedelta(seconds=least_s), timedelta(minutes=schedule.cooldown_minutes)),
        clock=clock,
        announce=announce,
        keep=folder / _HISTORY,
    )
    neighbours.hear = built.refresh
    for calendar in calendars:
        calendar.hear = built.refresh
    return built


def build_calendars(schedule: ScheduleConfig, folder: Path, now: Callable[[], datetime]) -> list[Calendar]:
    """Each configured calendar as a signal."""
    return [
        Calendar(
            f"calendar {number} ({one.kind})",
            _reader(one, schedule, google_tokens(folder, number)),
            rules=schedule.rules,
            every=timedelta(minutes=one.refresh_minutes),
            now=now,
        )
        for number, one in enumerate(schedule.calendars, 1)
    ]


def read_calendars(config: Config, home: Path) -> list[tuple[str, str | None]]:
    """Read every calendar once: its name, and what is wrong with it, if anything is. Blocks."""
    calendars = build_calendars(config.schedule, home / _FOLDER, SystemClock().now)

    async def look() -> None:
        async with anyio.create_task_group() as group:
            for one in calendars:
                group.start_soon(one.look)

    anyio.run(look)
    readings = [(one.name, one.read(SystemClock().now())) for one in calendars]
    return [(name, reading.why if reading.is_trouble else None) for name, reading in readings]


def google_tokens(folder: Path, number: int) -> Path:
    """Where the tokens of a calendar are kept."""
    return folder / f"google-{number}.json"


def question_for(one: CalendarConfig, schedule: ScheduleConfig, tokens: Path, now: datetime) -> Question:
    """What to ask of a calendar now. Raises ConfigError where a secret cannot be had."""
    return Question(
        kind=one.kind,
        begins=now - _BEHIND,
        ends=now + _AHEAD,
        zone=schedule.timezone,
        url="" if one.url is None else one.url.resolve(),
        user=one.user,
        password=None if one.password is None else one.password.resolve(),
        client_id=one.client_id or "",
        client_secret="" if one.client_secret is None else one.client_secret.resolve(),
        calendar=one.calendar,
        token_file=str(tokens),
        needs_titles=bool(schedule.rules),
        timeout_s=one.timeout_s,
    )


def _reader(one: CalendarConfig, schedule: ScheduleConfig, tokens: Path) -> Callable[[datetime], Awaitable[Sequence[Event]]]:
    async def read(now: datetime) -> Sequence[Event]:
        try:
            question = question_for(one, schedule, tokens, now)
        except ConfigError as error:
            raise CalendarError(str(error)) from error
        return await read_in_child(question)

    return read


def _neighbours(schedule: ScheduleConfig, *, trains_here: bool) -> Neighbours:
    limits = Limits.of(schedule, trains_here=trains_here)
    try:
        from metaclaw.schedule.signals.metered import Metered
    except SignalError:
        return Neighbours(limits)
    return Neighbours(limits, is_metered=Metered() if limits.uses_network else None)

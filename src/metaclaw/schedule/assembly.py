"""Build the scheduler from `[schedule]`: windows, input sources, calendars."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Protocol, cast

import anyio

from metaclaw.config import CalendarConfig, Config, ScheduleConfig
from metaclaw.errors import ConfigError
from metaclaw.hooks import PRESENCE, PluginError, installed_names, load_plugin
from metaclaw.schedule.calendar_plugins import (
    CalendarError,
    CalendarEvent,
    CalendarQuery,
    find_plugin,
    read_in_child,
)
from metaclaw.schedule.calendars import Calendar
from metaclaw.schedule.clock import Clock, LocalZone, SystemClock, fixed
from metaclaw.schedule.forecast import Habits, read_history
from metaclaw.schedule.input import InputSource, TtyInput
from metaclaw.schedule.machine_load import MachineLoad
from metaclaw.schedule.presence import SleepHours, Traffic, WindowThresholds
from metaclaw.schedule.training_windows import Announce, ManualWindows, ScheduledWindows

log = logging.getLogger(__name__)


class PresencePlugin(Protocol):
    """What an entry point of `metaclaw.presence` names."""

    def input_sources(self) -> Sequence[InputSource]:
        """What reports keyboard and mouse on this system."""

    async def is_metered(self) -> bool | None:
        """Whether the network is metered; None if the system does not say."""


def presence_plugins() -> list[PresencePlugin]:
    """The installed plugins; one that cannot be loaded is left out."""
    found: list[PresencePlugin] = []
    for name in sorted(installed_names(PRESENCE)):
        try:
            found.append(cast(PresencePlugin, load_plugin(PRESENCE, name, object)))
        except PluginError as error:
            log.warning("presence_unknown reason=%s", error)
    return found


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
    sources: Sequence[InputSource] | None = None,
) -> ScheduledWindows | ManualWindows:
    """The windows for `policy.mode`: by signals (`auto`), always open (`rl`), or never
    (`skills_only`).
    """
    mode = "skills_only" if config.policy is None else config.policy.mode
    clock = SystemClock() if clock is None else clock
    if mode != "auto":
        windows = ManualWindows(clock.now)
        windows.shut("mode skills_only trains no weights")
        if mode == "rl":
            windows.open("mode rl trains whenever a batch is full")
        return windows
    schedule, folder = config.schedule, home / _FOLDER
    zone = LocalZone() if schedule.timezone is None else fixed(schedule.timezone)
    least_s = schedule.min_window_minutes * 60
    history = read_history(folder / _HISTORY)
    habits = Habits(
        idle_s=schedule.idle_minutes * 60, least_s=least_s, clock=clock, history=history
    )
    trains_here = config.policy is not None and config.policy.backend == "embedded"
    plugins = presence_plugins()
    metered = next((plugin.is_metered for plugin in plugins), None)
    machine_load = MachineLoad(schedule, trains_here=trains_here, is_metered=metered)
    heard = [TtyInput(), *(source for plugin in plugins for source in plugin.input_sources())]
    calendars = build_calendars(schedule, folder, clock.now)
    built = ScheduledWindows(
        habits=habits,
        traffic=traffic,
        sources=heard if sources is None else sources,
        sleep=(
            SleepHours(schedule.sleep_ranges, zone, schedule.sleep_trouble)
            if schedule.sleep
            else None
        ),
        calendars=calendars,
        machine_load=machine_load,
        rules=WindowThresholds(
            timedelta(seconds=least_s), timedelta(minutes=schedule.cooldown_minutes)
        ),
        clock=clock,
        announce=announce,
        keep=folder / _HISTORY,
    )
    machine_load.hear = built.refresh
    for calendar in calendars:
        calendar.hear = built.refresh
    return built


def build_calendars(
    schedule: ScheduleConfig, folder: Path, now: Callable[[], datetime]
) -> list[Calendar]:
    """Make a signal of each configured calendar."""
    return [
        Calendar(
            f"calendar {number} ({one.kind})",
            _reader(one, schedule, token_file(folder, one.kind, number)),
            rules=schedule.rules,
            every=timedelta(minutes=one.refresh_minutes),
            now=now,
        )
        for number, one in enumerate(schedule.calendars, 1)
    ]


def read_calendars(config: Config, home: Path) -> list[tuple[str, str | None]]:
    """Read every calendar once: its name, and its error or None. Blocks."""
    calendars = build_calendars(config.schedule, home / _FOLDER, SystemClock().now)

    async def look() -> None:
        async with anyio.create_task_group() as group:
            for one in calendars:
                group.start_soon(one.look)

    anyio.run(look)
    readings = [(one.name, one.read(SystemClock().now())) for one in calendars]
    return [(name, reading.why if reading.is_trouble else None) for name, reading in readings]


def connect_calendar(
    config: Config, home: Path, number: int, show: Callable[[str], None], timeout_s: float
) -> None:
    """Ask the user to consent to reading calendar `number`. Blocks.

    `show` gets the address to open. Raises ConfigError if no such calendar needs consent, and
    CalendarError without consent."""
    schedule = config.schedule
    if number > len(schedule.calendars):
        raise ConfigError(f"schedule.calendars has no calendar {number}")
    calendar = schedule.calendars[number - 1]
    plugin = find_plugin(calendar.kind)
    if not hasattr(plugin, "connect"):
        raise ConfigError(
            f"calendar {number} of schedule.calendars is of kind {calendar.kind}, which needs no"
            " consent"
        )
    query = calendar_query(
        calendar, schedule, token_file(home / _FOLDER, calendar.kind, number), SystemClock().now()
    )
    plugin.connect(query, show, timeout_s)


def token_file(folder: Path, kind: str, number: int) -> Path:
    """The file with the tokens of a calendar."""
    return folder / f"{kind}-{number}.json"


def calendar_query(
    calendar: CalendarConfig, schedule: ScheduleConfig, tokens: Path, now: datetime
) -> CalendarQuery:
    """The query for a calendar now. Raises ConfigError if a secret is missing."""
    return CalendarQuery(
        kind=calendar.kind,
        begins=now - _BEHIND,
        ends=now + _AHEAD,
        zone=schedule.timezone,
        url="" if calendar.url is None else calendar.url.resolve(),
        user=calendar.user,
        password=None if calendar.password is None else calendar.password.resolve(),
        client_id=calendar.client_id or "",
        client_secret="" if calendar.client_secret is None else calendar.client_secret.resolve(),
        calendar=calendar.calendar,
        token_file=str(tokens),
        needs_titles=bool(schedule.rules),
        timeout_s=calendar.timeout_s,
    )


def _reader(
    calendar: CalendarConfig, schedule: ScheduleConfig, tokens: Path
) -> Callable[[datetime], Awaitable[Sequence[CalendarEvent]]]:
    async def read(now: datetime) -> Sequence[CalendarEvent]:
        try:
            question = calendar_query(calendar, schedule, tokens, now)
        except ConfigError as error:
            raise CalendarError(str(error)) from error
        return await read_in_child(question)

    return read

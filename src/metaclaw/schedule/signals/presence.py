"""Signals of presence: traffic through the proxy, sleep hours, and calendars."""

import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from datetime import time as time_of_day
from typing import Final, Literal

import anyio

from metaclaw.config import RuleConfig, SleepRange
from metaclaw.domain.turn import TurnKind
from metaclaw.schedule.calendars.query import CalendarError, CalendarEvent
from metaclaw.schedule.clock import Zone
from metaclaw.schedule.decision import Presence, Reading
from metaclaw.schedule.forecast import Patience


class Traffic:
    """A main turn means present, while it is answered and some time after; a longer silence means away. Heartbeats and side turns
    do not count.

    If there is an input source, silence here means nothing. Called from the request path, so it must be quick.
    """

    name = "traffic"

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._has_come = False
        self._answers = 0
        self._is_main_answered = False
        self._hear: Callable[[], None] | None = None
        self._patience: Callable[[], Patience] | None = None
        self._is_alone: Callable[[], bool] = lambda: True

    def on_main_turn(self, hear: Callable[[], None], patience: Callable[[], Patience], is_alone: Callable[[], bool]) -> None:
        """Call `hear` at once when a main turn begins, and when the last answer is out. It must not block."""
        self._hear, self._patience, self._is_alone = hear, patience, is_alone

    def began(self, kind: TurnKind) -> None:
        """A request came in."""
        self._answers += 1
        if kind is TurnKind.MAIN:
            self._is_main_answered = True
            self._active()

    def ended(self) -> None:
        """An answer ended. Its kind is unknown, so presence ends with the last of all answers."""
        self._answers -= 1
        if self._answers == 0 and self._is_main_answered:
            self._is_main_answered = False
            self._active()

    def jumped(self) -> None:
        """Restart after a sleep of the machine or a clock change."""
        self._last = self._clock()

    def read(self, now: datetime) -> Reading:
        """How long ago the last main turn was."""
        if self._is_main_answered:
            return Reading(Presence.PRESENT, "a main turn is being answered")
        silence_s = max(0.0, self._clock() - self._last)
        last = f"last main turn {ago(silence_s)}" if self._has_come else "no main turn yet"
        if self._patience is None:
            return Reading(Presence.UNKNOWN, last)
        patience = self._patience()
        if self._has_come and silence_s < patience.present_s:
            return Reading(Presence.PRESENT, last, now + timedelta(seconds=patience.present_s - silence_s))
        if not self._is_alone():
            return Reading(Presence.UNKNOWN, f"{last}; the keyboard knows better")
        if silence_s < patience.away_s:
            return Reading(Presence.UNKNOWN, last, now + timedelta(seconds=patience.away_s - silence_s))
        return Reading(Presence.AWAY, f"no main turn for {ago(silence_s).removesuffix(' ago')}")

    def _active(self) -> None:
        self._last, self._has_come = self._clock(), True
        if self._hear is not None:
            self._hear()


def ago(seconds: float) -> str:
    """How long ago, for people."""
    return f"{round(seconds)} s ago" if seconds < 120 else f"{round(seconds / 60)} min ago"


class SleepHours:
    """Sleep hours: away in ranges of the local day on given weekdays, unknown outside of them.

    Times are local wall time: the night of a change to summer time is an hour shorter, and a range that begins in the skipped hour
    begins at its end.
    """

    name = "sleep hours"

    def __init__(self, ranges: Sequence[SleepRange], zone: Zone, trouble: str | None = None) -> None:
        """`trouble` is the error in the configured hours, if any; the reading is then unknown."""
        self._ranges = tuple(ranges)
        self._zone = zone
        self._trouble = trouble
        self._planned: tuple[tuple[date, tzinfo], list[tuple[datetime, datetime]]] | None = None

    def read(self, now: datetime) -> Reading:
        """Whether this is a time of sleep."""
        if self._trouble is not None:
            return Reading(Presence.UNKNOWN, self._trouble, is_trouble=True)
        zone = self._zone()
        stretches = self._plan(now.astimezone(zone).date(), zone)
        end = _end_of_sleep(now, stretches)
        if end is not None:
            return Reading(Presence.AWAY, f"asleep until {end.astimezone(zone):%H:%M}", end)
        later = [begin for begin, _ in stretches if begin > now]
        return Reading(Presence.UNKNOWN, "not a time of sleep", min(later, default=None))

    def _plan(self, today: date, zone: tzinfo) -> list[tuple[datetime, datetime]]:
        """The stretches of sleep of the days around today."""
        if self._planned is None or self._planned[0] != (today, zone):
            self._planned = (today, zone), sorted(self._around(today, zone))
        return self._planned[1]

    def _around(self, today: date, zone: tzinfo) -> Iterator[tuple[datetime, datetime]]:
        for offset in range(-1, 9):
            day = today + timedelta(days=offset)
            for one in self._ranges:
                if day.weekday() in one.days:
                    last = day if one.ends > one.begins else day + timedelta(days=1)
                    begin, end = _instant(day, one.begins, zone), _instant(last, one.ends, zone)
                    if begin < end:
                        yield begin, end


def _end_of_sleep(now: datetime, stretches: Sequence[tuple[datetime, datetime]]) -> datetime | None:
    """The end of the current range, including those that follow without a gap; None outside of any."""
    end = None
    for begin, until in stretches:
        if begin <= (end or now) < until:
            end = until
    return end


def _instant(day: date, shown: time_of_day, zone: tzinfo) -> datetime:
    """The instant of a local time; for a skipped one, the end of the gap."""
    wanted = datetime.combine(day, shown, zone)
    instant = wanted.astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == wanted.replace(tzinfo=None):
        return instant
    # In the skipped hour a time is read with the offset before the gap (fold 0), which is too late by what lies behind its begin.
    low, high = instant - timedelta(hours=3), instant
    while high - low > timedelta(seconds=1):
        middle = low + (high - low) / 2
        low, high = (middle, high) if middle.astimezone(zone).replace(tzinfo=None) < wanted.replace(tzinfo=None) else (low, middle)
    return high.replace(microsecond=0)


log = logging.getLogger(__name__)

Read = Callable[[datetime], Awaitable[Sequence[CalendarEvent]]]
_AFTER_TROUBLE_S: Final = 60.0
# How long after the last good look what a calendar said still counts: a few looks may fail.
_STALE_AFTER_LOOKS: Final = 3


@dataclass(frozen=True, slots=True)
class _Busy:
    event: CalendarEvent
    means: Literal["away", "present"]


class Calendar:
    """A calendar: busy means away, unless a rule about the title says otherwise. `read` fetches the events."""

    def __init__(
        self,
        name: str,
        read: Read,
        *,
        rules: Sequence[RuleConfig],
        every: timedelta,
        now: Callable[[], datetime],
        hear: Callable[[], None] = lambda: None,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self.name = name
        self._read_events = read
        self._rules = tuple(rules)
        self._every = every
        self._now = now
        self.hear = hear
        self._sleep = sleep
        self._busy: tuple[_Busy, ...] = ()
        self._read_at: datetime | None = None
        self._trouble: str | None = "not read yet"

    def read(self, now: datetime) -> Reading:
        """The reading by the current event."""
        if self._trouble is not None:
            return Reading(Presence.UNKNOWN, self._trouble, is_trouble=self._read_at is not None or self._trouble != "not read yet")
        if self._read_at is None or not timedelta(0) <= now - self._read_at <= self._every * _STALE_AFTER_LOOKS:
            return Reading(Presence.UNKNOWN, "it was not read for too long", is_trouble=True)
        running = [one for one in self._busy if one.event.begins <= now < one.event.ends]
        for one in running:
            if one.means == "present":
                return Reading(Presence.PRESENT, f"{_titled(one)} means present", one.event.ends)
        if running:
            return Reading(Presence.AWAY, _titled(running[0]), self._end(now))
        coming = min((one.event.begins for one in self._busy if one.event.begins > now and one.means == "away"), default=None)
        return Reading(Presence.UNKNOWN, "no event now", coming)

    async def follow(self) -> None:
        """Fetch it regularly, for ever."""
        while True:
            await self.look()
            wait_s = self._every.total_seconds() if self._trouble is None else min(_AFTER_TROUBLE_S, self._every.total_seconds())
            await self._sleep(wait_s)

    async def look(self) -> None:
        """Fetch it once; an error makes the reading unknown."""
        now = self._now()
        try:
            events = await self._read_events(now)
        except CalendarError as error:
            if self._trouble != str(error):
                log.warning("calendar_unreadable calendar=%s reason=%s", self.name, error)
            self._trouble = str(error)
        else:
            self._busy, self._read_at, self._trouble = tuple(self._meant(events)), now, None
        self.hear()

    def _meant(self, events: Sequence[CalendarEvent]) -> Iterator[_Busy]:
        for event in sorted(events, key=lambda one: one.begins):
            title = event.title.casefold()
            rule = next((one for one in self._rules if one.title.casefold() in title), None)
            if rule is None:
                yield _Busy(event, "away")
            elif rule.means != "nothing":
                yield _Busy(event, rule.means)

    def _end(self, now: datetime) -> datetime:
        """When the user is free again: adjacent meetings count as one."""
        end = now
        for one in self._busy:
            if one.means == "away" and one.event.begins <= end < one.event.ends:
                end = one.event.ends
        return end


def _titled(one: _Busy) -> str:
    return f"busy: {one.event.title[:60]}" if one.event.title else "busy"

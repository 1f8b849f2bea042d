"""Sleep hours: ranges of the local day, on the weekdays on which they begin; safe when clocks are put forward or back.

Hours are what the clock on the wall shows: a night in which the clock is put forward is an hour shorter, and a range that begins in
the hour that is skipped begins when that hour would have been over.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from metaclaw.config import SleepRange
from metaclaw.schedule.reading import Presence, Reading
from metaclaw.schedule.zone import Zone


class SleepHours:
    """A signal. It says away in its hours and nothing outside of them: who is awake need not be at the machine."""

    name = "sleep hours"

    def __init__(self, ranges: Sequence[SleepRange], zone: Zone, trouble: str | None = None) -> None:
        """`trouble` says which of a person's hours cannot be; until they are corrected it is unknown when they sleep."""
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
    """When the sleep that has begun will be over, with whatever follows without a pause; None while awake."""
    end = None
    for begin, until in stretches:
        if begin <= (end or now) < until:
            end = until
    return end


def _instant(day: date, shown: time, zone: tzinfo) -> datetime:
    """The moment at which the clock on the wall shows this; the end of the gap, where it never does."""
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

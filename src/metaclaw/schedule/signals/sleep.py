"""Sleep hours: ranges of the local day, on the weekdays on which they begin; safe when clocks are put forward or back.

Hours are what the clock on the wall shows: a night in which the clock is put forward is an hour shorter, and a range that begins in
the hour that is skipped begins when that hour would have been over.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo

from metaclaw.config import SleepRange
from metaclaw.schedule.reading import Presence, Reading


class SleepHours:
    """A signal. It says away in its hours and nothing outside of them: who is awake need not be at the machine."""

    name = "sleep hours"

    def __init__(self, ranges: Sequence[SleepRange], zone: tzinfo) -> None:
        self._ranges = tuple(ranges)
        self._zone = zone

    def read(self, now: datetime) -> Reading:
        """Whether this is a time of sleep."""
        ends = [end for begin, end in self._around(now) if begin <= now < end]
        if ends:
            end = max(ends)
            return Reading(Presence.AWAY, f"asleep until {end.astimezone(self._zone):%H:%M}", end)
        later = [begin for begin, _ in self._around(now) if begin > now]
        return Reading(Presence.UNKNOWN, "not a time of sleep", min(later, default=None))

    def _around(self, now: datetime) -> Iterator[tuple[datetime, datetime]]:
        """The stretches of sleep of the days around a moment, in UTC."""
        today = now.astimezone(self._zone).date()
        for offset in range(-1, 9):
            day = today + timedelta(days=offset)
            for one in self._ranges:
                if day.weekday() in one.days:
                    last = day if one.ends > one.begins else day + timedelta(days=1)
                    begin, end = (
                        self._instant(day, one.begins.hour, one.begins.minute),
                        self._instant(last, one.ends.hour, one.ends.minute),
                    )
                    if begin < end:
                        yield begin, end

    def _instant(self, day: date, hour: int, minute: int) -> datetime:
        """The moment at which the clock on the wall shows this; after the gap, where it never does."""
        local = datetime(day.year, day.month, day.day, hour, minute, tzinfo=self._zone)
        instant = local.astimezone(UTC)
        shown = instant.astimezone(self._zone).replace(tzinfo=None)
        # In the skipped hour arithmetic gives a moment before the gap for which the wall shows a later time.
        return instant if shown == local.replace(tzinfo=None) else instant.replace(minute=0, second=0)

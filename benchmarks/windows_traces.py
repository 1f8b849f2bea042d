"""Activity traces for the scheduler's simulator: when a person is there, what their hands do, where
they are, what is planned.

Presence is the truth that no signal sees: from the first to the last touch of a sitting. Inside it
hands rest for some seconds at a time; times are seconds since the trace began, on a Monday at
midnight in Vienna."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

DAY_S, HOUR_S, MINUTE_S = 86_400.0, 3_600.0, 60.0
SHORTEST_REST_S, LONGEST_REST_S = 5.0, 180.0
VIENNA, NEW_YORK = ZoneInfo("Europe/Vienna"), ZoneInfo("America/New_York")
BEGAN = datetime(2026, 3, 2, tzinfo=VIENNA)  # summer time begins in the fourth week

Spell = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Trace:
    """One person's days. `present` is sorted and has no overlaps; `pause` draws how long hands rest
    while somebody is there.
    """

    name: str
    days: int
    present: tuple[Spell, ...]
    meetings: tuple[Spell, ...] = ()
    moves: tuple[tuple[float, ZoneInfo], ...] = ((0.0, VIENNA),)
    pause: Callable[[random.Random], float] = lambda chance: 5.0 + 4.5 * chance.random()
    is_goal: bool = True

    @property
    def away(self) -> Iterator[Spell]:
        """The truth's other half."""
        last = 0.0
        for begin, end in (*self.present, (self.days * DAY_S, self.days * DAY_S)):
            if begin > last:
                yield last, begin
            last = max(last, end)


def one_night(days: int, chance: random.Random) -> Trace:
    """There all day, asleep for eight hours."""
    sittings = [
        (at(day, 7 + chance.uniform(-0.25, 0.25)), at(day, 23 + chance.uniform(-0.25, 0.25)))
        for day in range(days)
    ]
    return Trace("one 8-hour night", days, _spells(sittings, days))


def thirty_gaps(days: int, chance: random.Random) -> Trace:
    """Somebody is always there, but for ten minutes thirty times a day."""
    slot = DAY_S / 30
    gaps = [
        begin
        for day in range(days)
        for begin in (day * DAY_S + slot * n + chance.uniform(0, slot - 660) for n in range(30))
    ]
    return Trace("thirty 10-minute gaps", days, _between([(gap, gap + 600) for gap in gaps], days))


def poisson_gaps(days: int, chance: random.Random) -> Trace:
    """Away for three minutes on average, memoryless; there for as long."""
    gaps, now = [], 60.0
    while now < days * DAY_S:
        gap = chance.expovariate(1 / 180)
        gaps.append((now, now + gap))
        now += gap + 60 + chance.expovariate(1 / 120)
    return Trace("Poisson 3-minute gaps", days, _between(gaps, days))


def night_worker(days: int, chance: random.Random) -> Trace:
    """Works from eight in the evening to four in the morning, through the hours in which others
    sleep, with a meal at midnight.
    """
    sittings = []
    for day in range(days):
        begin, end, meal = (
            at(day, 20 + chance.uniform(-0.5, 0.5)),
            at(day, 28 + chance.uniform(-0.5, 0.5)),
            at(day, 24),
        )
        sittings += [(begin, meal), (meal + chance.uniform(20, 45) * MINUTE_S, end)]
    return Trace("night worker", days, _spells(sittings, days))


def two_zones(days: int, chance: random.Random) -> Trace:
    """Two weeks in Vienna, two in New York, and so on; the same day by the clock on the wall."""
    moves = tuple(
        (day * DAY_S, NEW_YORK if day // 14 % 2 else VIENNA) for day in range(0, days, 14)
    )
    sittings = []
    for day in range(days):
        zone_s = 6 * HOUR_S if day // 14 % 2 else 0.0
        for begin, end in ((8, 12), (13, 18), (20, 22.75)):
            sittings.append(
                (
                    at(day, begin + chance.uniform(-0.2, 0.2)) + zone_s,
                    at(day, end + chance.uniform(-0.2, 0.2)) + zone_s,
                )
            )
    return Trace("two time zones", days, _spells(sittings, days), moves=moves)


def meetings(days: int, chance: random.Random) -> Trace:
    """Six meetings a day, all in the calendar, and a little work between them; weekends off."""
    sittings, busy = [], []
    for day in range(days):
        if day % 7 >= 5:
            continue
        now = at(day, 9)
        for _ in range(6):
            work = chance.uniform(10, 40) * MINUTE_S
            meeting = chance.choice((30, 45, 60)) * MINUTE_S
            sittings.append((now, now + work))
            busy.append((now + work + 30, now + work + 30 + meeting))
            now += work + 30 + meeting + chance.uniform(10, 120)
        sittings.append((now, now + HOUR_S))
    return Trace("meeting-heavy day", days, _spells(sittings, days), tuple(busy))


def reader(days: int, chance: random.Random) -> Trace:
    """Not among the goals: hands rest for up to three minutes while somebody reads; breaks of
    twenty minutes, and nights.
    """
    sittings = []
    for day in range(days):
        now = at(day, 9)
        while now < at(day, 19):
            work = chance.uniform(30, 90) * MINUTE_S
            sittings.append((now, now + work))
            now += work + chance.uniform(15, 30) * MINUTE_S
    return Trace(
        "(reader, pauses to 3 min)",
        days,
        _spells(sittings, days),
        pause=_reading_pause,
        is_goal=False,
    )


TRACES = (one_night, thirty_gaps, poisson_gaps, night_worker, two_zones, meetings, reader)


def at(day: int, hour: float) -> float:
    """A time of a day, by a clock that is never changed."""
    return day * DAY_S + hour * HOUR_S


def touches(trace: Trace, chance: random.Random) -> Iterator[tuple[float, float]]:
    """Every touch worth telling, as (when, end of its sitting): pauses of less than five seconds
    change nothing.
    """
    pause = trace.pause
    for begin, end in trace.present:
        now = begin
        while now < end:
            yield now, end
            rest_s = pause(chance)
            now += rest_s if rest_s > SHORTEST_REST_S else SHORTEST_REST_S
        yield end, end


def _reading_pause(chance: random.Random) -> float:
    return min(LONGEST_REST_S, chance.lognormvariate(2.6, 1.0))


def _spells(sittings: list[Spell], days: int) -> tuple[Spell, ...]:
    last = days * DAY_S
    return tuple(
        (max(0.0, begin), min(end, last))
        for begin, end in sorted(sittings)
        if begin < last and begin < end
    )


def _between(gaps: list[Spell], days: int) -> tuple[Spell, ...]:
    """Presence wherever there is no gap."""
    spells, last = [], 0.0
    for begin, end in gaps:
        spells.append((last, begin))
        last = end
    return _spells([*spells, (last, days * DAY_S)], days)

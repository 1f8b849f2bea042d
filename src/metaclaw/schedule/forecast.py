"""How long will the person stay away? From their own idle spells, by the hour of the week in which each began. Pure.

A spell's length falls into one of some logarithmic bins, and each hour of the week counts its own. What is asked about a spell
that began on Tuesday at ten is answered from Tuesdays at ten first, from other days at ten second, and from all others a little.
Where there are few, a spell is taken to go on for as long as it has lasted (Lindy's rule). Old habits fade by half in five weeks.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import log
from typing import Final

SHORTEST_S: Final = 5.0
HOURS: Final = 168
_GROWTH: Final = 1.15
_BINS: Final = 82
_EDGES: Final = tuple(SHORTEST_S * _GROWTH**place for place in range(_BINS + 1))
_LOG_GROWTH: Final = log(_GROWTH)
_SAME_HOUR: Final = 1.0
_SAME_TIME: Final = 0.3
_ANY: Final = 0.02
_HALF_LIFE_DAYS: Final = 35.0
_DAY: Final = timedelta(days=1)
_LINDY_WEIGHT: Final = 1.0
_CACHED_HOURS: Final = 3
ENOUGH: Final = 4.0
LIKELY: Final = 0.6
VERY_LIKELY: Final = 0.9


@dataclass(frozen=True, slots=True)
class Survival:
    """How many spells (weighed) lasted at least as long as each bin's lower edge, ever fewer. A view: it grows with its history."""

    reached: list[float]

    def evidence(self, idle_s: float) -> float:
        """How many spells there were that got as far as this."""
        reached = self.reached
        if idle_s <= SHORTEST_S:
            return reached[0]
        place = log(idle_s / SHORTEST_S) / _LOG_GROWTH
        low = int(place)
        if low >= _BINS:
            return 0.0
        part = place - low
        return reached[low] * (1 - part) + reached[low + 1] * part

    def lasting(self, idle_s: float, more_s: float) -> float:
        """The chance that a spell that has lasted so long goes on for so much longer."""
        idle_s = max(idle_s, 1.0)
        here, there = self.evidence(idle_s), self.evidence(idle_s + more_s)
        return (there + _LINDY_WEIGHT * idle_s / (idle_s + more_s)) / (here + _LINDY_WEIGHT)

    def room_s(self, idle_s: float, chance: float) -> float:
        """How much longer it goes on with at least this chance: the bin in which the chance falls below, then the place in it."""
        idle_s = max(idle_s, 1.0)
        wanted = chance * (self.evidence(idle_s) + _LINDY_WEIGHT)
        low, reached = idle_s, self.reached
        for place in range(bisect_right(_EDGES, idle_s), _BINS + 1):
            edge = _EDGES[place]
            if reached[place] + _LINDY_WEIGHT * idle_s / edge < wanted:
                return self._place_s(idle_s, low, edge, wanted) - idle_s
            low = edge
        return max(low - idle_s, idle_s / chance - idle_s)  # longer than any that is known: as without history

    def _place_s(self, idle_s: float, low: float, high: float, wanted: float) -> float:
        evidence = self.evidence
        for _ in range(4):
            middle = (low + high) / 2
            if evidence(middle) + _LINDY_WEIGHT * idle_s / middle >= wanted:
                low = middle
            else:
                high = middle
        return low

    def patience_s(self, *, first_s: float, last_s: float, least_s: float) -> float:
        """After how long a silence it is likely that the person has left for at least `least_s`; `last_s` where nothing says so."""
        idle_s = first_s
        while idle_s < last_s:
            here = self.evidence(idle_s)
            if here < ENOUGH:
                return last_s
            longer_s = idle_s + least_s
            if self.evidence(longer_s) + _LINDY_WEIGHT * idle_s / longer_s >= LIKELY * (here + _LINDY_WEIGHT):
                return idle_s
            idle_s *= _GROWTH
        return last_s


@dataclass(slots=True)
class History:
    """Counts of idle spells, by the hour of the week in which they began."""

    counts: list[list[float]] = field(default_factory=lambda: [[0.0] * _BINS for _ in range(HOURS)])
    faded: datetime | None = None
    _cached: dict[int, Survival] = field(default_factory=dict, compare=False, repr=False)
    _total: list[float] | None = field(default=None, compare=False, repr=False)

    def add(self, began: datetime, length: timedelta) -> None:
        """A spell that began at this local time is over."""
        self.add_all(began, [length.total_seconds()])

    def add_all(self, began: datetime, lengths_s: Sequence[float]) -> None:
        """Spells are over; the first began at this local time, and the others soon after, in the same hour."""
        found: dict[int, int] = {}
        for seconds in lengths_s:
            if seconds >= SHORTEST_S:
                place = int(log(seconds / SHORTEST_S) / _LOG_GROWTH)
                found[place] = found.get(place, 0) + 1
        if found:
            self._fade(began)
            self._count(hour_of_week(began), found)

    def fades_by(self, now: datetime) -> bool:
        """Whether old habits are weighed less before a spell that began at this local time is counted."""
        return self.faded is not None and now - self.faded >= _DAY

    def survival(self, began: datetime) -> Survival:
        """What is known about a spell that began at this local time."""
        return self.survival_at(hour_of_week(began))

    def survival_at(self, hour: int) -> Survival:
        """What is known about a spell that began in this hour of the week."""
        found = self._cached.get(hour)
        if found is None:
            if len(self._cached) >= _CACHED_HOURS:
                self._cached.clear()
            found = self._cached[hour] = Survival(_reached(self._weighed(hour)))
        return found

    @property
    def is_empty(self) -> bool:
        """Whether no spell is known."""
        return not any(any(row) for row in self.counts)

    def _count(self, hour: int, found: dict[int, int]) -> None:
        """So many spells in each of these bins, here and in everything that was made of the counts."""
        for place, count in found.items():
            place = min(_BINS - 1, place)
            self.counts[hour][place] += count
            if self._total is not None:
                self._total[place] += count
            for other, survival in self._cached.items():
                weight, reached = _WEIGHTS[(hour - other) % HOURS] * count, survival.reached
                for lower in range(place + 1):
                    reached[lower] += weight

    def _weighed(self, hour: int) -> list[float]:
        """Every hour's counts by its weight: all of them a little, and what the few near ones have above that."""
        if self._total is None:
            self._total = [sum(column) for column in zip(*self.counts, strict=True)]
        near = [(weight - _ANY, self.counts[(hour + apart) % HOURS]) for apart, weight in enumerate(_WEIGHTS) if weight != _ANY]
        rows = [(weight, row) for weight, row in near if any(row)]
        return [_ANY * every + sum([weight * row[place] for weight, row in rows]) for place, every in enumerate(self._total)]

    def _fade(self, now: datetime) -> None:
        """Once a day, weigh everything a little less."""
        if self.faded is None:
            self.faded = now
        if now - self.faded >= _DAY:
            share = 0.5 ** ((now - self.faded) / _DAY / _HALF_LIFE_DAYS)
            self.faded = now
            for row in self.counts:
                row[:] = [count * share for count in row]
            self._cached.clear()
            self._total = None


def hour_of_week(when: datetime) -> int:
    """Monday at midnight is 0."""
    return when.weekday() * 24 + when.hour


def _weight(apart: int) -> float:
    """Of an hour that is so many hours away."""
    if min(apart, HOURS - apart) <= 1:
        return _SAME_HOUR
    return _SAME_TIME if min(apart % 24, -apart % 24) <= 1 else _ANY


_WEIGHTS: Final = tuple(_weight(apart) for apart in range(HOURS))


def _reached(counts: Sequence[float]) -> list[float]:
    reached, total = [0.0] * (_BINS + 1), 0.0
    for place in range(_BINS - 1, -1, -1):
        total += counts[place]
        reached[place] = total
    return reached

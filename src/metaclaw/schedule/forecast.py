"""How long will the person stay away? From their own idle spells, by the hour of the week in which each began. Pure.

A spell's length falls into one of some logarithmic bins, and each hour of the week counts its own. What is asked about a spell
that began on Tuesday at ten is answered from Tuesdays at ten first, from other days at ten second, and from all others a little.
Where there are few, a spell is taken to go on for as long as it has lasted (Lindy's rule). Old habits fade by half in five weeks.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

SHORTEST_S: Final = 5.0
HOURS: Final = 168
_GROWTH: Final = 1.15
_BINS: Final = 82
_EDGES: Final = tuple(SHORTEST_S * _GROWTH**place for place in range(_BINS + 1))
_LOG_GROWTH: Final = math.log(_GROWTH)
_SAME_HOUR: Final = 1.0
_SAME_TIME: Final = 0.3
_ANY: Final = 0.02
_HALF_LIFE_DAYS: Final = 35.0
_LINDY_WEIGHT: Final = 1.0
_CACHED_HOURS: Final = 3
ENOUGH: Final = 4.0
LIKELY: Final = 0.6
VERY_LIKELY: Final = 0.9


@dataclass(frozen=True, slots=True)
class Survival:
    """How many spells (weighed) lasted at least as long as each bin's lower edge, ever fewer. A view: it grows with its history."""

    reached: Sequence[float]

    def evidence(self, idle_s: float) -> float:
        """How many spells there were that got as far as this."""
        if idle_s <= SHORTEST_S:
            return self.reached[0]
        place = math.log(idle_s / SHORTEST_S) / _LOG_GROWTH
        low = int(place)
        if low >= _BINS:
            return 0.0
        part = place - low
        return self.reached[low] * (1 - part) + self.reached[low + 1] * part

    def lasting(self, idle_s: float, more_s: float) -> float:
        """The chance that a spell that has lasted so long goes on for so much longer."""
        idle_s = max(idle_s, 1.0)
        here, there = self.evidence(idle_s), self.evidence(idle_s + more_s)
        return (there + _LINDY_WEIGHT * idle_s / (idle_s + more_s)) / (here + _LINDY_WEIGHT)

    def room_s(self, idle_s: float, chance: float) -> float:
        """How much longer it goes on with at least this chance: the bin in which the chance falls below, then the place in it."""
        idle_s = max(idle_s, 1.0)
        wanted = chance * (self.evidence(idle_s) + _LINDY_WEIGHT)
        low = idle_s
        for place in range(bisect_right(_EDGES, idle_s), _BINS + 1):
            edge = _EDGES[place]
            if self.reached[place] + _LINDY_WEIGHT * idle_s / edge < wanted:
                return self._place_s(idle_s, low, edge, chance) - idle_s
            low = edge
        return max(low - idle_s, idle_s / chance - idle_s)  # longer than any that is known: as without history

    def _place_s(self, idle_s: float, low: float, high: float, chance: float) -> float:
        for _ in range(4):
            middle = (low + high) / 2
            low, high = (middle, high) if self.lasting(idle_s, middle - idle_s) >= chance else (low, middle)
        return low

    def patience_s(self, *, first_s: float, last_s: float, least_s: float) -> float:
        """After how long a silence it is likely that the person has left for at least `least_s`; `last_s` where nothing says so."""
        idle_s = first_s
        while idle_s < last_s:
            if self.evidence(idle_s) < ENOUGH:
                return last_s
            if self.lasting(idle_s, least_s) >= LIKELY:
                return idle_s
            idle_s *= _GROWTH
        return last_s


@dataclass(slots=True)
class History:
    """Counts of idle spells, by the hour of the week in which they began."""

    counts: list[list[float]] = field(default_factory=lambda: [[0.0] * _BINS for _ in range(HOURS)])
    faded: datetime | None = None
    _cached: dict[int, list[float]] = field(default_factory=dict, compare=False, repr=False)

    def add(self, began: datetime, length: timedelta) -> None:
        """A spell that began at this local time is over."""
        seconds = length.total_seconds()
        if seconds >= SHORTEST_S:
            self._fade(began)
            place = min(_BINS - 1, int(math.log(seconds / SHORTEST_S) / _LOG_GROWTH))
            self.counts[hour_of_week(began)][place] += 1.0
            for hour, reached in self._cached.items():
                weight = _weight(hour, hour_of_week(began))
                for lower in range(place + 1):
                    reached[lower] += weight

    def survival(self, began: datetime) -> Survival:
        """What is known about a spell that began at this local time."""
        hour = hour_of_week(began)
        found = self._cached.get(hour)
        if found is None:
            if len(self._cached) >= _CACHED_HOURS:
                self._cached.clear()
            found = self._cached[hour] = _reached(self._weighed(hour))
        return Survival(found)

    @property
    def is_empty(self) -> bool:
        """Whether no spell is known."""
        return not any(any(row) for row in self.counts)

    def _weighed(self, hour: int) -> list[float]:
        weights = [_weight(hour, other) for other in range(HOURS)]
        rows = [(weight, row) for weight, row in zip(weights, self.counts, strict=True) if any(row)]
        return [sum(weight * row[place] for weight, row in rows) for place in range(_BINS)]

    def _fade(self, now: datetime) -> None:
        """Once a day, weigh everything a little less."""
        if self.faded is None:
            self.faded = now
        days = (now - self.faded) / timedelta(days=1)
        if days >= 1:
            self.faded = now
            share = 0.5 ** (days / _HALF_LIFE_DAYS)
            for row in self.counts:
                row[:] = [count * share for count in row]
            self._cached.clear()


def hour_of_week(when: datetime) -> int:
    """Monday at midnight is 0."""
    return when.weekday() * 24 + when.hour


def _weight(hour: int, other: int) -> float:
    around = min((hour - other) % HOURS, (other - hour) % HOURS)
    if around <= 1:
        return _SAME_HOUR
    daily = min((hour - other) % 24, (other - hour) % 24)
    return _SAME_TIME if daily <= 1 else _ANY


def _reached(counts: Sequence[float]) -> list[float]:
    reached, total = [0.0] * (_BINS + 1), 0.0
    for place in range(_BINS - 1, -1, -1):
        total += counts[place]
        reached[place] = total
    return reached

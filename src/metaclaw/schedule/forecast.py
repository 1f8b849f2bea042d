"""Forecast how long the user stays away, from their earlier idle spells by the hour of the week in which each began.

Keys and main turns are activity; the time between two of them is an idle spell. Lengths are counted in logarithmic bins per hour of
the week. For a spell that began on Tuesday at ten, Tuesdays at ten have the highest weight, other days at ten less, and all other
hours little. With little history, a spell is expected to last as long again as it has lasted (Lindy's rule). Counts decay by half
in five weeks. A spell across a sleep of the machine or a clock change is not counted.
"""

import logging
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from itertools import groupby
from pathlib import Path
from typing import Final

import msgspec

from metaclaw.durable_files import replace_file
from metaclaw.schedule.clock import Clock, Zone

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
_DAY: Final = timedelta(days=1)
_LINDY_WEIGHT: Final = 1.0
_CACHED_HOURS: Final = 3
ENOUGH: Final = 4.0
LIKELY: Final = 0.6
VERY_LIKELY: Final = 0.9


@dataclass(frozen=True, slots=True)
class Survival:
    """Weighted number of spells that lasted at least as long as each bin's lower edge. Updated with its history."""

    reached: list[float]

    def evidence(self, idle_s: float) -> float:
        """Weighted number of spells that lasted at least this long."""
        reached = self.reached
        if idle_s <= SHORTEST_S:
            return reached[0]
        place = math.log(idle_s / SHORTEST_S) / _LOG_GROWTH
        low = int(place)
        if low >= _BINS:
            return 0.0
        part = place - low
        return reached[low] * (1 - part) + reached[low + 1] * part

    def room_s(self, idle_s: float, chance: float) -> float:
        """How much longer it lasts with at least this probability."""
        idle_s = max(idle_s, 1.0)
        wanted = chance * (self.evidence(idle_s) + _LINDY_WEIGHT)
        low, reached = idle_s, self.reached
        for place in range(bisect_right(_EDGES, idle_s), _BINS + 1):
            edge = _EDGES[place]
            if reached[place] + _LINDY_WEIGHT * idle_s / edge < wanted:
                return self._place_s(idle_s, low, edge, wanted) - idle_s
            low = edge
        return max(low - idle_s, idle_s / chance - idle_s)  # longer than all known spells: as without history

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
        """The silence after which the user has likely left for at least `least_s`; `last_s` without evidence."""
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

    def add_all(self, began: datetime, lengths_s: Sequence[float]) -> None:
        """Count spells of the same hour; the first began at this local time."""
        found: dict[int, int] = {}
        for seconds in lengths_s:
            if seconds >= SHORTEST_S:
                place = int(math.log(seconds / SHORTEST_S) / _LOG_GROWTH)
                found[place] = found.get(place, 0) + 1
        if found:
            self._fade(began)
            self._count(hour_of_week(began), found)

    def fades_by(self, now: datetime) -> bool:
        """Whether counts decay before a spell that began at this local time is added."""
        return self.faded is not None and now - self.faded >= _DAY

    def survival_at(self, hour: int) -> Survival:
        """The survival function of spells that began in this hour of the week."""
        found = self._cached.get(hour)
        if found is None:
            if len(self._cached) >= _CACHED_HOURS:
                self._cached.clear()
            found = self._cached[hour] = Survival(_reached(self._weighed(hour)))
        return found

    def _count(self, hour: int, found: dict[int, int]) -> None:
        """Add to the bins and to everything cached from them."""
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
        """The weighted sum of all hours' counts."""
        if self._total is None:
            self._total = [sum(column) for column in zip(*self.counts, strict=True)]
        near = [(weight - _ANY, self.counts[(hour + apart) % HOURS]) for apart, weight in enumerate(_WEIGHTS) if weight != _ANY]
        rows = [(weight, row) for weight, row in near if any(row)]
        return [_ANY * every + sum([weight * row[place] for weight, row in rows]) for place, every in enumerate(self._total)]

    def _fade(self, now: datetime) -> None:
        """Decay the counts once a day."""
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
    """The weight of an hour that is `apart` hours away."""
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


log = logging.getLogger(__name__)

FIRST_S: Final = 10.0
PRESENT_S: Final = 300.0
# Zones differ by quarters of an hour; within one, the hour of the week stays the same.
_QUARTER_S: Final = 900


@dataclass(frozen=True, slots=True)
class Patience:
    """Silence below `present_s` means present, from `away_s` on away, in between unknown."""

    present_s: float
    away_s: float


class Habits:
    """Records the user's activity and forecasts silences. Used on the event loop only. `idle_s` is the silence that means away
    without history, `least_s` the shortest window."""

    def __init__(self, *, idle_s: float, least_s: float, zone: Zone, clock: Clock, history: History | None = None) -> None:
        self._idle_s = idle_s
        self._least_s = least_s
        self._zone = zone
        self._clock = clock
        self._monotonic = clock.monotonic
        self.history = History() if history is None else history
        self._last = clock.monotonic()
        self._is_fresh, self._is_spell_whole = True, False
        self._finished: list[tuple[float, float]] = []
        self._patience: tuple[float, Patience] | None = None
        self._hour: tuple[float, tzinfo, int] | None = None

    @property
    def silence_s(self) -> float:
        """Time since the last known activity."""
        return max(0.0, self._clock.monotonic() - self._last)

    def active(self, ago_s: float = 0.0) -> None:
        """Record activity `ago_s` seconds ago; activity before the last known is ignored, except for the first.

        It is called from the request path, so that finished spells are only queued for `learn`.
        """
        when = self._monotonic() - ago_s
        length_s = when - self._last
        if self._is_fresh:
            self._last, self._is_fresh, self._is_spell_whole = when, False, True
        elif length_s >= 0:
            if length_s >= SHORTEST_S and self._is_spell_whole:
                self._finished.append((self._last, length_s))
            self._last, self._is_spell_whole = when, True

    def learn(self) -> None:
        """Add the finished spells to the history."""
        if not self._finished:
            return
        wall, steady, zone = self._clock.now(), self._clock.monotonic(), self._zone()
        zero_s = wall.timestamp() - steady

        def local(spell: tuple[float, float]) -> datetime:
            return (wall - timedelta(seconds=steady - spell[0])).astimezone(zone)

        for _, group in groupby(self._finished, lambda spell: (zero_s + spell[0]) // _QUARTER_S):
            spells = list(group)
            # Within a quarter of an hour all spells have the same hour; only if counts decay in between does each time matter.
            parts = [[spell] for spell in spells] if self.history.fades_by(local(spells[-1])) else [spells]
            for part in parts:
                self.history.add_all(local(part[0]), [length_s for _, length_s in part])
        self._finished.clear()

    def jumped(self) -> None:
        """Restart after a sleep of the machine or a clock change, as if the user had just been active."""
        self._finished.clear()
        self._last, self._is_fresh, self._is_spell_whole = self._clock.monotonic(), False, False

    def patience(self) -> Patience:
        """The silences that mean present and away now."""
        if self._patience is None or self._patience[0] != self._last:
            away_s = self._survival().patience_s(first_s=min(FIRST_S, self._idle_s), last_s=self._idle_s, least_s=self._least_s)
            self._patience = self._last, Patience(min(PRESENT_S, away_s), away_s)
        return self._patience[1]

    @property
    def are_known(self) -> bool:
        """Whether there is enough history for the current silence."""
        return self._survival().evidence(self.silence_s) >= ENOUGH

    def expected(self) -> timedelta | None:
        """How much longer the current silence likely lasts; None without enough history."""
        survival = self._survival()
        if survival.evidence(self.silence_s) < ENOUGH:
            return None
        return timedelta(seconds=survival.room_s(self.silence_s, LIKELY))

    def room_s(self) -> float:
        """How much longer the current silence very likely lasts."""
        return self._survival().room_s(self.silence_s, VERY_LIKELY)

    def _survival(self) -> Survival:
        """The survival function of silences that began when this one did."""
        zone = self._zone()
        if self._hour is None or self._hour[0] != self._last or self._hour[1] is not zone:
            began = self._clock.now() - timedelta(seconds=self.silence_s)
            self._hour = self._last, zone, hour_of_week(began.astimezone(zone))
        return self.history.survival_at(self._hour[2])


class _Kept(msgspec.Struct, frozen=True):
    """The file format of a history."""

    counts: list[list[float]]
    faded: datetime | None


def read_history(path: Path) -> History:
    """Read a history; an empty one if the file is missing or invalid."""
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
    except FileNotFoundError:
        return History()
    except (OSError, msgspec.DecodeError) as error:
        log.warning("history_unreadable path=%s reason=%s; habits are learned anew", path, error)
        return History()
    fresh = History()
    if len(kept.counts) != HOURS or any(len(row) != len(fresh.counts[0]) for row in kept.counts):
        log.warning("history_unreadable path=%s reason=another shape; habits are learned anew", path)
        return fresh
    return History(kept.counts, kept.faded)


def keep_history(path: Path, history: History) -> None:
    """Write a history, readable by its owner only. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    rounded = [[round(count, 4) for count in row] for row in history.counts]
    replace_file(path, msgspec.json.encode(_Kept(rounded, history.faded)))

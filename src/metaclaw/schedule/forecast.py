"""Forecast how long the user stays away, from the lengths of their earlier idle spells.

Keys and main turns are activity; the time between two of them is an idle spell. Lengths are counted
in logarithmic bins. With little history, a spell is expected to last as long again as it has lasted
(Lindy's rule). Counts decay by half in five weeks. A spell across a sleep of the machine or a clock
change is not counted. Counts by the hour of the week were tried: they learn more slowly and
forecast no better (`benchmarks.windows`)."""

import logging
import math
from bisect import bisect_right
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from metaclaw.durable_files import replace_file
from metaclaw.schedule.clock import Clock

log = logging.getLogger(__name__)

SHORTEST_S: Final = 5.0
_GROWTH: Final = 1.15
_BINS: Final = 82
_EDGES: Final = tuple(SHORTEST_S * _GROWTH**place for place in range(_BINS + 1))
_HALF_LIFE_DAYS: Final = 35.0
_DAY: Final = timedelta(days=1)
_LINDY_WEIGHT: Final = 1.0
ENOUGH: Final = 4.0
LIKELY: Final = 0.6
VERY_LIKELY: Final = 0.9
FIRST_S: Final = 10.0
PRESENT_S: Final = 300.0


@dataclass
class History:
    """Counts of idle spells by their length, kept in a file."""

    counts: list[float] = field(default_factory=lambda: [0.0] * _BINS)
    faded: datetime | None = None

    def __post_init__(self) -> None:
        self._reached: list[float] = []

    def add(self, seconds: float, now: datetime) -> None:
        """Count a spell that ended now."""
        if seconds < SHORTEST_S:
            return
        self._fade(now)
        self.counts[min(_BINS, bisect_right(_EDGES, seconds)) - 1] += 1.0
        self._reached = []

    def evidence(self, idle_s: float) -> float:
        """Number of spells that lasted at least this long."""
        reached = self._reached
        if not reached:
            reached.append(0.0)
            for count in reversed(self.counts):
                reached.append(reached[-1] + count)
            reached.reverse()
        place = math.log(max(idle_s, SHORTEST_S) / SHORTEST_S, _GROWTH)
        low = int(place)
        if low >= _BINS:
            return 0.0
        return reached[low] + (place - low) * (reached[low + 1] - reached[low])

    def room_s(self, idle_s: float, chance: float) -> float:
        """How much longer a spell of `idle_s` lasts with at least this probability."""
        idle_s = max(idle_s, 1.0)
        wanted = chance * (self.evidence(idle_s) + _LINDY_WEIGHT)
        low, high = idle_s, max(_EDGES[-1], idle_s / chance)
        while high / low > 1.005:
            middle = math.sqrt(low * high)
            is_reached = self.evidence(middle) + _LINDY_WEIGHT * idle_s / middle >= wanted
            low, high = (middle, high) if is_reached else (low, middle)
        return low - idle_s

    def patience_s(self, *, first_s: float, last_s: float, least_s: float) -> float:
        """The silence after which the user has likely left for at least `least_s`; `last_s` without
        evidence.
        """
        idle_s = first_s
        while idle_s < last_s:
            here = self.evidence(idle_s)
            if here < ENOUGH:
                return last_s
            longer_s = idle_s + least_s
            if self.evidence(longer_s) + _LINDY_WEIGHT * idle_s / longer_s >= LIKELY * (
                here + _LINDY_WEIGHT
            ):
                return idle_s
            idle_s *= _GROWTH
        return last_s

    def _fade(self, now: datetime) -> None:
        """Decay the counts once a day."""
        self.faded = self.faded or now
        if now - self.faded >= _DAY:
            share = 0.5 ** ((now - self.faded) / _DAY / _HALF_LIFE_DAYS)
            self.counts, self.faded = [count * share for count in self.counts], now


@dataclass(frozen=True, slots=True)
class Patience:
    """Silence below `present_s` means present, from `away_s` on away, in between unknown."""

    present_s: float
    away_s: float


class Habits:
    """Records the user's activity and forecasts silences. Used on the event loop only. `idle_s` is
    the silence that means away without history, `least_s` the shortest window."""

    def __init__(
        self, *, idle_s: float, least_s: float, clock: Clock, history: History | None = None
    ) -> None:
        self._idle_s = idle_s
        self._least_s = least_s
        self._clock = clock
        self.history = History() if history is None else history
        self._last = clock.monotonic()
        self._is_fresh, self._is_spell_whole = True, False
        self._finished: list[float] = []
        self._patience: tuple[float, Patience] | None = None

    @property
    def silence_s(self) -> float:
        """Time since the last known activity."""
        return max(0.0, self._clock.monotonic() - self._last)

    def active(self, ago_s: float = 0.0) -> None:
        """Record activity `ago_s` seconds ago; activity before the last known is ignored, except
        for the first.

        It is called from the request path, so that finished spells are only queued for `learn`.
        """
        when = self._clock.monotonic() - ago_s
        length_s = when - self._last
        if self._is_fresh:
            self._last, self._is_fresh, self._is_spell_whole = when, False, True
        elif length_s >= 0:
            if length_s >= SHORTEST_S and self._is_spell_whole:
                self._finished.append(length_s)
            self._last, self._is_spell_whole = when, True

    def learn(self) -> None:
        """Add the finished spells to the history."""
        for length_s in self._finished:
            self.history.add(length_s, self._clock.now())
        self._finished.clear()

    def jumped(self) -> None:
        """Restart after a sleep of the machine or a clock change, as if the user had just been
        active.
        """
        self._finished.clear()
        self._last, self._is_fresh, self._is_spell_whole = self._clock.monotonic(), False, False

    def patience(self) -> Patience:
        """The silences that mean present and away now."""
        if self._patience is None or self._patience[0] != self._last:
            away_s = self.history.patience_s(
                first_s=min(FIRST_S, self._idle_s), last_s=self._idle_s, least_s=self._least_s
            )
            self._patience = self._last, Patience(min(PRESENT_S, away_s), away_s)
        return self._patience[1]

    @property
    def are_known(self) -> bool:
        """Whether there is enough history for the current silence."""
        return self.history.evidence(self.silence_s) >= ENOUGH

    def expected(self) -> timedelta | None:
        """How much longer the current silence likely lasts; None without enough history."""
        return (
            timedelta(seconds=self.history.room_s(self.silence_s, LIKELY))
            if self.are_known
            else None
        )

    def room_s(self) -> float:
        """How much longer the current silence very likely lasts."""
        return self.history.room_s(self.silence_s, VERY_LIKELY)


def read_history(path: Path) -> History:
    """Read a history; an empty one if the file is missing or invalid."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=History)
    except FileNotFoundError:
        return History()
    except (OSError, msgspec.DecodeError) as error:
        log.warning("history_unreadable path=%s reason=%s; habits are learned anew", path, error)
        return History()
    return found if len(found.counts) == _BINS else History()


def keep_history(path: Path, history: History) -> None:
    """Write a history, readable by its owner only. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(path, msgspec.json.encode(history))

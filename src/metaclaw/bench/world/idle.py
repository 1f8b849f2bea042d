"""A simulated person's days in virtual time, and three ways to decide when to train: at once, by a fixed rule, by the forecast."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final

from metaclaw.bench.world.settings import Practice, Scheduler
from metaclaw.schedule.decide import Moment, Rules, decide
from metaclaw.schedule.forecast import ENOUGH, LIKELY, VERY_LIKELY, History, Survival
from metaclaw.schedule.reading import Named, Presence, Reading

_BEGAN: Final = datetime(2026, 3, 2, tzinfo=UTC)  # a Monday
_DAY_S: Final = 86_400.0
_MINUTE_S: Final = 60.0
_FIXED_S: Final = 30 * _MINUTE_S
_FIRST_S: Final = 10.0
_RULES: Final = Rules(least=timedelta(minutes=1))


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of time before the next round: somebody is there, or everybody is away. Seconds since the run began."""

    begin: float
    end: float
    is_away: bool

    @property
    def length_s(self) -> float:
        """How long it is."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Spent:
    """What became of training time in a stretch. `until_s` is how far into it the work went on."""

    worked_s: float = 0.0
    wasted_s: float = 0.0
    overlap_s: float = 0.0
    until_s: float = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            self.worked_s + other.worked_s, self.wasted_s + other.wasted_s, self.overlap_s + other.overlap_s, other.until_s
        )


def stretches(rounds: Sequence[int], rng: Random) -> Iterator[list[Stretch]]:
    """For every round of every day, the time since the round before: work, breaks for coffee and lunch, nights."""
    last = 0.0
    for day, count in enumerate(rounds):
        for at in range(count):
            came = last
            pauses: list[Stretch] = []
            if at == 0:
                came = day * _DAY_S + rng.uniform(8.5, 9.5) * 3_600
                pauses.append(Stretch(last, came, True))
            elif at == count // 2:
                came = last + rng.uniform(40, 75) * _MINUTE_S
                pauses.append(Stretch(last, came, True))
            elif rng.random() < 0.25:
                came = last + rng.uniform(4, 25) * _MINUTE_S
                pauses.append(Stretch(last, came, True))
            last = came + rng.uniform(4, 20) * _MINUTE_S
            yield [*pauses, Stretch(came, last, False)]


class Calendar:
    """Says how much of a stretch may be trained in, knowing only what happened before it."""

    def __init__(self, scheduler: Scheduler, practice: Practice) -> None:
        self._scheduler = scheduler
        self._piece_s = practice.piece_s
        self._history = History()

    def use(self, stretch: Stretch, from_s: float, wanted_s: float) -> Spent:
        """Train for up to so long, beginning so far into a stretch; what is cut in the middle of a piece is lost."""
        left_s = stretch.length_s - from_s
        if self._scheduler == "immediate":
            worked = min(wanted_s, left_s)
            return Spent(worked, 0.0, 0.0 if stretch.is_away else worked, from_s + worked)
        if not stretch.is_away or left_s <= 0.0:
            return Spent(until_s=stretch.length_s)
        if self._scheduler == "fixed":
            return self._work(stretch, max(from_s, _FIXED_S), wanted_s)
        return self._forecast(stretch, from_s, wanted_s)

    def passed(self, stretch: Stretch) -> None:
        """It is over, and its length is known."""
        if stretch.is_away:
            self._history.add(_when(stretch.begin), timedelta(seconds=stretch.length_s))

    def _forecast(self, stretch: Stretch, from_s: float, wanted_s: float) -> Spent:
        """Open when the patience ends; a piece is begun only where there is very likely room for it."""
        survival = self._history.survival(_when(stretch.begin))
        patience_s = survival.patience_s(first_s=_FIRST_S, last_s=_FIXED_S, least_s=_RULES.least.total_seconds())
        idle_s = max(from_s, patience_s)
        if not _opens(stretch, survival, idle_s):
            return Spent(until_s=stretch.length_s)
        spent = Spent(until_s=idle_s)
        while spent.worked_s < wanted_s and idle_s < stretch.length_s:
            room_s = survival.room_s(idle_s, VERY_LIKELY)
            if room_s >= self._piece_s:
                # Where there is much room it is not asked for before each piece, as in the product.
                spent += self._work(stretch, idle_s, min(wanted_s - spent.worked_s, max(self._piece_s, room_s / 2)))
                idle_s = spent.until_s
            else:
                idle_s += self._piece_s
        # Also where there never was room for a piece, that time is over.
        return replace(spent, until_s=min(idle_s, stretch.length_s))

    def _work(self, stretch: Stretch, from_s: float, wanted_s: float) -> Spent:
        """Whole pieces; the one under way when the person comes back is lost."""
        open_s = max(0.0, stretch.length_s - from_s)
        if open_s >= wanted_s:
            return Spent(wanted_s, until_s=from_s + wanted_s)
        whole = open_s // self._piece_s * self._piece_s
        return Spent(whole, open_s - whole, until_s=stretch.length_s)


def _opens(stretch: Stretch, survival: Survival, idle_s: float) -> bool:
    """The product's decision at the moment its patience ends."""
    if idle_s >= stretch.length_s:
        return False
    known = survival.evidence(idle_s) >= ENOUGH
    expected = timedelta(seconds=survival.room_s(idle_s, LIKELY)) if known else None
    reading = Named("input", Reading(Presence.AWAY, "silence"))
    return decide(Moment(_when(stretch.begin + idle_s), [reading], expected=expected), _RULES).is_open


def _when(seconds: float) -> datetime:
    return _BEGAN + timedelta(seconds=seconds)

"""How sure a number is: a bootstrap over seeds and days, Student's interval over seeds, Wilson's of
a share. Seeded, repeatable.

**Bootstrap.** A benchmark gives scores of rounds, which lie in days, which lie in runs of a seed.
Rounds of one day share a session and what was learned before it, so they err together: whole days
are drawn, never single rounds. A resampling draws as many seeds as there are, with replacement, and
for each of them as many of its days; the interval is where the middle 95 % of the resampled means
lie. With one seed only its days are drawn: such an interval says nothing about other seeds.

**Pairs.** Two conditions answer the same questions with the same seed. Their difference is taken
question by question first and then resampled, so that what makes a question hard for both makes no
interval wider."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and the bounds between which 95 % of its resamplings lie."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


Place = tuple[int, str, str]
"""A question in a run: seed, day, round."""

Nested = Mapping[int, Mapping[str, Sequence[float]]]
"""Values by seed and day."""

RESAMPLES: Final = 1_000
_LEVEL: Final = 0.95
_NORMAL: Final = 1.959964
# The 97.5 % quantile of Student's t by degrees of freedom.
_STUDENT: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def nest(values: Iterable[tuple[Place, float]]) -> dict[int, dict[str, list[float]]]:
    """Values by seed and day."""
    nested: dict[int, dict[str, list[float]]] = {}
    for (seed, day, _), value in values:
        nested.setdefault(seed, {}).setdefault(day, []).append(value)
    return nested


def pair(
    one: Mapping[Place, float], other: Mapping[Place, float]
) -> dict[int, dict[str, list[float]]]:
    """What one is better by, question by question, on the questions that both have."""
    return nest((place, value - other[place]) for place, value in one.items() if place in other)


def bootstrap(values: Nested, *, resamples: int = RESAMPLES, seed: int = 0) -> Interval | None:
    """The mean of all values and where the resampled means lie; None where there is no value."""
    runs = [
        [(math.fsum(day), len(day)) for day in days.values() if day] for days in values.values()
    ]
    runs = [days for days in runs if days]
    if not runs:
        return None
    rng = Random(seed)
    means = sorted(_mean(_drawn(runs, rng)) for _ in range(resamples))
    rest = (1.0 - _LEVEL) / 2
    low, high = (means[min(resamples - 1, int(part * resamples))] for part in (rest, 1.0 - rest))
    return Interval(_mean([day for days in runs for day in days]), low, high)


def student(values: Sequence[float]) -> Interval | None:
    """The mean of independent values, such as one number for each seed; None for fewer than two, of
    which no spread is known.
    """
    if len(values) < 2:
        return None
    mean, freedom = statistics.fmean(values), len(values) - 1
    quantile = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else _NORMAL
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def wilson(hits: int, tries: int) -> Interval | None:
    """A share of independent tries; None where there was none."""
    if not 0 <= hits <= tries:
        raise ValueError(f"{hits} hits in {tries} tries")
    if not tries:
        return None
    share, square = hits / tries, _NORMAL**2 / tries
    middle = (share + square / 2) / (1 + square)
    half = _NORMAL * math.sqrt(share * (1 - share) / tries + square / (4 * tries)) / (1 + square)
    # At the ends the formula gives 0 and 1 but for rounding.
    low, high = 0.0 if hits == 0 else middle - half, 1.0 if hits == tries else middle + half
    return Interval(share, low, high)


def are_apart(one: Interval, other: Interval) -> bool:
    """Whether two intervals do not overlap."""
    return one.high < other.low or other.high < one.low


def _drawn(runs: Sequence[Sequence[tuple[float, int]]], rng: Random) -> list[tuple[float, int]]:
    picked = rng.choices(runs, k=len(runs)) if len(runs) > 1 else runs
    return [day for days in picked for day in rng.choices(days, k=len(days))]


def _mean(days: Sequence[tuple[float, int]]) -> float:
    return math.fsum(total for total, _ in days) / sum(count for _, count in days)

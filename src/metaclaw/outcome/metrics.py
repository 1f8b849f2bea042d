"""How good a sense of failure is: AUROC, expected calibration error, and bootstrap intervals for either."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Pairs = Sequence[tuple[float, bool]]
"""Predicted probability of failure, and whether it was one."""

BINS = 10


def auroc(pairs: Pairs) -> float | None:
    """The probability that a failure is scored above what is none, ties counted half; None where one of the two is missing."""
    failures = sum(failed for _, failed in pairs)
    others = len(pairs) - failures
    if not failures or not others:
        return None
    ranked = sorted(pairs, key=lambda pair: pair[0])
    rank_sum, at = 0.0, 0
    while at < len(ranked):
        end = at
        while end < len(ranked) and ranked[end][0] == ranked[at][0]:
            end += 1
        middle = (at + 1 + end) / 2
        rank_sum += middle * sum(failed for _, failed in ranked[at:end])
        at = end
    return (rank_sum - failures * (failures + 1) / 2) / (failures * others)


def ece(pairs: Pairs, bins: int = BINS) -> float | None:
    """Expected calibration error over bins of equal width: how far, on average, a stated probability is from what happened."""
    if not pairs:
        return None
    kept: list[list[tuple[float, bool]]] = [[] for _ in range(bins)]
    for probability, failed in pairs:
        kept[min(bins - 1, int(probability * bins))].append((probability, failed))
    return sum(abs(sum(p for p, _ in group) - sum(failed for _, failed in group)) for group in kept if group) / len(pairs)


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and the bounds between which 95 % of its resamplings lie."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def interval(
    metric: Callable[[Pairs], float | None], clusters: Sequence[Pairs], *, rounds: int = 1_000, seed: int = 0
) -> Interval | None:
    """A metric with its interval; None where it has no value. Whole clusters are drawn: what belongs together errs together."""
    value = metric([pair for cluster in clusters for pair in cluster])
    if value is None:
        return None
    rng = random.Random(seed)
    drawn = []
    for _ in range(rounds):
        sample = [pair for cluster in rng.choices(clusters, k=len(clusters)) for pair in cluster]
        if (one := metric(sample)) is not None:
            drawn.append(one)
    if not drawn:
        return Interval(value, value, value)
    drawn.sort()
    return Interval(value, drawn[int(0.025 * len(drawn))], drawn[min(len(drawn) - 1, int(0.975 * len(drawn)))])

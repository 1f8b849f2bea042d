"""Calibration: a monotone map from a raw score to the share of failures that people and checks found at that score.

Isotonic regression by pooling adjacent violators. With little evidence the map stays near the identity: prior observations that
agree with the score are spread over the whole range, and weigh as much as `PRIOR_WEIGHT` real ones.

Also the metrics of calibrated scores: AUROC, expected calibration error, and bootstrap intervals of either.
"""

import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

PRIOR_WEIGHT = 10.0
_PRIOR_POINTS = 20
_LEAST, _MOST = 0.005, 0.995


@dataclass(frozen=True, slots=True)
class Isotonic:
    """A rising, piecewise linear map through points (`scores[i]`, `shares[i]`), flat beyond its ends."""

    scores: tuple[float, ...] = (0.0, 1.0)
    shares: tuple[float, ...] = (0.0, 1.0)

    def __post_init__(self) -> None:
        if len(self.scores) != len(self.shares) or not self.scores:
            raise ValueError(f"{len(self.scores)} scores but {len(self.shares)} shares")
        if any(a >= b for a, b in zip(self.scores, self.scores[1:], strict=False)):
            raise ValueError("the scores of a calibration do not rise")
        if any(a > b for a, b in zip(self.shares, self.shares[1:], strict=False)):
            raise ValueError("the shares of a calibration fall")
        if not all(0.0 <= value <= 1.0 for value in (*self.scores, *self.shares)):
            raise ValueError("a calibration leaves the range from 0 to 1")

    def apply(self, score: float) -> float:
        """The calibrated probability; never quite 0 or 1, because nothing learned from examples is certain."""
        return min(_MOST, max(_LEAST, self._interpolate(score)))

    def _interpolate(self, score: float) -> float:
        at = bisect_right(self.scores, score)
        if at == 0:
            return self.shares[0]
        if at == len(self.scores):
            return self.shares[-1]
        left, right = self.scores[at - 1], self.scores[at]
        part = (score - left) / (right - left)
        return self.shares[at - 1] + part * (self.shares[at] - self.shares[at - 1])


IDENTITY = Isotonic()


@dataclass(frozen=True, slots=True)
class Calibration:
    """Both maps: for what detectors decided alone, and for what a judge voted on."""

    sensed: Isotonic = IDENTITY
    judged: Isotonic = IDENTITY


def fit_isotonic(pairs: Iterable[tuple[float, bool]], prior_weight: float = PRIOR_WEIGHT) -> Isotonic:
    """Fit a rising map to pairs of a raw score and whether the turn failed."""
    points = [(score, float(failed), 1.0) for score, failed in pairs]
    if not all(0.0 <= score <= 1.0 for score, _, _ in points):
        raise ValueError("a raw score is not between 0 and 1")
    if prior_weight > 0:
        grid = [(index + 0.5) / _PRIOR_POINTS for index in range(_PRIOR_POINTS)]
        points += [(score, score, prior_weight / _PRIOR_POINTS) for score in grid]
    return _joined(_pooled(points)) if points else IDENTITY


@dataclass(slots=True)
class _Block:
    weight: float
    low: float
    high: float
    share: float

    def join(self, other: "_Block") -> None:
        weight = self.weight + other.weight
        self.high = other.high
        self.share = (self.share * self.weight + other.share * other.weight) / weight
        self.weight = weight


def _pooled(points: list[tuple[float, float, float]]) -> list[_Block]:
    blocks: list[_Block] = []
    for score, same in groupby(sorted(points), key=lambda point: point[0]):
        weighed = [(share, weight) for _, share, weight in same]
        total = sum(weight for _, weight in weighed)
        blocks.append(_Block(total, score, score, sum(share * weight for share, weight in weighed) / total))
        while len(blocks) > 1 and blocks[-2].share >= blocks[-1].share:
            last = blocks.pop()
            blocks[-1].join(last)
    return blocks


def _joined(blocks: list[_Block]) -> Isotonic:
    """Flat over each block, from its lowest score to its highest, and straight between blocks."""
    scores: list[float] = []
    shares: list[float] = []
    for block in blocks:
        share = min(1.0, max(0.0, block.share))
        for score in (block.low, block.high):
            if not scores or score > scores[-1]:
                scores.append(score)
                shares.append(max(share, shares[-1]) if shares else share)
    return Isotonic(tuple(scores), tuple(shares))


Pairs = Sequence[tuple[float, bool]]
"""Predicted probability of failure, and whether it was one."""

BINS = 10


def auroc(pairs: Pairs) -> float | None:
    """The probability that a failure has a higher score than a success, ties counted half; None without one of each."""
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
    """Expected calibration error over bins of equal width: the mean distance of a probability from the observed share."""
    if not pairs:
        return None
    kept: list[list[tuple[float, bool]]] = [[] for _ in range(bins)]
    for probability, failed in pairs:
        kept[min(bins - 1, int(probability * bins))].append((probability, failed))
    return sum(abs(sum(p for p, _ in group) - sum(failed for _, failed in group)) for group in kept if group) / len(pairs)


@dataclass(frozen=True, slots=True)
class MetricInterval:
    """A value with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def interval(
    metric: Callable[[Pairs], float | None], clusters: Sequence[Pairs], *, rounds: int = 1_000, seed: int = 0
) -> MetricInterval | None:
    """A metric with its bootstrap interval, or None. Whole clusters are drawn, since pairs of one cluster are correlated."""
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
        return MetricInterval(value, value, value)
    drawn.sort()
    return MetricInterval(value, drawn[int(0.025 * len(drawn))], drawn[min(len(drawn) - 1, int(0.975 * len(drawn)))])

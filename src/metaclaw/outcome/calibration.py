"""Calibration: a monotone map from a raw score to the share of failures that people and checks found at that score.

Isotonic regression by pooling adjacent violators. With little evidence the map stays near the identity: imagined observations that
agree with the score are spread over the whole range, and weigh as much as `PRIOR_WEIGHT` real ones.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

import msgspec

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

    def to_json(self) -> bytes:
        """As bytes for the store."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_json(body: bytes) -> "Calibration":
        """Back from the store. Raises ValueError for what is no calibration."""
        try:
            return msgspec.json.decode(body, type=Calibration)
        except msgspec.DecodeError as error:
            raise ValueError(f"this is no calibration: {error}") from error


def fit(pairs: Iterable[tuple[float, bool]], prior_weight: float = PRIOR_WEIGHT) -> Isotonic:
    """The best rising map for pairs of a raw score and whether the turn really failed."""
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

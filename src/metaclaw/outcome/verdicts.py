"""Verdicts: combine the signals of all detectors with the judge's votes, calibrate the score, and
decide the outcome of a turn.

Calibration is a monotone map from a raw score to the share of failures that people and checks found
at that score: isotonic regression by pooling adjacent violators. Prior observations that agree with
the score keep the map near the identity while there is little evidence; together they weigh as much
as `PRIOR_WEIGHT` real observations."""

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import groupby

from metaclaw.domain.turn import Step
from metaclaw.domain.verdict import Fault, Outcome, Signal, Source, Verdict, Votes
from metaclaw.outcome.detectors import DETECTORS, WEIGHTS, ObservedStep, SignalWeights

PRIOR_WEIGHT = 10.0
_PRIOR_POINTS = 20
_LEAST, _MOST = 0.005, 0.995


@dataclass(frozen=True, slots=True)
class Isotonic:
    """A rising, piecewise linear map through points (`scores[i]`, `shares[i]`), flat beyond its
    ends.
    """

    scores: tuple[float, ...] = (0.0, 1.0)
    shares: tuple[float, ...] = (0.0, 1.0)

    def apply(self, score: float) -> float:
        """The calibrated probability; never quite 0 or 1, because nothing learned from examples is
        certain.
        """
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
    """`sensed` maps scores of turns that the detectors decided alone, `judged` those of turns that
    a judge voted on.
    """

    sensed: Isotonic = IDENTITY
    judged: Isotonic = IDENTITY


def fit_isotonic(
    pairs: Iterable[tuple[float, bool]], prior_weight: float = PRIOR_WEIGHT
) -> Isotonic:
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
        blocks.append(
            _Block(total, score, score, sum(share * weight for share, weight in weighed) / total)
        )
        while len(blocks) > 1 and blocks[-2].share >= blocks[-1].share:
            last = blocks.pop()
            blocks[-1].join(last)
    return blocks


def _joined(blocks: list[_Block]) -> Isotonic:
    """A map that is flat over each block, from its lowest score to its highest, and linear between
    blocks.
    """
    scores: list[float] = []
    shares: list[float] = []
    for block in blocks:
        share = min(1.0, max(0.0, block.share))
        for score in (block.low, block.high):
            if not scores or score > scores[-1]:
                scores.append(score)
                shares.append(max(share, shares[-1]) if shares else share)
    return Isotonic(tuple(scores), tuple(shares))


MARGIN = 0.6
"""A probability p counts as decided if |1 - 2p| is at least this."""

_HINTS = ("reply.",)
"""Signals that shift a probability but never decide alone: the kind of a sentence does not tell its
meaning.
"""

_IN_FAVOUR = ("progress.", "accepted.", "tests.passed", "environment.", "reply.")


@dataclass(frozen=True, slots=True)
class Sensed:
    """The result of the detectors. `verdict` is None if they cannot decide and the judge is asked;
    `p_fail` is the probability that the agent failed."""

    verdict: Verdict | None
    signals: tuple[Signal, ...]
    p_fail: float


def sense(step: Step, later: Step | None = None) -> Sensed:
    """Run all detectors on a step and what followed it; `later` is the next step, if known. Call it
    again when the next state of the step has been recorded."""
    signals = detect(step, later)
    p_fail = fuse(signals)
    return Sensed(_verdict(step, signals, p_fail), signals, p_fail)


def detect(
    step: Step, later: Step | None = None, *, fitted: Collection[str] | None = WEIGHTS.signals
) -> tuple[Signal, ...]:
    """All signals, each kind once. A signal that is not among `fitted` does not suppress progress;
    None: all are fitted.
    """
    observed = ObservedStep(step, later)
    found: dict[str, Signal] = {}
    for detector in DETECTORS:
        for signal in detector(observed):
            found.setdefault(signal.detector, signal)
    if any(
        not name.startswith(_IN_FAVOUR) and (fitted is None or name in fitted) for name in found
    ):
        # Progress does not count if anything speaks against the turn.
        found = {name: signal for name, signal in found.items() if not name.startswith("progress.")}
    return tuple(found.values())


def fuse(signals: tuple[Signal, ...], weights: SignalWeights = WEIGHTS) -> float:
    """The probability that the agent failed: the scaled sum of the evidence. A signal without a
    fitted weight counts with its own."""
    total = weights.bias + sum(
        weights.signals.get(signal.detector, signal.evidence) for signal in signals
    )
    return sigmoid(weights.scale * total)


def sigmoid(value: float) -> float:
    """From log-odds to a probability, without overflow."""
    if value >= 0:
        return 1.0 / (1.0 + math.exp(-value))
    rising = math.exp(value)
    return rising / (1.0 + rising)


def is_sure(p_fail: float) -> bool:
    """Whether a probability is far enough from undecided."""
    return abs(1.0 - 2.0 * p_fail) >= MARGIN


def _verdict(step: Step, signals: tuple[Signal, ...], p_fail: float) -> Verdict | None:
    if all(
        signal.detector.startswith(_HINTS) or signal.detector not in WEIGHTS.signals
        for signal in signals
    ):
        return None
    if is_sure(p_fail) and p_fail > 0.5:
        return Verdict(step.turn, Outcome.FAIL, Source.DETECTOR, p_fail, signals, fault=Fault.AGENT)
    if any(signal.fault is Fault.ENVIRONMENT for signal in signals):
        # Whether the agent itself did well is unknown: no score, so that the turn neither teaches
        # nor trains.
        return Verdict(
            step.turn, Outcome.FAIL, Source.DETECTOR, None, signals, fault=Fault.ENVIRONMENT
        )
    if is_sure(p_fail):
        return Verdict(step.turn, Outcome.PASS, Source.DETECTOR, p_fail, signals)
    return None


_PRIOR_VOTES = 0.25
"""Prior votes for each outcome. Less than one, because several votes of one model on the same turn
are nearly alike.
"""


def raw_score(sensed: Sensed, votes: Votes | None) -> float | None:
    """The uncalibrated probability, from the detectors alone or with the judge's votes; None if no
    vote was readable.
    """
    if votes is None:
        return sensed.p_fail
    readable = votes.passed + votes.failed
    if not readable:
        return None
    share = (votes.failed + _PRIOR_VOTES) / (readable + 2 * _PRIOR_VOTES)
    return sigmoid(_log_odds(sensed.p_fail) + _log_odds(share))


def is_cleared_by_one(sensed: Sensed) -> bool:
    """Whether one vote for a pass would decide the turn, before calibration."""
    score = raw_score(sensed, Votes(1, 0, 0, ""))
    return score is not None and score < 0.5 and is_sure(score)


def _log_odds(probability: float) -> float:
    bounded = min(1.0 - 1e-6, max(1e-6, probability))
    return math.log(bounded / (1.0 - bounded))


def verdict(step: Step, sensed: Sensed, votes: Votes | None, calibration: Calibration) -> Verdict:
    """The verdict on a turn. Unknown if the calibrated probability is not decided, or if no vote is
    readable.
    """
    if sensed.verdict is not None and sensed.verdict.fault is Fault.ENVIRONMENT:
        return sensed.verdict
    if sensed.verdict is not None:
        return _decided(
            step, sensed, None, calibration.sensed.apply(sensed.p_fail), Source.DETECTOR
        )
    score = None if votes is None else raw_score(sensed, votes)
    if score is None:
        return Verdict(step.turn, Outcome.UNKNOWN, Source.UNDECIDED, None, sensed.signals, votes)
    return _decided(step, sensed, votes, calibration.judged.apply(score), Source.JUDGE)


def _decided(
    step: Step, sensed: Sensed, votes: Votes | None, p_fail: float, source: Source
) -> Verdict:
    reason = votes.reasons[0] if votes is not None and votes.reasons else ""
    known = Outcome.PASS if p_fail < 0.5 else Outcome.FAIL
    outcome = known if is_sure(p_fail) else Outcome.UNKNOWN
    fault = Fault.AGENT if outcome is Outcome.FAIL else None
    return Verdict(step.turn, outcome, source, p_fail, sensed.signals, votes, fault, comment=reason)

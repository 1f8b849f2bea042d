"""Verdicts: the signals of all detectors, combined with the judge's votes and calibration, give the outcome of a turn."""

import math
from collections.abc import Collection
from dataclasses import dataclass

from metaclaw.domain.step import Step
from metaclaw.domain.verdict import Fault, Outcome, Signal, Source, Verdict, Votes
from metaclaw.outcome.calibration import Calibration
from metaclaw.outcome.detectors import DETECTORS
from metaclaw.outcome.signals import WEIGHTS, ObservedStep, SignalWeights

MARGIN = 0.6
"""How far from undecided, |1 - 2p|, a probability must be to count as decided."""

_HINTS = ("reply.",)
"""Signals that shift a probability but never decide alone: the kind of a sentence does not tell its meaning."""

_IN_FAVOUR = ("progress.", "accepted.", "tests.passed", "environment.", "reply.")


@dataclass(frozen=True, slots=True)
class Sensed:
    """The result of the detectors. `verdict` is None if they cannot decide: then the judge is asked. `p_fail` is their
    calibrated probability that the agent failed; what the environment did counts against it."""

    verdict: Verdict | None
    signals: tuple[Signal, ...]
    p_fail: float


def sense(step: Step, later: Step | None = None) -> Sensed:
    """Run all detectors on a step and what followed it. `later` is the next step, if it is known.

    A step whose next state is still to come and that has not ended may be sensed, but should be sensed again when it has come.
    """
    signals = detect(step, later)
    p_fail = fuse(signals)
    return Sensed(_verdict(step, signals, p_fail), signals, p_fail)


def detect(step: Step, later: Step | None = None, *, fitted: Collection[str] | None = WEIGHTS.signals) -> tuple[Signal, ...]:
    """All signals, each kind once. A signal that is not among `fitted` changes nothing; None takes all as fitted."""
    observed = ObservedStep(step, later)
    found: dict[str, Signal] = {}
    for detector in DETECTORS:
        for signal in detector(observed):
            found.setdefault(signal.detector, signal)
    if any(not name.startswith(_IN_FAVOUR) and (fitted is None or name in fitted) for name in found):
        # Progress does not count if anything speaks against the turn.
        found = {name: signal for name, signal in found.items() if not name.startswith("progress.")}
    return tuple(found.values())


def fuse(signals: tuple[Signal, ...], weights: SignalWeights = WEIGHTS) -> float:
    """The probability that the agent failed: the scaled sum of the evidence. An unknown signal, from an older
    verdict, weighs what it weighed then."""
    total = weights.bias + sum(weights.signals.get(signal.detector, signal.evidence) for signal in signals)
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
    if all(signal.detector.startswith(_HINTS) or signal.detector not in WEIGHTS.signals for signal in signals):
        return None
    if is_sure(p_fail) and p_fail > 0.5:
        return Verdict(step.turn, Outcome.FAIL, Source.DETECTOR, p_fail, signals, fault=Fault.AGENT)
    if any(signal.fault is Fault.ENVIRONMENT for signal in signals):
        # Whether the agent itself did well is unknown: no score, so that the turn neither teaches nor trains.
        return Verdict(step.turn, Outcome.FAIL, Source.DETECTOR, None, signals, fault=Fault.ENVIRONMENT)
    if is_sure(p_fail):
        return Verdict(step.turn, Outcome.PASS, Source.DETECTOR, p_fail, signals)
    return None


_PRIOR_VOTES = 0.25
"""Prior votes for either outcome. Few, because votes of one model about one turn are nearly alike."""


def raw_score(sensed: Sensed, votes: Votes | None) -> float | None:
    """The uncalibrated probability, from the detectors alone or with the judge's votes; None if no vote was readable."""
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
    """The verdict on a turn. Unknown if the calibrated probability is too near to undecided, or there is no vote."""
    if sensed.verdict is not None and sensed.verdict.fault is Fault.ENVIRONMENT:
        return sensed.verdict
    if sensed.verdict is not None:
        return _decided(step, sensed, None, calibration.sensed.apply(sensed.p_fail), Source.DETECTOR)
    score = None if votes is None else raw_score(sensed, votes)
    if score is None:
        return Verdict(step.turn, Outcome.UNKNOWN, Source.NOBODY, None, sensed.signals, votes)
    return _decided(step, sensed, votes, calibration.judged.apply(score), Source.JUDGE)


def _decided(step: Step, sensed: Sensed, votes: Votes | None, p_fail: float, source: Source) -> Verdict:
    reason = votes.reasons[0] if votes is not None and votes.reasons else ""
    if not is_sure(p_fail):
        return Verdict(step.turn, Outcome.UNKNOWN, source, p_fail, sensed.signals, votes, comment=reason)
    if p_fail < 0.5:
        return Verdict(step.turn, Outcome.PASS, source, p_fail, sensed.signals, votes, comment=reason)
    return Verdict(step.turn, Outcome.FAIL, source, p_fail, sensed.signals, votes, Fault.AGENT, comment=reason)

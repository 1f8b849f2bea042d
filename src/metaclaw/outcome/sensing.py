"""The sense of failure: signals of all detectors fused into a verdict, or into none where they do not suffice."""

import math
from dataclasses import dataclass

from metaclaw.domain.step import Step
from metaclaw.domain.verdict import Fault, Outcome, Signal, Source, Verdict
from metaclaw.outcome.detectors import DETECTORS
from metaclaw.outcome.seen import Seen
from metaclaw.outcome.weights import WEIGHTS, Weights

MARGIN = 0.6
"""How far from undecided, |1 - 2p|, a probability must be before anybody acts on it."""

_HINTS = ("reply.",)
"""Signals that shift a probability but never decide alone: what kind of sentence somebody says is not what they mean by it."""

_IN_FAVOUR = ("progress.", "accepted.", "tests.passed", "environment.", "reply.")


@dataclass(frozen=True, slots=True)
class Sensed:
    """What the detectors make of a step. `verdict` is None where they cannot decide: then the judge is asked. `p_fail` is their
    calibrated probability that the agent failed; what the environment did counts against it."""

    verdict: Verdict | None
    signals: tuple[Signal, ...]
    p_fail: float


def sense(step: Step, later: Step | None = None) -> Sensed:
    """Look at a step with its next state; where the step after it is known too, also at what that one says and takes back.

    A step whose next state is still to come and that has not ended may be sensed, but should be sensed again when it has come.
    """
    signals = detect(step, later)
    p_fail = fuse(signals)
    return Sensed(_verdict(step, signals, p_fail), signals, p_fail)


def detect(step: Step, later: Step | None = None) -> tuple[Signal, ...]:
    """All signals, each kind once."""
    seen = Seen(step, later)
    found: dict[str, Signal] = {}
    for detector in DETECTORS:
        for signal in detector(seen):
            found.setdefault(signal.detector, signal)
    if any(not name.startswith(_IN_FAVOUR) for name in found):
        # That work goes its way says nothing where something speaks against it.
        found = {name: signal for name, signal in found.items() if not name.startswith("progress.")}
    return tuple(found.values())


def fuse(signals: tuple[Signal, ...], weights: Weights = WEIGHTS) -> float:
    """The probability that the agent failed: the sum of the evidence, tempered. A signal that is known no more, from an older
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
    if all(signal.detector.startswith(_HINTS) for signal in signals):
        return None
    if is_sure(p_fail) and p_fail > 0.5:
        return Verdict(step.turn, Outcome.FAIL, Source.DETECTOR, p_fail, signals, fault=Fault.AGENT)
    if any(signal.fault is Fault.ENVIRONMENT for signal in signals):
        # Whether the agent would have done well is not known: no score, so that it neither teaches nor trains.
        return Verdict(step.turn, Outcome.FAIL, Source.DETECTOR, None, signals, fault=Fault.ENVIRONMENT)
    if is_sure(p_fail):
        return Verdict(step.turn, Outcome.PASS, Source.DETECTOR, p_fail, signals)
    return None

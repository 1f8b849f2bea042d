"""From signals, votes and calibration to a verdict on a turn; from the verdicts of its turns to one on a session."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from metaclaw.domain.step import Step
from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict, Votes
from metaclaw.outcome.calibration import Calibration
from metaclaw.outcome.sensing import Sensed, is_sure, sigmoid

DECAY = 0.7
"""How much of a failure is still felt after one more decided turn: what was mended afterwards counts less."""

_IMAGINED = 0.25
"""Imagined votes for either outcome. Few, because votes of one model about one turn are nearly alike: the first tells most."""


def raw_score(sensed: Sensed, votes: Votes | None) -> float | None:
    """What calibration maps to a probability: the detectors' word alone, or with the judge's; None where no vote could be read."""
    if votes is None:
        return sensed.p_fail
    readable = votes.passed + votes.failed
    if not readable:
        return None
    share = (votes.failed + _IMAGINED) / (readable + 2 * _IMAGINED)
    return sigmoid(_log_odds(sensed.p_fail) + _log_odds(share))


def is_cleared_by_one(sensed: Sensed) -> bool:
    """Whether one vote for a pass would settle it, by an uncalibrated score."""
    score = raw_score(sensed, Votes(1, 0, 0, ""))
    return score is not None and score < 0.5 and is_sure(score)


def _log_odds(probability: float) -> float:
    bounded = min(1.0 - 1e-6, max(1e-6, probability))
    return math.log(bounded / (1.0 - bounded))


def verdict(step: Step, sensed: Sensed, votes: Votes | None, calibration: Calibration) -> Verdict:
    """What the turn came to. Unknown where the calibrated probability is too near to undecided, or nobody could say."""
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


@dataclass(frozen=True, slots=True)
class SessionVerdict:
    """What a session came to. `p_fail` is None where no turn of it was decided."""

    outcome: Outcome
    p_fail: float | None
    failed: int
    passed: int


def session_verdict(verdicts: Sequence[Verdict], decay: float = DECAY) -> SessionVerdict:
    """Noisy-or over the agent's failures, in the order of the turns: each counts less for every decided turn after it.

    Unknown turns and faults of the environment say nothing.
    """
    decided = [one for one in verdicts if one.outcome is Outcome.PASS or one.teaches]
    failed = sum(one.teaches for one in decided)
    if not decided:
        return SessionVerdict(Outcome.UNKNOWN, None, 0, 0)
    spared = 1.0
    for age, one in enumerate(reversed(decided)):
        if one.teaches:
            spared *= 1.0 - (1.0 if one.p_fail is None else one.p_fail) * decay**age
    p_fail = 1.0 - spared
    outcome = Outcome.UNKNOWN if not is_sure(p_fail) else Outcome.FAIL if p_fail > 0.5 else Outcome.PASS
    return SessionVerdict(outcome, p_fail, failed, len(decided) - failed)

"""Fits the weights of the sense of failure on training turns: logistic regression around beliefs,
tempered on left-out families.

Each weight is drawn towards what its author believed before any turn was seen, so that a signal
that few turns show keeps a sane weight. `scale` is then fitted to predictions for families that
were left out, so that stated probabilities hold for kinds of turns that were never seen."""

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.failure_sense_cases.cases import Case
from metaclaw.outcome.detectors import SignalWeights
from metaclaw.outcome.verdicts import detect, sigmoid

BELIEFS: dict[str, float] = {
    "tool_error.reported": 3.0,
    "tool_error.no_such_tool": 3.5,
    "exit.failed": 2.5,
    "exit.hangs": 2.5,
    "exception.raised": 3.0,
    "schema.rejected": 3.5,
    "hollow.nothing_done": 1.5,
    "hollow.not_there": 1.5,
    "tests.failed": 2.5,
    "tests.failed_untouched": 0.5,
    "tests.passed": -3.0,
    "environment.fault": -3.0,
    "environment.provider": -3.0,
    "environment.line": -3.0,
    "repeat.same": 2.5,
    "repeat.loop": 3.5,
    "correction.plain": 3.0,
    "correction.no": 2.0,
    "correction.complaint": 2.5,
    "correction.reproach": 2.5,
    "correction.gives_up": 2.5,
    "correction.leading": 1.5,
    "correction.nearly": 1.5,
    "correction.rule": 2.0,
    "correction.contrast": 2.0,
    "correction.sarcasm": 2.0,
    "correction.but": 2.0,
    "correction.mild": 1.0,
    "correction.asked": 0.0,
    "correction.denies": 1.5,
    "correction.shout": 1.5,
    "redo.words": 2.5,
    "redo.same": 2.5,
    "redo.differently": 1.5,
    "redo.echo": 1.5,
    "interrupt.refused": 2.0,
    "interrupt.stopped": 2.0,
    "interrupt.hung_up": 0.5,
    "undone.asked": 3.0,
    "undone.by_person": 3.0,
    "undone.by_agent": 2.5,
    "apology.next": 2.5,
    "apology.loop": 2.0,
    "ending.empty": 3.0,
    "ending.cut": 2.5,
    "ending.refusal": 2.0,
    "accepted.praise": -3.0,
    "accepted.thanks": -2.5,
    "accepted.assent": -2.0,
    "accepted.excused": -2.0,
    "reply.changed": 0.0,
    "progress.next": -2.0,
    "progress.elsewhere": -2.0,
    "progress.request": -1.5,
    "progress.informs": -1.5,
    "reply.statement": 0.5,
    "reply.aside": 0.0,
    "reply.doubts": 0.5,
    "progress.another": -2.0,
    "progress.asks": -1.0,
    "progress.answered": -2.0,
    "progress.tools": -2.5,
    "progress.answer": -2.0,
    "progress.expected": -2.0,
}
"""Log-odds of failure that each signal was believed to carry, before any labelled turn was looked
at. 0 for a signal not listed.
"""

_SPREAD = 1.0  # how far a weight may stray from its belief at the price of one nat
_STEPS, _RATE = 400, 0.05
_FOLDS = 10
Row = tuple[frozenset[str], bool]


def fit(cases: Sequence[Case], path: Path) -> SignalWeights:
    """Fit on all families and write the result."""
    rows = [
        (
            frozenset(signal.detector for signal in detect(case.step, case.later, fitted=None)),
            case.failed,
        )
        for case in cases
    ]
    families = [case.row.family for case in cases]
    scale = _temper(_left_out(rows, families))
    bias, signals = _regress(rows)
    weights = SignalWeights(
        round(bias, 3),
        round(scale, 3),
        {name: round(weight, 3) for name, weight in signals.items()},
        f"{len(cases)} turns of {len(set(families))} families, {sum(case.failed for case in cases)}"
        " of them failures",
    )
    path.write_bytes(msgspec.json.format(msgspec.json.encode(weights), indent=2) + b"\n")
    return weights


def _regress(rows: Sequence[Row]) -> tuple[float, dict[str, float]]:
    """Gradient descent (Adam) on the log-loss with a Gaussian prior around the beliefs."""
    beliefs = BELIEFS | dict.fromkeys(
        sorted({name for found, _ in rows for name in found} - BELIEFS.keys()), 0.0
    )
    names = list(beliefs)
    place = {name: index + 1 for index, name in enumerate(names)}
    shown = [([0, *(place[name] for name in found)], failed) for found, failed in rows]
    start = [0.0, *beliefs.values()]
    weights, first, second = start[:], [0.0] * len(start), [0.0] * len(start)
    for step in range(1, _STEPS + 1):
        slope = [
            (weight - belief) / _SPREAD**2 for weight, belief in zip(weights, start, strict=True)
        ]
        slope[0] = 0.0
        for places, failed in shown:
            error = sigmoid(sum(weights[at] for at in places)) - failed
            for at in places:
                slope[at] += error
        for at, value in enumerate(slope):
            first[at] = 0.9 * first[at] + 0.1 * value
            second[at] = 0.999 * second[at] + 0.001 * value * value
            moved = first[at] / (1 - 0.9**step) / (math.sqrt(second[at] / (1 - 0.999**step)) + 1e-9)
            weights[at] -= _RATE * moved
    return weights[0], dict(zip(names, weights[1:], strict=True))


def _left_out(rows: Sequence[Row], families: Sequence[str]) -> list[tuple[float, bool]]:
    """Log-odds for each turn from a fit that has seen none of its family."""
    order = sorted(set(families))
    found = []
    for fold in range(_FOLDS):
        outside = set(order[fold::_FOLDS])
        bias, weights = _regress(
            [row for row, family in zip(rows, families, strict=True) if family not in outside]
        )
        for (names, failed), family in zip(rows, families, strict=True):
            if family in outside:
                found.append((bias + sum(weights.get(name, 0.0) for name in names), failed))
    return found


def _temper(scored: Sequence[tuple[float, bool]]) -> float:
    """The scale under which the log-odds of left-out families are most honest."""
    return min((step / 50 for step in range(5, 151)), key=lambda scale: _log_loss(scored, scale))


def _log_loss(scored: Sequence[tuple[float, bool]], scale: float) -> float:
    return sum(
        math.log1p(math.exp(-scale * value if failed else scale * value))
        for value, failed in scored
    )

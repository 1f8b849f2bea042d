"""Free detectors: each looks at one kind of evidence in a step and says what it saw. Pure, quick, and never asked twice."""

from collections.abc import Callable

from metaclaw.domain.verdict import Signal
from metaclaw.outcome.detectors import (
    acceptance,
    apologies,
    checks,
    corrections,
    endings,
    environment,
    exceptions,
    exits,
    hollow,
    interrupts,
    progress,
    redo,
    repeats,
    replies,
    schema,
    tool_errors,
    undone,
)
from metaclaw.outcome.seen import Seen

Detector = Callable[[Seen], tuple[Signal, ...]]

DETECTORS: tuple[Detector, ...] = tuple(
    module.detect
    for module in (
        tool_errors,
        exits,
        exceptions,
        schema,
        hollow,
        checks,
        environment,
        repeats,
        corrections,
        redo,
        interrupts,
        undone,
        apologies,
        endings,
        acceptance,
        replies,
        progress,
    )
)

__all__ = ["DETECTORS", "Detector"]

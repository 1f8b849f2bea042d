"""Detectors: each looks at one kind of evidence in a step and returns signals. They are pure, quick and free."""

from collections.abc import Callable

from metaclaw.domain.verdict import Signal
from metaclaw.outcome.detectors import agent, people, tools
from metaclaw.outcome.signals import ObservedStep

Detector = Callable[[ObservedStep], tuple[Signal, ...]]

DETECTORS: tuple[Detector, ...] = (
    tools.tool_errors,
    tools.failed_commands,
    tools.exceptions,
    tools.rejected_calls,
    tools.calls_without_effect,
    tools.test_results,
    tools.environment_faults,
    agent.repeated_calls,
    people.corrections,
    people.repeated_requests,
    people.interruptions,
    people.reverted_work,
    agent.apologies,
    agent.bad_endings,
    people.acceptance,
    people.next_sentence,
    tools.progress,
)

__all__ = ["DETECTORS", "Detector"]

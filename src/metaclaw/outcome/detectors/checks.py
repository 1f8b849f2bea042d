"""Tests that were run: passing ones speak for the turn, failing ones against it, unless nothing had been changed yet."""

from metaclaw.domain.verdict import Signal
from metaclaw.outcome.results import Meaning
from metaclaw.outcome.seen import Seen
from metaclaw.outcome.weights import signal


def detect(seen: Seen) -> tuple[Signal, ...]:
    """Test runs."""
    if failed := seen.found(Meaning.TESTS_FAILED):
        name = "tests.failed" if seen.has_edited else "tests.failed_untouched"
        return (signal(name, failed.quote),)
    passed = seen.found(Meaning.TESTS_PASSED)
    return (signal("tests.passed", passed.quote),) if passed else ()

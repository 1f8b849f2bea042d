"""A program that was run, not read, ended in an exception, a panic or a crash."""

from metaclaw.domain.verdict import Signal
from metaclaw.outcome.results import Meaning
from metaclaw.outcome.seen import Seen
from metaclaw.outcome.weights import signal


def detect(seen: Seen) -> tuple[Signal, ...]:
    """Exceptions."""
    found = seen.found(Meaning.EXCEPTION)
    return (signal("exception.raised", found.quote),) if found else ()

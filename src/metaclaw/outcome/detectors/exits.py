"""A command that failed: an exit code that is not an answer, or a command that never came back."""

from metaclaw.domain.verdict import Signal
from metaclaw.outcome.results import Meaning
from metaclaw.outcome.seen import Seen
from metaclaw.outcome.weights import signal


def detect(seen: Seen) -> tuple[Signal, ...]:
    """Failed commands."""
    found = []
    if failed := seen.found(Meaning.EXIT):
        found.append(signal("exit.failed", failed.quote))
    if hung := seen.found(Meaning.HANGS):
        found.append(signal("exit.hangs", hung.quote))
    return tuple(found)

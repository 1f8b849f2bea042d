"""The person corrects the answer."""

from metaclaw.domain.verdict import Signal
from metaclaw.outcome.seen import Seen
from metaclaw.outcome.weights import signal


def detect(seen: Seen) -> tuple[Signal, ...]:
    """Corrections, by how they are put."""
    return tuple(signal(f"correction.{kind}", quote) for kind, quote in seen.reply.corrections)

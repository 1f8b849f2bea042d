"""The person asks for the same thing again: in the same words, in others, or for the part of it that was passed over."""

from metaclaw.domain.turn import TurnEnd
from metaclaw.domain.verdict import Signal
from metaclaw.outcome.seen import Seen
from metaclaw.outcome.weights import signal


def detect(seen: Seen) -> tuple[Signal, ...]:
    """Requests made again. After a broken line it is the client that repeats them."""
    if seen.step.end is TurnEnd.FAILED:
        return ()
    return tuple(signal(f"redo.{kind}", quote) for kind, quote in seen.reply.redo)

"""Where no phrase tells what the person thinks of the answer: what kind of sentence they go on with, and about what."""

from metaclaw.domain.verdict import Signal
from metaclaw.outcome import phrases
from metaclaw.outcome.seen import Seen
from metaclaw.outcome.weights import signal


def detect(seen: Seen) -> tuple[Signal, ...]:
    """How they go on. Who was asked something and says yes or no has answered."""
    reply = seen.reply
    if not seen.has_said or reply.is_negative:
        return ()
    if seen.asked_back and (phrases.ASSENT.opens(seen.said) or phrases.DENIALS.opens(seen.said)):
        return (signal("progress.answered", seen.said.strip()),)
    if reply.next is None or reply.accepted:
        return ()
    return (signal(*reply.next),)

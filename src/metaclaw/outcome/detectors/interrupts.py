"""The person stopped the agent, or refused a call, or the client went away in mid-answer."""

from metaclaw.domain.turn import TurnEnd
from metaclaw.domain.verdict import Signal
from metaclaw.outcome import phrases
from metaclaw.outcome.detectors import environment
from metaclaw.outcome.results import Meaning
from metaclaw.outcome.seen import Seen
from metaclaw.outcome.weights import signal
from metaclaw.outcome.words import spoken


def detect(seen: Seen) -> tuple[Signal, ...]:
    """Interrupts, unless the person says that it was not because of the answer."""
    if seen.reply.excuses or seen.reply.accepted or (phrases.RESUME.find(seen.said) and not seen.reply.corrections):
        return ()
    if found := seen.found(Meaning.REFUSED):
        return (signal("interrupt.refused", found.quote),)
    if quote := _stopped(seen):
        return (signal("interrupt.stopped", quote),)
    if seen.step.end is TurnEnd.CANCELLED and not environment.detect(seen):
        return (signal("interrupt.hung_up", "the client went away"),)
    return ()


def _stopped(seen: Seen) -> str | None:
    if found := seen.found(Meaning.STOPPED):
        return found.quote
    for note in seen.notes:
        if len(note) < 600 and (quote := phrases.INTERRUPTED.find(spoken(note))):
            return quote
    return None

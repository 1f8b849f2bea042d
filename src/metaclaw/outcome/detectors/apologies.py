"""The agent apologises for what it said: in its next answer, or again and again."""

from metaclaw.domain.step import Step
from metaclaw.domain.verdict import Signal
from metaclaw.outcome import phrases
from metaclaw.outcome.reading import said_by
from metaclaw.outcome.seen import Seen
from metaclaw.outcome.weights import signal
from metaclaw.outcome.words import spoken

_HEAD_CHARS = 240


def detect(seen: Seen) -> tuple[Signal, ...]:
    """Apologies for this answer, and this one's for the one before."""
    found = []
    if seen.later is not None and (quote := _apology(seen.later)):
        found.append(signal("apology.next", quote))
    previous = seen.step.previous
    if previous is not None and _apology(previous) and (quote := _apology(seen.step)):
        found.append(signal("apology.loop", quote))
    return tuple(found)


def _apology(step: Step) -> str | None:
    return phrases.APOLOGIES.find(spoken(said_by(step.answer)[:_HEAD_CHARS]))

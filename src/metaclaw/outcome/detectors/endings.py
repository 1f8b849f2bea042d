"""An answer that is empty, breaks off, or refuses what there is no reason to refuse."""

from metaclaw.domain.chat import Finish
from metaclaw.domain.turn import TurnEnd
from metaclaw.domain.verdict import Signal
from metaclaw.outcome import phrases
from metaclaw.outcome.seen import Seen
from metaclaw.outcome.weights import signal
from metaclaw.outcome.words import spoken

_HEAD_CHARS = 240
_MOSTLY_REFUSAL_CHARS = 400


def detect(seen: Seen) -> tuple[Signal, ...]:
    """Answers that are none."""
    if seen.step.end is not TurnEnd.COMPLETED:
        return ()
    if not seen.step.calls and not seen.answer.strip():
        return (signal("ending.empty", "the answer is empty"),)
    found = []
    if quote := _cut_off(seen):
        found.append(signal("ending.cut", quote))
    if quote := _refusal(seen):
        found.append(signal("ending.refusal", quote))
    return tuple(found)


def _cut_off(seen: Seen) -> str | None:
    if seen.step.finish is Finish.LENGTH:
        return f"…{seen.answer[-60:]}"
    if quote := phrases.CUT_OFF.find(seen.said):
        return quote
    is_open = not seen.step.calls and seen.answer.count("```") % 2 == 1
    return f"…{seen.answer[-60:]}" if is_open else None


def _refusal(seen: Seen) -> str | None:
    if seen.step.calls or len(seen.answer) > _MOSTLY_REFUSAL_CHARS:
        return None
    if seen.step.finish is Finish.CONTENT_FILTER:
        return "stopped by a content filter"
    quote = phrases.REFUSALS.find(spoken(seen.answer[:_HEAD_CHARS]))
    return None if quote is None or phrases.HARM.find(spoken(seen.step.task)) else quote

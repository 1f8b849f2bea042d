"""Detectors of the agent's own behaviour: repeated calls, apologies, and answers that end badly."""

import msgspec

from metaclaw.domain.chat import Finish, Text, ToolCall, ToolResult
from metaclaw.domain.step import Step
from metaclaw.domain.turn import TurnEnd
from metaclaw.domain.verdict import Signal
from metaclaw.outcome import phrases
from metaclaw.outcome.phrases import spoken
from metaclaw.outcome.reading import is_edit, said_by, same_id
from metaclaw.outcome.signals import ObservedStep, signal

_MAX_ARGUMENTS = 20_000


def repeated_calls(observed: ObservedStep) -> tuple[Signal, ...]:
    """The same call with the same arguments and result again, without a change in between."""
    earlier = _earlier_answers(observed)
    if not earlier:
        return ()
    answers = {same_id(result.call_id): _text(result) for result in observed.step.results}
    for call in observed.step.calls:
        before = earlier.get(_key(call), [])
        now = answers.get(same_id(call.id))
        same = [text for text in before if now is None or text == now]
        if len(same) >= 2:
            return (signal("repeat.loop", f"{call.name} {call.arguments}"),)
        if same and now is not None:
            return (signal("repeat.same", f"{call.name} {call.arguments}"),)
    return ()


def _earlier_answers(observed: ObservedStep) -> dict[str, list[str]]:
    """The results of each call of this task since the last edit."""
    calls: dict[str, ToolCall] = {}
    found: dict[str, list[str]] = {}
    for message in observed.run:
        for part in message.parts:
            if isinstance(part, ToolCall):
                calls[same_id(part.id)] = part
            elif isinstance(part, ToolResult) and (call := calls.get(same_id(part.call_id))):
                if is_edit(call) and not part.is_error and not _was_refused(part):
                    found.clear()
                found.setdefault(_key(call), []).append(_text(part))
    return found


def _was_refused(result: ToolResult) -> bool:
    head = _text(result)[:200].lower()
    return "error" in head or "could not find" in head or "failed" in head


def _key(call: ToolCall) -> str:
    """The name and arguments of a call, independent of the order and spacing of its fields."""
    if len(call.arguments) > _MAX_ARGUMENTS:
        return f"{call.name} {call.arguments}"
    try:
        fields = msgspec.json.decode(call.arguments, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeEncodeError):
        return f"{call.name} {call.arguments.strip()}"
    fields.pop("description", None)
    return f"{call.name} {msgspec.json.encode(fields, order='sorted').decode()}"


def _text(result: ToolResult) -> str:
    whole = "\n".join(part.text for part in result.parts if isinstance(part, Text))
    # Codex adds a number and a time to every output.
    return whole.partition("\nOutput:\n")[2] or whole


_HEAD_CHARS = 240


def apologies(observed: ObservedStep) -> tuple[Signal, ...]:
    """The agent apologises for this answer in the next one, or in two answers in a row."""
    found = []
    if observed.later is not None and (quote := _apology(observed.later)):
        found.append(signal("apology.next", quote))
    previous = observed.step.previous
    if previous is not None and _apology(previous) and (quote := _apology(observed.step)):
        found.append(signal("apology.loop", quote))
    return tuple(found)


def _apology(step: Step) -> str | None:
    return phrases.APOLOGIES.find(spoken(said_by(step.answer)[:_HEAD_CHARS]))


_REFUSAL_HEAD_CHARS = 240
_MOSTLY_REFUSAL_CHARS = 400


def bad_endings(observed: ObservedStep) -> tuple[Signal, ...]:
    """An answer that is empty, cut off, or refuses a harmless task."""
    if observed.step.end is not TurnEnd.COMPLETED:
        return ()
    if not observed.step.calls and not observed.answer.strip():
        return (signal("ending.empty", "the answer is empty"),)
    found = []
    if quote := _cut_off(observed):
        found.append(signal("ending.cut", quote))
    if quote := _refusal(observed):
        found.append(signal("ending.refusal", quote))
    return tuple(found)


def _cut_off(observed: ObservedStep) -> str | None:
    if observed.step.finish is Finish.LENGTH:
        return f"…{observed.answer[-60:]}"
    if quote := phrases.CUT_OFF.find(observed.said):
        return quote
    is_open = not observed.step.calls and observed.answer.count("```") % 2 == 1
    return f"…{observed.answer[-60:]}" if is_open else None


def _refusal(observed: ObservedStep) -> str | None:
    if observed.step.calls or len(observed.answer) > _MOSTLY_REFUSAL_CHARS:
        return None
    if observed.step.finish is Finish.CONTENT_FILTER:
        return "stopped by a content filter"
    quote = phrases.REFUSALS.find(spoken(observed.answer[:_REFUSAL_HEAD_CHARS]))
    return None if quote is None or phrases.HARM.find(spoken(observed.step.task)) else quote

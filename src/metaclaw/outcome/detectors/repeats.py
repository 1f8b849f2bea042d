"""The same call with the same arguments again, though nothing was changed in between and nothing new came back."""

import msgspec

from metaclaw.domain.chat import Text, ToolCall, ToolResult
from metaclaw.domain.verdict import Signal
from metaclaw.outcome.reading import is_edit, same_id
from metaclaw.outcome.seen import Seen
from metaclaw.outcome.weights import signal

_MAX_ARGUMENTS = 20_000


def detect(seen: Seen) -> tuple[Signal, ...]:
    """Repeated calls."""
    earlier = _earlier_answers(seen)
    if not earlier:
        return ()
    answers = {same_id(result.call_id): _text(result) for result in seen.step.results}
    for call in seen.step.calls:
        before = earlier.get(_key(call), [])
        now = answers.get(same_id(call.id))
        same = [text for text in before if now is None or text == now]
        if len(same) >= 2:
            return (signal("repeat.loop", f"{call.name} {call.arguments}"),)
        if same and now is not None:
            return (signal("repeat.same", f"{call.name} {call.arguments}"),)
    return ()


def _earlier_answers(seen: Seen) -> dict[str, list[str]]:
    """What each call of this task gave since the last change of a file."""
    calls: dict[str, ToolCall] = {}
    found: dict[str, list[str]] = {}
    for message in seen.run:
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
    """A call by name and arguments, whatever the order and spacing of its fields."""
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
    # Codex numbers and times every output.
    return whole.partition("\nOutput:\n")[2] or whole

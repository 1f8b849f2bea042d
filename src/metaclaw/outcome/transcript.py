"""A step as text for somebody who judges it: the task, the answer with its calls, and what followed, step by step."""

from collections.abc import Iterable, Sequence

from metaclaw.domain.chat import Image, Message, Opaque, Part, Reasoning, Role, Text, ToolCall, ToolResult
from metaclaw.domain.step import Step

_PART_CHARS = 4_000
_TASK_CHARS = 4_000
_EARLIER_MESSAGES = 6
_EARLIER_CHARS = 600
_MAX_CHARS = 40_000


def transcript(step: Step, max_chars: int = _MAX_CHARS) -> str:
    """Everything a judge should see, each piece on lines of its own. What is too long loses its middle, and says so."""
    lines = ["== The task, in the person's words", _cut(step.task, _TASK_CHARS)]
    if earlier := _earlier(step.history):
        lines += ["", "== What had been said and done just before", *earlier]
    lines += ["", "== The answer to be judged", *(_parts(step.answer, _PART_CHARS) or ["(nothing)"])]
    lines += ["", "== What followed", *_followed(step)]
    return _cut("\n".join(lines), max_chars)


def _earlier(history: Sequence[Message]) -> list[str]:
    spoken = [message for message in history if message.role != Role.SYSTEM]
    return [f"{message.role}: {line}" for message in spoken[-_EARLIER_MESSAGES:] for line in _parts(message.parts, _EARLIER_CHARS)]


def _followed(step: Step) -> list[str]:
    lines = [f"{message.role}: {line}" for message in step.after for line in _parts(message.parts, _PART_CHARS)]
    if step.said_after and not any(step.said_after in line for line in lines):
        lines.append(f"the person: {_cut(step.said_after, _PART_CHARS)}")
    if not lines:
        lines.append("Nothing: the session ended here." if step.is_last else "Nothing yet.")
    return [*lines, f"(the answer was {step.end})"]


def _parts(parts: Iterable[Part], limit: int) -> list[str]:
    return [line for part in parts if (line := _part(part, limit))]


def _part(part: Part, limit: int) -> str:
    match part:
        case Text():
            return _cut(part.text, limit)
        case ToolCall():
            return f"[calls {part.name} with {_cut(part.arguments, limit)}]"
        case ToolResult():
            kind = "an error" if part.is_error else "a result"
            return f"[{kind} for {part.call_id}: {_cut(chr(10).join(_parts(part.parts, limit)), limit)}]"
        case Image():
            return "[a picture]"
        case Opaque():
            return "[something this program cannot read]"
        case Reasoning():
            return ""  # what the model thought is not what it did


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"

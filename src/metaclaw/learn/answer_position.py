"""Finding an answer in the request that follows it.

Clients rewrite their history: they clear old tool output, compact what is long, drop or add reminders, strip punctuation from call
ids. So an answer is looked for by its place, by its calls and by its words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from metaclaw.domain.chat import ChatRequest, Message, Part, Role, Text, ToolCall
from metaclaw.domain.turn import Turn

Mark: TypeAlias = tuple[str, ...]
"""What stays of a message from request to request; empty for system text, which comes and goes."""


@dataclass(frozen=True, slots=True)
class ReadTurn:
    """A main turn whose request could be read, and the marks of the request's messages."""

    turn: Turn
    request: ChatRequest
    marks: tuple[Mark, ...]
    answer: tuple[Part, ...]
    answer_id: str

    @property
    def asked(self) -> list[Mark]:
        """The marks of what was said; system text comes and goes, and is left out."""
        return [mark for mark in self.marks if mark]


def bare_id(identity: str) -> str:
    """A tool-call id without what clients strip from it."""
    return "".join(filter(str.isalnum, identity))


def without_prefill(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages without the beginning of an answer that some callers put last for the model to go on from."""
    end = len(messages)
    while end and messages[end - 1].role is Role.ASSISTANT:
        end -= 1
    return messages[:end]


def _answers(messages: Sequence[Message]) -> list[tuple[int, int]]:
    """Where answers stand: each a run of assistant messages, from its first to behind its last."""
    runs: list[tuple[int, int]] = []
    for at, message in enumerate(messages):
        if message.role is not Role.ASSISTANT:
            continue
        if runs and runs[-1][1] == at:
            runs[-1] = (runs[-1][0], at + 1)
        else:
            runs.append((at, at + 1))
    return runs


def place_behind(mine: ReadTurn, following: ReadTurn) -> int | None:
    """Where in the following request the messages behind this answer begin; None where the answer is not in it."""
    messages = following.request.messages
    if mine.answer_id and following.request.extra.get("previous_response_id") == mine.answer_id:
        return 1 if messages and messages[0].role is Role.SYSTEM else 0
    runs = _answers(messages)
    expected = _expected(mine, following)
    if expected is not None:
        return next((end for begin, end in runs if begin == expected and _is_in_place(mine, messages[begin:end])), None)
    found = [end for begin, end in runs if _is_same(mine, messages[begin:end])]
    asked = mine.request.messages
    # An answer that says what an earlier one said ("Done.") is there only if it is there once more than before.
    before = sum(1 for begin, end in _answers(asked) if _is_same(mine, asked[begin:end]))
    return found[-1] if len(found) > before else None


def _expected(mine: ReadTurn, following: ReadTurn) -> int | None:
    """Where the answer must stand if the client sends all of the request again; None if it does not."""
    asked = [mark for mark in mine.marks[: len(without_prefill(mine.request.messages))] if mark]
    at = 0
    for number, mark in enumerate(following.marks):
        if not mark:
            continue
        if at == len(asked):
            return number
        if mark != asked[at]:
            return None
        at += 1
    return None


def repeats(mine: ReadTurn, other: ReadTurn) -> bool:
    """Whether the other request asks the very same again, or less."""
    again = other.asked
    return other.turn.retry_of == mine.turn.id or again == mine.asked[: len(again)]


def _is_same(mine: ReadTurn, run: Sequence[Message]) -> bool:
    """Whether this run of assistant messages is the answer, wherever it stands."""
    parts = [part for message in run for part in message.parts]
    calls, shown = _calls(mine.answer), _calls(parts)
    if calls or shown:
        return bool({bare_id(call.id) for call in calls} & {bare_id(call.id) for call in shown})
    said = _squeezed(text_of(mine.answer))
    return bool(said) and said == _squeezed(text_of(parts))


def _is_in_place(mine: ReadTurn, run: Sequence[Message]) -> bool:
    """Whether a run that stands where the answer must stand is it: clients change ids, keep a part, put a prefill in front."""
    if _is_same(mine, run):
        return True
    parts = [part for message in run for part in message.parts]
    if [call.name for call in _calls(mine.answer)] != [call.name for call in _calls(parts)]:
        return False
    said, kept = _squeezed(text_of(mine.answer)), _squeezed(text_of(parts))
    return bool(_calls(parts)) or not said or kept.endswith(said) or kept.startswith(said) or said.startswith(kept)


def _calls(parts: Sequence[Part]) -> list[ToolCall]:
    return [part for part in parts if isinstance(part, ToolCall)]


def text_of(parts: Sequence[Part]) -> str:
    """The words of a message or an answer."""
    return "\n".join(part.text for part in parts if isinstance(part, Text))


def _squeezed(text: str) -> str:
    return "".join(text.split())

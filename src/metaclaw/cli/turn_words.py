"""A turn in words, for `metaclaw sessions`: what was answered, which rules held, and the verdict."""

import json
from typing import TYPE_CHECKING

from metaclaw.domain.wording import NOT_JUDGED, outcome_word, source_words
from metaclaw.errors import WireError

if TYPE_CHECKING:
    from metaclaw.domain.chat import Message, ToolCall
    from metaclaw.domain.turn import Enforcement, Turn
    from metaclaw.domain.verdict import Verdict

_GOT = {
    "complied": "the client got an answer that follows it",
    "stopped": "the client got a text in place of the calls",
    "warned": "the client got them with a warning",
}


def is_continued(turn: "Turn") -> bool:
    """Whether the request goes on with the results of tools instead of words."""
    from metaclaw.api import words_in
    from metaclaw.domain.chat import ToolResult
    from metaclaw.proxy import own_words

    messages = _messages(turn)
    return (
        bool(messages)
        and any(isinstance(part, ToolResult) for part in messages[-1].parts)
        and not words_in(own_words, turn.agent, messages[-1])
    )


def answered(turn: "Turn") -> str:
    """The model's answer: its text, and one line for each tool call."""
    from metaclaw.domain.chat import Text, ToolCall
    from metaclaw.wires import said_parts

    lines: list[str] = []
    for part in said_parts(turn.wire, turn.stream, turn.exchange.shown, partial=True):
        if isinstance(part, Text) and part.text.strip():
            lines.append(part.text.strip())
        elif isinstance(part, ToolCall):
            lines.append(_call(part))
    return "\n".join(lines)


def held_in_words(found: "Enforcement") -> str:
    """Which rules held calls of an answer back, and what the client got."""
    names = ", ".join(one.rule for one in found.rules)
    times = len(found.attempts)
    tries = "" if times < 2 else f" The model was asked {times} times."
    return f"calls that break {names}; {_GOT[found.rules[0].end.value]}.{tries} (metaclaw why tells the story)"


def verdict_in_words(verdict: "Verdict | None") -> str:
    """The verdict on a turn and its source, in words."""
    if verdict is None:
        return NOT_JUDGED
    evidence = verdict.comment or "; ".join(filter(None, (signal.quote for signal in verdict.signals)))
    return f"{outcome_word(verdict.outcome.value)}, {source_words(verdict.source.value)}" + (f": {evidence}" if evidence else "")


def _messages(turn: "Turn") -> "tuple[Message, ...]":
    from metaclaw.learn import read_request

    try:
        return tuple(read_request(turn.wire, turn.exchange.request).messages)
    except WireError:
        return ()


def _call(call: "ToolCall") -> str:
    """A tool call on one line: its name and the value that says most."""
    try:
        given = json.loads(call.arguments)
    except ValueError:
        given = call.arguments
    values = [value for value in given.values() if isinstance(value, str)] if isinstance(given, dict) else [str(given)]
    return f"→ {call.name}({' '.join(values[0].split()) if values else ''})"

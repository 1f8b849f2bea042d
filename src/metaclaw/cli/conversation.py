"""Recorded turns in words for the terminal: what the model answered, and what a turn came to."""

import json
from typing import TYPE_CHECKING

from metaclaw.errors import WireError

if TYPE_CHECKING:
    from metaclaw.domain.chat import Message, ToolCall
    from metaclaw.domain.turn import Turn
    from metaclaw.domain.verdict import Verdict

_SOURCES = {
    "user": "you said so",
    "check": "a check found it",
    "detector": "seen in what happened next",
    "judge": "a judge found it",
    "nobody": "no one could tell",
}


def is_continued(turn: "Turn") -> bool:
    """Whether the request goes on with the results of tools instead of words."""
    from metaclaw.dashboard.titles import words_in
    from metaclaw.domain.chat import ToolResult
    from metaclaw.proxy import own_words

    messages = _messages(turn)
    return (
        bool(messages)
        and any(isinstance(part, ToolResult) for part in messages[-1].parts)
        and not words_in(own_words, turn.agent, messages[-1])
    )


def answered(turn: "Turn") -> str:
    """What the model answered: its words, and each tool it called on a line of its own."""
    from metaclaw.domain.chat import Text, ToolCall
    from metaclaw.wires import said_parts

    lines: list[str] = []
    for part in said_parts(turn.wire, turn.stream, turn.exchange.shown, partial=True):
        if isinstance(part, Text) and part.text.strip():
            lines.append(part.text.strip())
        elif isinstance(part, ToolCall):
            lines.append(_call(part))
    return "\n".join(lines)


def verdict_in_words(verdict: "Verdict | None") -> str:
    """What a turn came to and how that is known, as a person says it."""
    if verdict is None:
        return "not judged yet"
    outcome = {"pass": "good", "fail": "failed"}.get(verdict.outcome.value, "unclear")
    evidence = verdict.comment or "; ".join(filter(None, (signal.quote for signal in verdict.signals)))
    source = _SOURCES.get(verdict.source.value, verdict.source.value)
    return f"{outcome}, {source}" + (f": {evidence}" if evidence else "")


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

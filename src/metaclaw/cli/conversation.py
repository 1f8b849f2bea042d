"""The words of recorded turns: what the person said, what the model answered, and a title for a session."""

import json
from typing import TYPE_CHECKING

from metaclaw.errors import WireError

if TYPE_CHECKING:
    from metaclaw.domain.chat import Message, ToolCall
    from metaclaw.domain.ids import SessionId
    from metaclaw.domain.turn import Turn
    from metaclaw.domain.verdict import Verdict
    from metaclaw.store import LedgerReader

_SOURCES = {
    "user": "you said so",
    "check": "a check found it",
    "detector": "seen in what happened next",
    "judge": "a judge found it",
    "nobody": "no one could tell",
}


def asked(turn: "Turn") -> str:
    """What the person said last in a turn's request, without what clients add; empty where that cannot be read."""
    said = (_own_words(turn, message) for message in reversed(_messages(turn)))
    return next(filter(None, said), "")


def is_continued(turn: "Turn") -> bool:
    """Whether the request goes on with the results of tools instead of words."""
    from metaclaw.domain.chat import ToolResult

    messages = _messages(turn)
    return (
        bool(messages) and any(isinstance(part, ToolResult) for part in messages[-1].parts) and not _own_words(turn, messages[-1])
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


def title_of(reader: "LedgerReader", session: "SessionId") -> str:
    """The first thing the person asked for in a session; empty where that cannot be read."""
    first = reader.next_main_turn(session, 0)
    whole = None if first is None else reader.turn(first.id)
    return "" if whole is None else " ".join(asked(whole.turn).split())


def verdict_in_words(verdict: "Verdict | None") -> str:
    """What a turn came to and how that is known, as a person says it."""
    if verdict is None:
        return "not judged yet"
    outcome = {"pass": "good", "fail": "failed"}.get(verdict.outcome.value, "unclear")
    evidence = verdict.comment or "; ".join(filter(None, (signal.quote for signal in verdict.signals)))
    source = _SOURCES.get(verdict.source.value, verdict.source.value)
    return f"{outcome}, {source}" + (f": {evidence}" if evidence else "")


def _messages(turn: "Turn") -> "tuple[Message, ...]":
    from metaclaw.learn.steps import read_request

    try:
        return tuple(read_request(turn.wire, turn.exchange.request).messages)
    except WireError:
        return ()


def _own_words(turn: "Turn", message: "Message") -> str:
    from metaclaw.domain.chat import Role, Text
    from metaclaw.proxy import own_words

    if message.role is not Role.USER:
        return ""
    said = (own_words(turn.agent, part.text).strip() for part in message.parts if isinstance(part, Text))
    return "\n".join(filter(None, said))


def _call(call: "ToolCall") -> str:
    """A tool call on one line: its name and the value that says most."""
    try:
        given = json.loads(call.arguments)
    except ValueError:
        given = call.arguments
    values = [value for value in given.values() if isinstance(value, str)] if isinstance(given, dict) else [str(given)]
    return f"→ {call.name}({' '.join(values[0].split()) if values else ''})"

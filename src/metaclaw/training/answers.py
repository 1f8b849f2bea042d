"""Answers as the policy writes them: one text, with its calls between tags."""

import json
from collections.abc import Sequence

from metaclaw.domain.chat import Part, Text, TextDelta, Tool, ToolCall
from metaclaw.engine import CallParser


def parts_of(text: str, tools: Sequence[Tool]) -> tuple[Part, ...]:
    """An answer's text as words and calls, as it would have been served."""
    if not tools:
        return (Text(text),)
    parser = CallParser(frozenset(tool.name for tool in tools))
    said = [*parser.push(text), *parser.flush()]
    return tuple(
        (
            Text(one.text)
            if isinstance(one, TextDelta)
            else ToolCall(one.id or "", one.name or "", one.arguments)
        )
        for one in said
    )


def written(parts: Sequence[Part]) -> str:
    """Words and calls as the policy writes them."""
    return "".join(
        part.text if isinstance(part, Text) else written_call(part.name, _document(part.arguments))
        for part in parts
        if isinstance(part, Text | ToolCall)
    )


def written_call(name: str, arguments: object) -> str:
    """A call between its tags."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def words_of(parts: Sequence[Part]) -> str:
    """The words of an answer."""
    return "".join(part.text for part in parts if isinstance(part, Text)).strip()


def calls_of(parts: Sequence[Part]) -> list[tuple[str, str]]:
    """The calls of an answer, without what differs although it means the same."""
    return sorted(
        (part.name, json.dumps(_document(part.arguments), sort_keys=True))
        for part in parts
        if isinstance(part, ToolCall)
    )


def _document(arguments: str) -> object:
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return " ".join(arguments.split())

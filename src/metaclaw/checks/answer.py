"""The input of checks: an answer's text, the JSON in it, its tool calls, and what the person agreed
to delete.
"""

import json
import re
from collections.abc import Iterator, Sequence

from metaclaw.checks.calls import SeenCall, seen_calls, strings_in
from metaclaw.checks.commands import SeenText, code_texts, commands_of, reads_whole
from metaclaw.domain.chat import Json, Message, Part, Role, Text, ToolCall, ToolResult, text_of
from metaclaw.domain.check import Conversation, PatternCheck, Place, ToolClass, Where
from metaclaw.text import json_documents

MAX_ANSWER_CHARS = 200_000
MAX_CALL_CHARS = 4_000_000
_FENCED = re.compile(r"^[ \t]*(```|~~~)[^\n`]*\n(.*?)^[ \t]*\1[ \t]*$", re.DOTALL | re.MULTILINE)
_MOST_OPENINGS = 200
_MOST_DOCUMENTS = 20
_MOST_CONVERSATION_CHARS = 200_000
_MOST_ACTIONS = 400


def size_of(answer: Sequence[Part]) -> int:
    """The number of characters of an answer that a check may have to read."""
    return sum(
        len(part.text) if isinstance(part, Text) else len(part.arguments)
        for part in answer
        if isinstance(part, Text | ToolCall)
    )


def program_input(
    answer: Sequence[Part], conversation: Conversation, *, has_consent: bool = True
) -> dict[str, Json]:
    """The input of a program: the answer and the conversation before it, of a very long
    conversation only the end. With `has_consent`, also what the person agreed to delete, which
    takes a while to read."""
    messages: list[Json] = []
    room = _MOST_CONVERSATION_CHARS
    for entry in reversed(
        [entry for message in conversation.messages for entry in _entries(message)]
    ):
        room -= len(json.dumps(entry, ensure_ascii=False))
        if room < 0:
            break
        messages.insert(0, entry)
    tools: list[Json] = [
        {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
        for tool in conversation.tools
    ]
    earlier = [
        action
        for message in conversation.messages
        for action in _actions(message.parts, is_new=False)
    ]
    return {
        "messages": messages,
        "task": conversation.task,
        **({"consent": _consent(conversation)} if has_consent else {}),
        "text": text_of(answer),
        "calls": _calls_json(answer),
        "tools": tools,
        "actions": [*earlier[-_MOST_ACTIONS:], *_actions(answer, is_new=True)],
    }


def _consent(conversation: Conversation) -> dict[str, Json]:
    """What the person agreed to delete, and the clauses that forbid something."""
    from metaclaw.checks.consent import deletion_consent  # its patterns take long to compile

    found = deletion_consent(
        conversation.messages or (Message(Role.USER, (Text(conversation.task),)),)
    )
    return {"to_delete": list[Json](found.to_delete), "refused": list[Json](found.refused)}


def _entries(message: Message) -> Iterator[dict[str, Json]]:
    """A message as a program reads it; each tool result becomes a separate message."""
    results = [part for part in message.parts if isinstance(part, ToolResult)]
    for result in results:
        yield {
            "role": Role.TOOL.value,
            "content": text_of(result.parts),
            "is_error": result.is_error,
        }
    words, calls = text_of(message.parts), _calls_json(message.parts)
    if words or calls or not results:
        yield {"role": str(message.role), "content": words, **({"calls": calls} if calls else {})}


def _calls_json(answer: Sequence[Part]) -> list[Json]:
    return [{"name": call.name, "arguments": call.arguments} for call in _seen(answer, ())]


def _actions(answer: Sequence[Part], *, is_new: bool) -> Iterator[Json]:
    for part in answer:
        # Files that a script writes come before its commands.
        for call in (
            sorted(seen_calls(part), key=lambda call: bool(call.name))
            if isinstance(part, ToolCall)
            else ()
        ):
            for text in call.texts:
                action: dict[str, Json] = {
                    "class": None if call.kind is None else call.kind.value,
                    "text": text,
                    "is_new": is_new,
                }
                if call.takes_script:
                    commands = commands_of(text)
                    action |= {
                        "commands": list[Json](commands.lines),
                        **({"unread": commands.unread} if commands.unread else {}),
                    }
                yield action


def unread_part(answer: Sequence[Part], where: Where) -> str:
    """Why a command that a check must read could not be read, or an empty string. A check on files
    reads commands, too.
    """
    if where.place is Place.ANSWER:
        return ""
    tools = (
        where.tools if ToolClass.EDIT not in where.tools else (*where.tools, ToolClass.SHELL.value)
    )
    calls = [call for call in _seen(answer, tools) if call.takes_script]
    return next(
        (reason for call in calls for text in call.texts if (reason := commands_of(text).unread)),
        "",
    )


def texts_at(answer: Sequence[Part], where: Where) -> list[str]:
    """All texts that a pattern may search: the answer's text, or the contents of its calls."""
    if where.place is Place.ANSWER:
        text = text_of(answer)
        return [text] if text.strip() else []
    calls = _seen(answer, where.tools)
    return [seen.text for call in calls for seen in _texts_of(call, where.tools, is_whole=True)]


def pattern_texts(answer: Sequence[Part], check: PatternCheck) -> list[SeenText]:
    """The texts that a pattern searches. Of a shell script these are its commands; the whole script
    only if the pattern must be found or contains an operator or a quotation mark."""
    if check.where.place is Place.ANSWER:
        return [SeenText(text) for text in texts_at(answer, check.where)]
    is_whole = check.must_match or reads_whole(check.pattern)
    tools = check.where.tools
    return [
        text
        for call in _seen(answer, tools)
        for text in _texts_of(call, tools, is_whole=is_whole)
        if not (text.is_bare and check.where.is_as_written)
    ]


def documents_at(answer: Sequence[Part], where: Where) -> list[Json] | None:
    """The JSON that a schema validates; None if the answer has no such part. A call with broken
    JSON gives a string.
    """
    if where.place is Place.ANSWER:
        text = text_of(answer)
        return find_json(text) if text.strip() else None
    return [call.arguments for call in _seen(answer, where.tools)] or None


def find_json(text: str) -> list[Json]:
    """The JSON documents in a text: the whole text, code blocks, or objects and arrays between
    words.
    """
    whole = _whole(text)
    if whole is not None:
        return [whole]
    fenced: list[Json] = [
        document for match in _FENCED.finditer(text) if (document := _whole(match[2])) is not None
    ]
    return fenced[:_MOST_DOCUMENTS] or list(json_documents(text, _MOST_OPENINGS))[:_MOST_DOCUMENTS]


def _whole(text: str) -> dict[str, Json] | list[Json] | None:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict | list) else None


def _seen(answer: Sequence[Part], tools: Sequence[str]) -> list[SeenCall]:
    """The calls of these tools or classes, also those wrapped in other calls; if `tools` is empty,
    the outer calls.
    """
    calls = [seen_calls(part) for part in answer if isinstance(part, ToolCall)]
    return (
        [call for wrapped in calls for call in wrapped if call.is_of(tools)]
        if tools
        else [wrapped[0] for wrapped in calls]
    )


def _texts_of(call: SeenCall, tools: Sequence[str], *, is_whole: bool) -> list[SeenText]:
    """The texts of a call that a pattern searches: the commands or files if the check names the
    class, else the arguments.
    """
    is_by_class = call.is_of_class(tools)
    if not call.takes_script:
        texts = call.texts if is_by_class else [_as_it_reads(call)]
        return [
            seen
            for text in texts
            for seen in (code_texts(text) if call.kind is ToolClass.SHELL else (SeenText(text),))
        ]
    seen = [] if is_by_class else [SeenText(call.written if is_whole else call.other_arguments())]
    for text in call.texts:
        commands = commands_of(text)
        seen += [*(commands.wholes if is_whole else ()), *commands.texts]
    return seen


def _as_it_reads(call: SeenCall) -> str:
    """The arguments as written, and the texts in them without JSON's escapes."""
    return "\n".join((call.written, *strings_in(call.arguments), *call.texts))

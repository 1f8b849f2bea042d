"""An answer as checks see it: its words, the JSON in them, and what it gave to tools."""

import json
import re
from collections.abc import Iterator, Sequence

from metaclaw.domain.chat import Json, Message, Part, Role, Text, ToolCall, ToolResult
from metaclaw.domain.check import Conversation, PatternCheck, Place, ToolClass, Where
from metaclaw.skills.checks.calls import SeenCall, seen_calls, strings_in
from metaclaw.skills.checks.commands import SeenText, code_texts, commands_of, names_operator
from metaclaw.skills.checks.consent import deletion_consent
from metaclaw.text import json_documents

MAX_ANSWER_CHARS = 200_000
MAX_CALL_CHARS = 4_000_000
_FENCED = re.compile(r"^[ \t]*(```|~~~)[^\n`]*\n(.*?)^[ \t]*\1[ \t]*$", re.DOTALL | re.MULTILINE)
_MOST_OPENINGS = 200
_MOST_DOCUMENTS = 20
_MOST_CONVERSATION_CHARS = 200_000
_MOST_ACTIONS = 400


def answer_text(answer: Sequence[Part]) -> str:
    """The words of an answer."""
    return "\n".join(part.text for part in answer if isinstance(part, Text))


def size_of(answer: Sequence[Part]) -> int:
    """How many characters a check has to look at, at most."""
    return sum(
        len(part.text) if isinstance(part, Text) else len(part.arguments) for part in answer if isinstance(part, Text | ToolCall)
    )


def program_input(answer: Sequence[Part], conversation: Conversation) -> dict[str, Json]:
    """What a program reads: the answer, and what came before it. Of a very long conversation the end."""
    messages: list[Json] = []
    room = _MOST_CONVERSATION_CHARS
    for entry in reversed([entry for message in conversation.messages for entry in _entries(message)]):
        room -= len(json.dumps(entry, ensure_ascii=False))
        if room < 0:
            break
        messages.insert(0, entry)
    tools: list[Json] = [
        {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)} for tool in conversation.tools
    ]
    earlier = [action for message in conversation.messages for action in _actions(message.parts, is_new=False)]
    return {
        "messages": messages,
        "task": conversation.task,
        "consent": _consent(conversation),
        "text": answer_text(answer),
        "calls": _calls_json(answer),
        "tools": tools,
        "actions": [*earlier[-_MOST_ACTIONS:], *_actions(answer, is_new=True)],
    }


def _consent(conversation: Conversation) -> dict[str, Json]:
    """What the person's last words say about deleting, as an answer to what the agent said before them."""
    places = [at for at, message in enumerate(conversation.messages) if message.role is Role.USER and answer_text(message.parts)]
    before = conversation.messages[: places[-1]] if places else ()
    asked = next((text for one in reversed(before) if one.role is Role.ASSISTANT and (text := answer_text(one.parts))), None)
    found = deletion_consent(conversation.task, asked)
    return {"to_delete": found.is_given, "refused": list[Json](found.refused)}


def _entries(message: Message) -> Iterator[dict[str, Json]]:
    """A message as a program reads it; each tool result is a message of its own."""
    results = [part for part in message.parts if isinstance(part, ToolResult)]
    for result in results:
        words = "\n".join(part.text for part in result.parts if isinstance(part, Text))
        yield {"role": Role.TOOL.value, "content": words, "is_error": result.is_error}
    words, calls = answer_text(message.parts), _calls_json(message.parts)
    if words or calls or not results:
        yield {"role": str(message.role), "content": words, **({"calls": calls} if calls else {})}


def _calls_json(answer: Sequence[Part]) -> list[Json]:
    return [{"name": call.name, "arguments": call.arguments} for call in _seen(answer, ())]


def _actions(answer: Sequence[Part], *, is_new: bool) -> Iterator[Json]:
    for part in answer:
        # Files that a script writes come first, so that the commands behind them are later actions.
        for call in sorted(seen_calls(part), key=lambda one: bool(one.name)) if isinstance(part, ToolCall) else ():
            for text in call.texts:
                action: dict[str, Json] = {"class": None if call.kind is None else call.kind.value, "text": text, "is_new": is_new}
                yield action | (_read_commands(text) if call.takes_script else {})


def _read_commands(script: str) -> dict[str, Json]:
    commands = commands_of(script)
    return {"commands": list[Json](commands.lines), **({"unread": commands.unread} if commands.unread else {})}


def unread_part(answer: Sequence[Part], where: Where) -> str:
    """Which part of the commands that a check looks at could not be read; empty where all of it was. A command that cannot be read
    may also change files."""
    if where.place is Place.ANSWER:
        return ""
    tools = where.tools if ToolClass.EDIT not in where.tools else (*where.tools, ToolClass.SHELL.value)
    calls = [call for call in _seen(answer, tools) if call.takes_script]
    return next((reason for call in calls for text in call.texts if (reason := commands_of(text).unread)), "")


def texts_at(answer: Sequence[Part], where: Where) -> list[str]:
    """All texts that a pattern may look at: the words of the answer, or what stands in its calls."""
    if where.place is Place.ANSWER:
        text = answer_text(answer)
        return [text] if text.strip() else []
    return [one.text for call in _seen(answer, where.tools) for one in _texts_of(call, where.tools, is_whole=True, is_written=True)]


def pattern_texts(answer: Sequence[Part], check: PatternCheck) -> list[SeenText]:
    """The texts that a pattern looks at. Of a shell's script these are the commands; all of it only for a pattern that must be
    found or names an operator, and as it is written only for one that must be found or names a quotation mark."""
    if check.where.place is Place.ANSWER:
        return [SeenText(text) for text in texts_at(answer, check.where)]
    is_whole = check.must_match or names_operator(check.pattern)
    is_written = check.must_match or '"' in check.pattern or "'" in check.pattern
    tools = check.where.tools
    return [one for call in _seen(answer, tools) for one in _texts_of(call, tools, is_whole=is_whole, is_written=is_written)]


def documents_at(answer: Sequence[Part], where: Where) -> list[Json] | None:
    """The JSON a schema looks at; None where the answer has no such part at all, and a string stands for a call's broken JSON."""
    if where.place is Place.ANSWER:
        text = answer_text(answer)
        return find_json(text) if text.strip() else None
    return [call.arguments for call in _seen(answer, where.tools)] or None


def find_json(text: str) -> list[Json]:
    """The JSON documents in a text: all of it, what stands in code fences, or objects and arrays between the words."""
    whole = _whole(text)
    if whole is not None:
        return [whole]
    fenced: list[Json] = [document for match in _FENCED.finditer(text) if (document := _whole(match[2])) is not None]
    return fenced[:_MOST_DOCUMENTS] or list(json_documents(text, _MOST_OPENINGS))[:_MOST_DOCUMENTS]


def _whole(text: str) -> dict[str, Json] | list[Json] | None:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict | list) else None


def _seen(answer: Sequence[Part], tools: Sequence[str]) -> list[SeenCall]:
    """The calls of these tools or classes, also those wrapped in other calls; without any, all that the answer makes itself."""
    calls = [seen_calls(part) for part in answer if isinstance(part, ToolCall)]
    return [one for seen in calls for one in seen if one.is_of(tools)] if tools else [seen[0] for seen in calls]


def _texts_of(call: SeenCall, tools: Sequence[str], *, is_whole: bool, is_written: bool) -> list[SeenText]:
    """What a pattern looks at in a call: of a class, the commands or the files; else the arguments as written and as they read."""
    is_by_class = call.is_of_class(tools)
    if not call.takes_script:
        if call.kind is ToolClass.SHELL:
            return [one for text in (call.texts if is_by_class else [_as_it_reads(call)]) for one in code_texts(text)]
        return [SeenText(text) for text in (call.texts if is_by_class else [_as_it_reads(call)])]
    is_json = '"' in call.written and is_written
    found = [] if is_by_class else [SeenText(call.written if is_json else call.other_arguments())]
    for text in call.texts:
        commands = commands_of(text)
        found += [*([commands.written] if is_written else []), *(commands.wholes if is_whole else []), *commands.texts]
    return found


def _as_it_reads(call: SeenCall) -> str:
    return "\n".join((call.written, *strings_in(call.arguments), *call.texts))

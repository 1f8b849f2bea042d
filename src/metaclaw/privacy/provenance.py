"""Whose words are whose: a step cut into spans by who said them, so that only people's words and outcomes can command."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from metaclaw.domain.chat import Json, Message, Opaque, Part, Reasoning, Role, Text, ToolCall, ToolResult
from metaclaw.domain.step import Step
from metaclaw.privacy.outcomes import OutcomeRecord, outcome_of
from metaclaw.privacy.reported import end_of_mail, foreign_blocks, foreign_clauses
from metaclaw.privacy.spans import Source, Span

_MAX_STEPS_BACK = 200
_WEB_TOOL = re.compile(
    r"web|browse|browser|fetch|http|url|search|crawl|scrape|page|rss|mail|inbox|slack|discord|telegram|tweet", re.IGNORECASE
)
_URL = re.compile(r"https?://", re.IGNORECASE)
_CLIENT_TAGS = (
    "system-reminder|environment_context|environment_details|user_instructions|permissions instructions|skills_instructions"
    "|relevant-memories"
    "|conversation_context|system_context|command-name|command-message|local-command-caveat|task-notification|project_layout"
    "|git_status"
    "|turn_aborted|subagent_notification"
)
_PASTED_TAGS = (
    "local-command-stdout|local-command-stderr|bash-input|bash-stdout|bash-stderr|ide_opened_file|ide_selection|attached_files"
    "|file_content|file"
    "|files|document|documents|context|output|returncode|observation|tool_result|function_results|search_results|web_page"
    "|webpage|page|email"
    "|html|system|instructions|untrusted[\\w-]*"
)
_CLIENT_BLOCK = re.compile(
    rf"<({_CLIENT_TAGS})\b[^<>]{{0,300}}>.*?(?:</\1\s*>|\Z)|<<<BEGIN_\w+>>>.*?(?:<<<END_\w+>>>|\Z)", re.DOTALL
)
_PASTED_BLOCK = re.compile(rf"<({_PASTED_TAGS})\b[^<>]{{0,300}}>.*?(?:</\1\s*>|\Z)", re.DOTALL | re.IGNORECASE)
# Any other element with a sentence inside: people who speak for themselves use no tags.
_ELEMENT = re.compile(r"<([a-zA-Z][\w-]{0,60})\b[^<>]{0,300}>[^<>]*?\S\s+\S+\s+\S.{0,20000}?</\1\s*>", re.DOTALL)
_FENCE = re.compile(r"(?:^[ \t]*|[ \t])(`{3,}|~{3,})[^\n`]*\n.*?(?:^[ \t]*\1[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_QUOTED_LINES = re.compile(r"(?:^[ \t]*>[^\n]*(?:\n|\Z))+", re.MULTILINE)
_LONG_QUOTE = re.compile(r"\"\"\".*?(?:\"\"\"|\Z)|“[^”“]{40,}”|\"[^\"\n]{60,}\"", re.DOTALL)
_MAIL = re.compile(
    r"^From:[ \t][^\n]{1,300}\n(?=(?:[^\n]{0,300}\n){0,4}(?:To|Subject|Date|Sent|Reply-To):).*", re.MULTILINE | re.DOTALL
)
_OBSERVATION = re.compile(
    r"\A\s*(?:<returncode>|<output>|Observation:|OBSERVATION:|\[tool|Tool (?:result|output)|Command output|stdout:|Exit code)",
    re.IGNORECASE,
)


def spans_of(step: Step) -> tuple[Span, ...]:
    """Everything that was said around a step, oldest first, each piece with its source."""
    return tuple(span for span in _of_step(step) if span.text.strip())


def user_spans(text: str) -> Iterator[Span]:
    """A person's message: their own words, and apart from them what they pasted or a client glued to them."""
    at = 0
    for start, end, source in sorted(_not_their_own(text)):
        if start > at:
            yield Span(Source.USER, text[at:start])
        if end > at:
            yield Span(source, text[max(at, start) : end])
            at = end
    yield Span(Source.USER, text[at:])


@dataclass(frozen=True, slots=True)
class PersonsMessage:
    """A person's message, taken apart: `shown` is without pasted text and what a client glued to it; `own` is also without what
    the person quotes or reports; `foreign` is all of that."""

    shown: str
    own: str
    foreign: tuple[str, ...]


def take_apart(text: str) -> PersonsMessage:
    """Tell a person's own words from what is not theirs; where something stood inside a line, an ellipsis stands."""
    blocks = [(start, end) for start, end, _ in _blocks(text)]
    foreign = [*blocks, *foreign_clauses(text)]
    return PersonsMessage(_without(text, blocks), _without(text, foreign), tuple(_joined(text, foreign)))


def own_words(text: str) -> str:
    """A person's message without what is not theirs."""
    return take_apart(text).own


def _joined(text: str, stretches: Iterable[tuple[int, int]]) -> Iterator[str]:
    """The texts of these stretches; those with nothing between them are one."""
    begin = end = 0
    for start, behind in sorted(stretches):
        if text[end:start].strip():
            yield text[begin:end]
            begin = start
        end = max(end, behind)
    if text[begin:end].strip():
        yield text[begin:end]


def _without(text: str, stretches: Iterable[tuple[int, int]]) -> str:
    kept: list[str] = []
    at = 0
    for start, end in sorted(stretches):
        if end > at:
            kept += (text[at : max(at, start)], "\n" if "\n" in text[max(at, start) : end] else "…")
            at = end
    return "".join((*kept, text[at:]))


def _not_their_own(text: str) -> Iterator[tuple[int, int, Source]]:
    yield from _blocks(text)
    yield from ((start, end, Source.WEB) for start, end in foreign_clauses(text))


def _blocks(text: str) -> Iterator[tuple[int, int, Source]]:
    """What stands apart from the person's own sentences by its form."""
    for found in _CLIENT_BLOCK.finditer(text):
        yield found.start(), found.end(), Source.SYSTEM
    for pattern in (_PASTED_BLOCK, _ELEMENT, _FENCE, _QUOTED_LINES, _LONG_QUOTE):
        for found in pattern.finditer(text):
            yield found.start(), found.end(), Source.WEB
    if mail := _MAIL.search(text):
        yield mail.start(), end_of_mail(text, mail.start()), Source.WEB
    yield from ((start, end, Source.WEB) for start, end in foreign_blocks(text))


def _of_step(step: Step) -> Iterator[Span]:
    for tool in step.tools:
        # A client's own tools are its words; those of a server that it has been connected to are anybody's.
        yield Span(
            Source.TOOL if "mcp" in tool.name.lower() else Source.SYSTEM,
            "\n".join((tool.description or "", *_strings(dict(tool.parameters)))),
        )
    own = [words for one in _chain(step) for words in (one.task, one.said_after) if words]
    for words in dict.fromkeys(own):
        yield from user_spans(words)
    calls = {part.id: part for message in step.history for part in message.parts if isinstance(part, ToolCall)}
    calls |= {call.id: call for call in step.calls}
    yield from _of_messages(step.history, calls)
    yield from _of_parts(step.answer, calls, Role.ASSISTANT)
    yield from _of_messages(step.after, calls)


def _chain(step: Step) -> Iterator[Step]:
    one: Step | None = step
    for _ in range(_MAX_STEPS_BACK):
        if one is None:
            return
        yield one
        one = one.previous


def _of_messages(messages: Iterable[Message], calls: dict[str, ToolCall]) -> Iterator[Span]:
    for message in messages:
        yield from _of_parts(message.parts, calls, message.role)


def _of_parts(parts: Iterable[Part], calls: dict[str, ToolCall], role: Role | str) -> Iterator[Span]:
    for part in parts:
        match part:
            case Text():
                yield from _of_text(part.text, role)
            case Reasoning():
                yield Span(Source.ASSISTANT, part.text)
            case ToolCall():
                yield Span(Source.ASSISTANT, f"{part.name} {part.arguments}")
            case ToolResult():
                yield from _of_result(part, calls.get(part.call_id))
            case Opaque():
                yield Span(Source.TOOL, "\n".join(_strings(part.value)))


def _of_text(text: str, role: Role | str) -> Iterator[Span]:
    if role == Role.USER and not _OBSERVATION.match(text):
        yield from user_spans(text)
    elif role == Role.ASSISTANT:
        yield Span(Source.ASSISTANT, text)
    else:
        # A role that we do not know is nobody with authority.
        yield Span(Source.SYSTEM if role == Role.SYSTEM else Source.TOOL, text)


def _of_result(result: ToolResult, call: ToolCall | None) -> Iterator[Span]:
    record = outcome_of(result, call)
    if not record.ok:
        yield Span(Source.OUTCOME, facts(record))
    is_web = call is not None and (_WEB_TOOL.search(call.name) or _URL.search(call.arguments)) is not None
    for part in result.parts:
        if isinstance(part, Text):
            yield Span(Source.WEB if is_web else Source.TOOL, part.text)
        elif isinstance(part, Opaque):
            yield Span(Source.WEB if is_web else Source.TOOL, "\n".join(_strings(part.value)))


def facts(record: OutcomeRecord) -> str:
    """An outcome in words: which tool, which of its arguments, and how it failed; nothing that the tool said at length."""
    exit_code = "" if record.exit_code is None else f"exit {record.exit_code}"
    return " ".join((record.tool, *record.argument_keys, record.error_class or "", exit_code, record.program or "", *record.named))


def _strings(value: Json) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for inner in value:
                yield from _strings(inner)
        case dict():
            for inner in value.values():
                yield from _strings(inner)

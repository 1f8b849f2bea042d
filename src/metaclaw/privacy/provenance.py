"""Provenance: the passages of a step with their sources. Only a user's own words and tool outcomes
have authority.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from metaclaw.domain.chat import (
    Json,
    Message,
    Opaque,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    text_of,
)
from metaclaw.domain.turn import Step
from metaclaw.privacy.capabilities import EXCEPTS, FORBIDS, Capabilities, capabilities
from metaclaw.text import (
    CLIENT_OUTPUT_TAGS,
    CLIENT_TAGS,
    cut_middle,
    fair_shares,
    keep_ends,
    split_sentences,
    visible_text,
)


class PassageSource(StrEnum):
    """Where a passage comes from."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    WEB = "web"
    OUTCOME = "outcome"

    @property
    def commands(self) -> bool:
        """Whether instructions from this source count."""
        return self in (PassageSource.USER, PassageSource.OUTCOME)

    @property
    def is_outside(self) -> bool:
        """Whether third parties may have written it."""
        return self in (PassageSource.TOOL, PassageSource.WEB)


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text with its source."""

    source: PassageSource
    text: str


_EXIT = re.compile(
    r"(?:exit(?:ed)?(?: with)?(?: status| code)?|returncode|return code|status)[\"'>]?[ \t]*[:=>]?["
    r" \t]*(-?\d{1,5})\b"
    r"|\"exit_?code\":[ ]?(-?\d{1,5})",
    re.IGNORECASE,
)
_ERROR_CLASS = re.compile(
    r"\b([A-Z]\w{1,40}(?:Error|Exception|Failure|Warning|Timeout|NotFound))\b|\b(E[A-Z]{4,14})\b|\b(TS\d{4}|E\d{3,4}"
    r"|error\[E\d{4}\]|SQLSTATE\[?\w{5}\]?|HTTP (?:4|5)\d\d|(?:4|5)\d\d (?:[A-Z][a-z]+ ?){1,3})"
)
_ERROR_LINE = re.compile(
    r"^.{0,300}?(?:\berror\b|exception\b|\bfailed\b|\bfailure\b|\bfatal\b|traceback|not found|no"
    r" such|denied|cannot|can't"
    r"|could not|unable|invalid|unknown|unexpected"
    r"|missing|required|undefined|not permitted|refused|timed?"
    r" out|conflict|expected|mismatch|unrecognized|unsupported"
    r"|not (?:a|allowed|supported|valid|defined|installed)).{0,300}$",
    re.IGNORECASE | re.MULTILINE,
)
_NAMED = re.compile(
    r"[`'\"‘“]([^`'\"‘’“”\n]{1,60})[`'\"’”]|(?:module|command|option|flag|file|script|package|argument|property|column|field"
    r"|key|target|branch|test)s?:? ([\w./@-]{2,60})"
)
_MAX_LOOK = 200_000
_MAX_NAMED = 12
_LEAST_BLOCK_CHARS = 120
_LINE_CHARS = 300
_BLOCK_ENDS = (80, 40)


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The facts of one tool result. `named` are the names in its error message."""

    tool: str
    argument_keys: tuple[str, ...]
    ok: bool
    error_class: str | None
    exit_code: int | None
    program: str | None
    named: tuple[str, ...]
    text: str


def outcome_of(result: ToolResult, call: ToolCall | None) -> ToolOutcome:
    """The facts of one tool result."""
    text = text_of(result.parts)
    look = text[:_MAX_LOOK]
    code = exit_code(look)
    ok = not result.is_error and not code
    error = None if ok else _ERROR_CLASS.search(look)
    arguments = {} if call is None else call.fields
    return ToolOutcome(
        call.name if call is not None else "unknown tool",
        tuple(arguments),
        ok,
        next((group for group in error.groups() if group), None) if error else None,
        code,
        _program(arguments),
        () if ok else _names(look),
        text,
    )


def exit_code(text: str) -> int | None:
    """The exit code in the text, or None."""
    match = _EXIT.search(text[:300]) or _EXIT.search(text[-300:])
    return int(match[1] or match[2]) if match else None


def error_lines(text: str) -> list[str]:
    """The lines that report an error."""
    return [match[0].strip() for match in _ERROR_LINE.finditer(text[:_MAX_LOOK])]


def _names(text: str) -> tuple[str, ...]:
    """Quoted names, and names after a noun, in error lines: a missing module, an unknown option."""
    names: dict[str, None] = {}
    for line in error_lines(text)[:20]:
        for match in _NAMED.finditer(line):
            name = (match[1] or match[2]).strip()
            if name.count(" ") <= 2 and not re.search(r"https?:|[|;&<>$]", name):
                names[name] = None
    return tuple(names)[:_MAX_NAMED]


def command_in(arguments: Mapping[str, Json]) -> str | None:
    """The command among the arguments of a call, or None."""
    for key in ("command", "cmd", "script"):
        if key in arguments:
            said = arguments[key]
            return " ".join(map(str, said)) if isinstance(said, list) else str(said)
    return None


def _program(arguments: Mapping[str, Json]) -> str | None:
    """The first words of a shell command."""
    words = (command_in(arguments) or "").split()
    return " ".join(word for word in words[:3] if re.fullmatch(r"[\w./:@-]{1,40}", word)) or None


_MAX_STEPS_BACK = 200
_WEB_TOOL = re.compile(
    r"web|browse|browser|fetch|http|url|search|crawl|scrape|page|rss|mail|inbox|slack|discord|telegram|tweet",
    re.IGNORECASE,
)
_URL = re.compile(r"https?://", re.IGNORECASE)
_PASTED_TAGS = (
    f"{CLIENT_OUTPUT_TAGS}|bash-input|file_content|file|files|document|documents|context|output|returncode|observation|tool_result"
    "|function_results|search_results|web_page|webpage|page|email|html|untrusted[\\w-]*"
)
_CLIENT_BLOCK = re.compile(
    rf"<({CLIENT_TAGS})\b[^<>]{{0,300}}>.*?(?:</\1\s*>|\Z)|<<<BEGIN_\w+>>>.*?(?:<<<END_\w+>>>|\Z)",
    re.DOTALL,
)
_PASTED_BLOCK = re.compile(
    rf"<({_PASTED_TAGS})\b[^<>]{{0,300}}>.*?(?:</\1\s*>|\Z)", re.DOTALL | re.IGNORECASE
)
_FENCE = re.compile(
    r"(?:^[ \t]*|[ \t])(`{3,}|~{3,})[^\n`]*\n.*?(?:^[ \t]*\1[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
_QUOTED_LINES = re.compile(r"(?:^[ \t]*>[^\n]*(?:\n|\Z))+", re.MULTILINE)
# Lines that programs write: with a time, of a difference, of a traceback. One marks a block.
_STRONG_LINE = re.compile(
    r"[ \t]*(?:\[?\d{4}-\d\d-\d\d[T, ]+\d\d:\d\d|\[?\d\d:\d\d:\d\d\b|diff --git |@@ -\d"
    r"|Traceback \(most recent call last\)|File \"[^\"\n]+\", line \d|at [\w.$<>]+\()"
)
# Lines that people may write as well. Two of them mark a block.
_WEAK_LINE = re.compile(
    r"[ \t]*(?:\[?(?:ERROR|WARN(?:ING)?|INFO|DEBUG|TRACE|FATAL)\b|npm (?:ERR!|WARN|notice)|[$>] \S"
    r"|>>> |E {3}|Caused by:|(?:FAILED|PASSED) \S+::|={5,}|\S+\.\w+:\d+:|\w+(?:Error|Exception)\b"
    r"|index [0-9a-f]{6,}\.\.|(?:---|\+\+\+) \S|(?:stdout|stderr):|exit code \d)"
)
_DIFF_HEAD = re.compile(r"@@ -\d|\+\+\+ \S")
# Mails: a header has a sender and a subject or date, or a name with an address in any language;
# a reply begins with a line such as "On 3 May 2026, Dana <dana@x.org> wrote:".
_HEADER_LINE = re.compile(r"[ \t]*\**[^\W\d_][^\W_]*(?:[ -][^\W_]+){0,2}\**[ \t]?[:：]\**[ \t]*\S")
# The fields as mail programs name them in their languages.
_SENDER = re.compile(r"[ \t]*\**(?:From|Von|De|Da|Van|Från|Fra|Od|От|发件人|差出人)\**[ \t]?[:：]")
_FIELD = re.compile(
    r"[ \t]*\**(?:Date|Sent|Subject|Datum|Gesendet|Betreff|Envoyé|Objet|Fecha|Enviado|Asunto|Data|Inviato|Oggetto"
    r"|Assunto|Verzonden|Onderwerp|Skickat|Ämne|Sendt|Emne|Wysłano|Temat|Отправлено|Дата|Тема|发送时间|日期|主题"
    r"|送信日時|日付|件名)\**[ \t]?[:：]"
)
_NAME_AND_ADDRESS = re.compile(r"<(?:mailto:)?[^\s<>@]{1,64}@[^\s<>@]{1,200}>")
_REPLY_LINE = re.compile(rf"[^\n]*\d[^\n]*{_NAME_AND_ADDRESS.pattern}[^\n]{{0,30}}[:：][ \t]*$")
_FORWARD_LINE = re.compile(r"[ \t]*-{4,}[ \t]*\w[^\n-]{3,40}-{4,}[ \t]*$")
# Who said something in a chat, and when: "bob  10:12 AM", "[10:12] bob".
_CHAT_HEAD = re.compile(
    r"^(?:[^\s:.!?][^\n:.!?]{0,40}[ \t]{1,3}\d{1,2}:\d\d(?::\d\d)?[ \u202f]?(?:[AP]M)?|\[\d{1,2}:\d\d\][ \t]\S[^\n]*)"
    r"[ \t]*$",
    re.MULTILINE,
)
_PARAGRAPH_END = re.compile(r"\n[ \t]*\n\s*")
_SIGNATURE = re.compile(r"(?:[^\n]{0,39}[^\n.!?:：。！？](?:\n|\Z)){2,4}")
_OBSERVATION = re.compile(
    r"\A\s*(?:<returncode>|<output>|Observation:|OBSERVATION:|\[tool|Tool (?:result|output)|Command"
    r" output|stdout:|Exit code)",
    re.IGNORECASE,
)


def passages_of(step: Step) -> tuple[Passage, ...]:
    """All passages of a step, oldest first."""
    return tuple(span for span in _of_step(step) if span.text.strip())


def passages_of_message(text: str) -> Iterator[Passage]:
    """The passages of a user's message: their own words, and what they pasted or the client
    added.
    """
    for piece, source in _split(text):
        yield Passage(source, piece)


def own_words(text: str) -> str:
    """The message without the blocks that are marked. One removed from inside a line leaves an
    ellipsis.
    """
    kept: list[str] = []
    for piece, source in _split(text):
        instead = "\n" if "\n" in piece else "…"
        kept.append(piece if source is PassageSource.USER else instead)
    return "".join(kept)


def marked_message(text: str, most: int) -> tuple[str, list[str]]:
    """The message, and the blocks in it that are not the person's words, each on one line with its
    beginning and end. Blocks are cut in their middle so that the message has at most `most`
    characters, if the person's own words leave room.
    """
    pieces = list(_split(text))
    blocks = [piece for piece, source in pieces if source is not PassageSource.USER]
    room = max(most - len(text) + sum(map(len, blocks)), len(blocks) * _LEAST_BLOCK_CHARS)
    shares = iter(fair_shares([len(block) for block in blocks], room))
    shown = "".join(
        piece if source is PassageSource.USER else cut_middle(piece, next(shares))
        for piece, source in pieces
    )
    lines = (" ".join(block.split()) for block in blocks)
    return shown, [keep_ends(line, *_BLOCK_ENDS, " … ") for line in lines]


def _split(text: str) -> Iterator[tuple[str, PassageSource]]:
    """The message in pieces, each with its source. None is empty."""
    at = 0
    for start, end, source in sorted(_blocks(text)):
        if start > at:
            yield text[at:start], PassageSource.USER
        if end > at:
            yield text[max(at, start) : end], source
            at = end
    if at < len(text):
        yield text[at:], PassageSource.USER


def _blocks(text: str) -> Iterator[tuple[int, int, PassageSource]]:
    """Blocks that are not the user's own sentences, recognised by their form alone. They may
    overlap.
    """
    if _OBSERVATION.match(text):
        yield 0, len(text), PassageSource.TOOL
    for match in _CLIENT_BLOCK.finditer(text):
        yield match.start(), match.end(), PassageSource.SYSTEM
    for pattern in (_PASTED_BLOCK, _FENCE, _QUOTED_LINES):
        for match in pattern.finditer(text):
            yield match.start(), match.end(), PassageSource.WEB
    for found in (_machine_output(text), _mails(text), _chats(text)):
        yield from ((start, end, PassageSource.WEB) for start, end in found)


def _mails(text: str) -> Iterator[tuple[int, int]]:
    """Mails and quoted replies, up to a signature. Without one, the last of several paragraphs is
    left out: it may be the person's own."""
    end, at = 0, 0
    header: list[str] = []
    for line in (*text.splitlines(keepends=True), "\n"):
        begins = len(line) <= _LINE_CHARS and _REPLY_LINE.match(line)
        if (_HEADER_LINE.match(line) or _FORWARD_LINE.match(line)) and not begins:
            header.append(line)
        else:
            start = at - sum(map(len, header)) if _is_header(header) else at
            if start >= end and (begins or start < at):
                end = _end_of_mail(text, at + len(line) if begins else at)
                yield start, end
            header = []
        at += len(line)


def _is_header(lines: Sequence[str]) -> bool:
    if any(map(_FORWARD_LINE.match, lines)):
        return True
    if any(map(_SENDER.match, lines)) and any(map(_FIELD.match, lines)):
        return True
    return len(lines) > 1 and any(map(_NAME_AND_ADDRESS.search, lines))


def _end_of_mail(text: str, begin: int) -> int:
    """The end of the mail whose body begins here."""
    ends = [match.end() for match in _PARAGRAPH_END.finditer(text, begin) if match.start() > begin]
    starts = [begin, *(end for end in ends if end < len(text))]
    signed = [
        end for start, end in pairwise(starts) if _SIGNATURE.fullmatch(text[start:end].strip("\n"))
    ]
    return (signed or starts)[-1] if len(starts) > 1 else len(text)


def _chats(text: str) -> Iterator[tuple[int, int]]:
    """A copied chat: from its first message to the end of the paragraph of its last."""
    heads = list(_CHAT_HEAD.finditer(text))
    if len(heads) > 1:
        last = _PARAGRAPH_END.search(text, heads[-1].end())
        yield heads[0].start(), len(text) if last is None else last.start()


def _machine_output(text: str) -> Iterator[tuple[int, int]]:
    """Runs of lines that programs write, with the indented lines between them. Any other line ends
    a run: it may be the person's own."""
    start, end, weight, at, is_diff = -1, 0, 0, 0, False
    for line in (*text.splitlines(keepends=True), "\n"):
        if not line.strip():
            if weight > 1:
                yield start, end
            start, weight, is_diff = -1, 0, False
        elif _STRONG_LINE.match(line) or _WEAK_LINE.match(line):
            start = at if start < 0 else start
            end, weight = at + len(line), weight + (2 if _STRONG_LINE.match(line) else 1)
            is_diff = is_diff or _DIFF_HEAD.match(line) is not None
        elif start >= 0 and line[0] in (" \t+-" if is_diff else " \t"):
            end = at + len(line)
        elif weight > 1:
            yield start, end
            start, weight, is_diff = -1, 0, False
        at += len(line)


def _of_step(step: Step) -> Iterator[Passage]:
    for tool in step.tools:
        # Tools of the client itself are trusted text; those of a connected server are not.
        yield Passage(
            PassageSource.TOOL if "mcp" in tool.name.lower() else PassageSource.SYSTEM,
            "\n".join((tool.description or "", *_strings(dict(tool.parameters)))),
        )
    own = [
        words for earlier in _chain(step) for words in (earlier.task, earlier.said_after) if words
    ]
    for words in dict.fromkeys(own):
        yield from passages_of_message(words)
    calls = {
        part.id: part
        for message in step.history
        for part in message.parts
        if isinstance(part, ToolCall)
    }
    calls |= {call.id: call for call in step.calls}
    yield from _of_messages(step.history, calls)
    yield from _of_parts(step.answer, calls, Role.ASSISTANT)
    yield from _of_messages(step.after, calls)


def _chain(step: Step) -> Iterator[Step]:
    current: Step | None = step
    for _ in range(_MAX_STEPS_BACK):
        if current is None:
            return
        yield current
        current = current.previous


def _of_messages(messages: Iterable[Message], calls: dict[str, ToolCall]) -> Iterator[Passage]:
    for message in messages:
        yield from _of_parts(message.parts, calls, message.role)


def _of_parts(
    parts: Iterable[Part], calls: dict[str, ToolCall], role: Role | str
) -> Iterator[Passage]:
    for part in parts:
        match part:
            case Text():
                yield from _of_text(part.text, role)
            case Reasoning():
                yield Passage(PassageSource.ASSISTANT, part.text)
            case ToolCall():
                yield Passage(PassageSource.ASSISTANT, f"{part.name} {part.arguments}")
            case ToolResult():
                yield from _of_result(part, calls.get(part.call_id))
            case Opaque():
                yield Passage(PassageSource.TOOL, "\n".join(_strings(part.value)))


def _of_text(text: str, role: Role | str) -> Iterator[Passage]:
    if role == Role.USER and not _OBSERVATION.match(text):
        yield from passages_of_message(text)
    elif role == Role.ASSISTANT:
        yield Passage(PassageSource.ASSISTANT, text)
    else:
        # An unknown role has no authority.
        yield Passage(PassageSource.SYSTEM if role == Role.SYSTEM else PassageSource.TOOL, text)


def _of_result(result: ToolResult, call: ToolCall | None) -> Iterator[Passage]:
    record = outcome_of(result, call)
    if not record.ok:
        yield Passage(PassageSource.OUTCOME, facts(record))
    is_web = (
        call is not None
        and (_WEB_TOOL.search(call.name) or _URL.search(call.arguments)) is not None
    )
    for part in result.parts:
        if isinstance(part, Text):
            yield Passage(PassageSource.WEB if is_web else PassageSource.TOOL, part.text)
        elif isinstance(part, Opaque):
            yield Passage(
                PassageSource.WEB if is_web else PassageSource.TOOL, "\n".join(_strings(part.value))
            )


def facts(record: ToolOutcome) -> str:
    """An outcome as text: the tool, the names of its arguments, and how it failed."""
    exit_code = "" if record.exit_code is None else f"exit {record.exit_code}"
    return " ".join(
        (
            record.tool,
            *record.argument_keys,
            record.error_class or "",
            exit_code,
            record.program or "",
            *record.named,
        )
    )


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


_DECIDED_BY_PERSON = frozenset(
    (
        "install from an address",
        "turn protection off",
        "open or send over the network",
        "download",
        "start a container with host access",
    )
)
_ROOT = re.compile(
    r"(?:<cwd>|(?:primary )?working director(?:y|ies)(?: is)?:?|current director(?:y|ies)(?:"
    r" is)?:?|\bcwd\b[\"']?[:=]"
    r"|workspace(?: root| folder| directory)?(?: is)?:|project root:|repo(?:sitory)?"
    r" root:)\s*[\"'`]?((?:/|~/"
    r"|[A-Za-z]:\\)[^\s\"'`<>,;]{1,300})",
    re.IGNORECASE,
)


class Workspace(NamedTuple):
    """The folders a session works in, and the capabilities its user has named."""

    roots: tuple[str, ...] = ()
    granted: Capabilities = Capabilities()


def workspace_of(spans: Iterable[Passage]) -> Workspace:
    """The workspace of a session: folders from its client's prompt, capabilities from the user's
    own words.
    """
    roots: dict[str, None] = {}
    granted = Capabilities()
    for span in spans:
        if span.source is PassageSource.SYSTEM:
            roots |= {match[1].rstrip("/\\"): None for match in _ROOT.finditer(span.text)}
        elif span.source is PassageSource.USER:
            for sentence in split_sentences(visible_text(span.text), with_code=True):
                granted |= _granted(sentence)
    return Workspace(tuple(roots), granted)


def _granted(sentence: str) -> Capabilities:
    """The capabilities that a user's own sentence grants: those it names, unless it is a question.

    A sentence never grants pipes, downloads, unprotected connections and the like, unless it
    forbids them: then a rule may repeat it."""
    if sentence.rstrip().endswith(("?", "？")):
        return Capabilities()
    named = capabilities(sentence)
    if FORBIDS.search(sentence) and not EXCEPTS.search(sentence):
        return named
    return named._replace(pipes=frozenset(), commands=named.commands - _DECIDED_BY_PERSON)

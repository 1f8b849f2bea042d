"""A step as detectors read it: its calls, what their results mean, the user's next words, and what
was done before.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import msgspec

from metaclaw.domain.chat import Message, Part, Role, Text, ToolCall, ToolResult, text_of
from metaclaw.domain.turn import Step
from metaclaw.outcome import phrases
from metaclaw.outcome.phrases import program_words, programs_of
from metaclaw.text import keep_ends

_SEPARATORS = re.compile(r"\|\||&&|[;|\n]")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=\S*$")
_MAX_CHARS = 4_000


class CommandUse(StrEnum):
    """The purpose of a program. `programs.toml` has a table for each."""

    SEARCH = "search"
    COMPARE = "compare"
    ASK = "ask"
    LOOK = "look"
    CHECK = "check"
    TEST = "test"
    NETWORK = "network"
    OTHER = "other"


LOOKING = frozenset((CommandUse.SEARCH, CommandUse.COMPARE, CommandUse.ASK, CommandUse.LOOK))
"""What only shows or compares something."""
_USES = {program: use for use in CommandUse for program in programs_of(f"use_{use}")}
_WRAPPERS = frozenset(programs_of("wrappers"))
_EDITS = re.compile(
    r"\bsed -i|\bpatch\b|\btee\b|(?<![<>&\d])>{1,2}\s*[\w./~-]|\bgit apply\b|\bmv |\bcp |\brm"
    r" |\bperl -\w*i"
)
_LOCAL = re.compile(r"localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\]|(?<!\S):\d{2,5}\b")
_GUARD = re.compile(r"\|\| ?(?:true|:|echo)\b|; ?true\b|\|\| ?:")
_TIME_LIMIT = re.compile(r"(?:^|[;&|]\s*)(?:sudo )?timeout \S")
_UNDOES = re.compile(
    r"\bgit (?:checkout (?:--? |HEAD\b|\.|[\w./-]+\.\w{1,8}\b)|restore (?!--staged)|reset"
    r" --(?:hard|merge)|revert\b|clean -"
    r"|stash(?! (?:pop|apply|list|show))(?=\s*(?:$|push|-|drop)))"
)


def command_uses(command: str) -> tuple[CommandUse, ...]:
    """The purpose of each program of a command line, in order; wrappers such as `sudo` and `cd X
    &&` are skipped.
    """
    found = []
    for words in split_commands(command):
        use = _USES.get(f"{words[0]} {words[1]}") if len(words) > 1 else None
        found.append(use or _USES.get(words[0].rsplit("/", 1)[-1], CommandUse.OTHER))
    return tuple(found)


def split_commands(command: str) -> Iterator[list[str]]:
    """The first words of each program of a command line, without wrappers and `cd`."""
    for piece in _SEPARATORS.split(_HEREDOC.sub(r"\3", command[:_MAX_CHARS])):
        words = piece.split(None, 12)
        while words and (words[0] in _WRAPPERS or _ASSIGNMENT.match(words[0])):
            words = words[1:] if words[0] != "timeout" else words[2:]
        if words and words[0] != "cd":
            yield words


def answers_by_exit(command: str, exit_code: int) -> bool:
    """Whether the exit code is a negative answer: nothing found, files differ, condition false."""
    kinds = command_uses(command)
    if exit_code == 124 and _TIME_LIMIT.search(command[:_MAX_CHARS]):
        return True
    if not kinds or exit_code > 4:
        return False
    if kinds[-1] is CommandUse.LOOK:
        return "2>/dev/null" in command or "2>&1" in command
    asking = {CommandUse.SEARCH, CommandUse.COMPARE, CommandUse.ASK}
    if kinds[-1] in asking:
        return (
            exit_code == 1
            or kinds[-1] is CommandUse.ASK
            or (exit_code == 2 and "-exitcode" in command)
        )
    return exit_code == 1 and "&&" in command and any(kind in asking for kind in kinds)


def discards_changes(command: str) -> bool:
    return _UNDOES.search(command[:_MAX_CHARS]) is not None and "stash pop" not in command


MAX_RESULTS = 12
_HEAD_CHARS, _TAIL_CHARS = 1_500, 1_500
_MAX_JSON_CHARS = 200_000
_SHORT_CHARS = 300
_TASK_CHARS = 80
_LOOK_BACK = 60  # messages


class ToolKind(StrEnum):
    SHELL = "shell"
    EDIT = "edit"
    READ = "read"
    OTHER = "other"


_KINDS = {
    name: kind
    for kind, table in (
        (ToolKind.SHELL, "shells"),
        (ToolKind.EDIT, "editors"),
        (ToolKind.READ, "readers"),
    )
    for name in programs_of(table)
}


def tool_kind(name: str) -> ToolKind:
    return _KINDS.get(name.lower(), ToolKind.OTHER)


def _kind_of(call: ToolCall) -> ToolKind:
    """The kind of a call; code that only patches files is an edit."""
    kind = tool_kind(call.name)
    is_patch = "tools.apply_patch(" in call.arguments[:_MAX_CHARS]
    if kind is ToolKind.SHELL and is_patch and not command_of(call):
        return ToolKind.EDIT
    return kind


class _Arguments(msgspec.Struct):
    input: str | None = None
    command: str | list[str] | None = None
    cmd: str | list[str] | None = None
    script: str | None = None


class _Metadata(msgspec.Struct):
    exit_code: int | None = None


class _Shown(msgspec.Struct):
    """The fields in which clients report the result of a call."""

    exit_code: int | None = None
    returncode: int | None = None
    output: str | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")
    errors: msgspec.Raw = msgspec.Raw(b"null")
    success: bool | None = None
    ok: bool | None = None
    status: str | int | None = None
    metadata: _Metadata | None = None
    exit_code_meaning: str | None = None
    exception_info: str | None = None


_arguments = msgspec.json.Decoder(_Arguments)
_shown = msgspec.json.Decoder(_Shown)
_EMPTY = frozenset((b"null", b'""', b"[]", b"{}", b"false", b"0"))
_FAILED_STATUS = frozenset(("error", "failed", "failure"))

# JavaScript that calls tools, as the models of Codex write it, and the words before what it showed.
_CODE_COMMAND = re.compile(
    r"""\btools\.exec_command\(\s*\{[^{}]{0,200}?\bcmd["']?\s*:\s*(["'`])((?:\\.|(?!\1).)*)\1""",
    re.S,
)
_CODE_HEAD = re.compile(r"Script (completed|failed)\n(?:Wall time [^\n]*\n)?Output:\n\s*")
_ESCAPE = re.compile(r"\\(.)", re.S)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}
_ACCOUNT_CODE = re.compile(r"\nExit Code: (-?\d{1,5})\n")
# What Gemini CLI writes behind the output of a command; it leaves out an exit code of 0.
_GEMINI_HEAD = re.compile(r"(?:<untrusted_context>\n)?Output: ")
_GEMINI_TAIL = re.compile(
    r"(?:\nError: ([^\n]*))?(?:\nExit Code: (-?\d{1,5}))?(\nSignal: [^\n]*)?"
    r"(?:\nBackground PIDs: [^\n]*)?\nProcess Group PGID: \d+(?:\n</untrusted_context>)?\s*\Z"
)
_HEREDOC = re.compile(r"<<-?\s*([\"']?)(\w+)\1([^\n]*)\n.*?(?:\n\s*\2(?=\s*(?:\n|$))|\Z)", re.S)

_EXIT_AT_HEAD = re.compile(
    r"(?:^|\n)(?:Exit code:?|Process exited with code|Command failed with exit"
    r" code|<returncode>|Exit Code:|exit_code[:=]"
    r"|\{\"chunk_id\":[^{}\n]{0,120}\"exit_code\":) ?(-?\d{1,5})\b"  # an object that was cut
)
_EXIT_AT_TAIL = re.compile(
    r"(?:Command exited with code|Command finished with exit code|completed with exit code|exited"
    r" with code|Exit Code:|<returncode>"
    r"|exit (?:status|code):?|exit_code[:=]) ?(-?\d{1,5})\W{0,14}(?:</\w{1,20}>)?\s*$"
)


def command_of(call: ToolCall) -> str:
    """The command line of a shell call, or an empty string."""
    try:
        arguments = _arguments.decode(call.arguments)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return ""
    command = (
        arguments.command or arguments.cmd or arguments.script or _coded(arguments.input or "")
    )
    if isinstance(command, list):
        command = (
            command[-1] if len(command) >= 3 and command[1].startswith("-") else " ".join(command)
        )
    return command


def _coded(source: str) -> str:
    """The commands that a script runs by `tools.exec_command`."""
    found = _CODE_COMMAND.findall(source[:_MAX_CHARS])
    return "\n".join(
        _ESCAPE.sub(lambda one: _ESCAPED.get(one[1], one[1]), text) for _, text in found
    )


def ends_of(text: str) -> str:
    """The beginning and the end of a long text, where programs report their result."""
    return keep_ends(text, _HEAD_CHARS, _TAIL_CHARS)


def said_by(parts: Sequence[Part]) -> str:
    """The text of the parts, cut to the length that detectors read."""
    return text_of(parts)[:_MAX_CHARS]


@dataclass(frozen=True, slots=True)
class ToolRun:
    """A call with its result. `says_failed` is None if neither the result nor the client's flag
    says whether it failed.
    """

    kind: ToolKind
    command: str
    text: str
    exit_code: int | None
    says_failed: bool | None
    is_harmless: bool


def read_result(result: ToolResult, call: ToolCall | None) -> ToolRun:
    whole = text_of(result.parts)
    kind = _kind_of(call) if call else ToolKind.OTHER
    command = command_of(call) if call and kind is ToolKind.SHELL else ""
    # A file that was read may be any JSON; a failed read is short.
    reports_error = result.is_error
    if kind is ToolKind.SHELL and (account := _account(whole)):
        output, code = account
        return ToolRun(kind, command, ends_of(output), code, _has_failed(code, False), False)
    if head := _CODE_HEAD.match(whole):
        whole, reports_error = whole[head.end() :], head[1] == "failed"
    shown = _decode(whole) if kind is not ToolKind.READ or len(whole) < _SHORT_CHARS else None
    if shown is not None:
        return _read_object(shown, whole, reports_error, kind, command)
    exit_code = _exit_code(whole, kind)
    failed = _has_failed(exit_code, reports_error)
    return ToolRun(kind, command, ends_of(whole), exit_code, failed, False)


def _account(text: str) -> tuple[str, int | None] | None:
    """The output and the exit code of a command in Gemini CLI's or Qwen Code's account of it."""
    if begin := _GEMINI_HEAD.match(text):
        tail = _GEMINI_TAIL.search(text, max(begin.end() - 1, len(text) - _TAIL_CHARS))
        if tail is None:
            return None
        shown = text[begin.end() : tail.start()]
        told = [one for one in (shown, tail[1]) if one not in ("(empty)", None)]
        is_unknown = tail[1] is not None or tail[3] is not None
        silent = None if is_unknown else 0
        return "\n".join(filter(None, told)), int(tail[2]) if tail[2] else silent
    head, _, rest = text.partition("\nOutput: ")
    output, found, end = rest.rpartition("\nError: ")
    if not found or not head.startswith("Command: "):
        return None
    code = _ACCOUNT_CODE.search(end)
    error = end.partition("\n")[0]
    told = [one for one in (output, error) if one not in ("(empty)", "(none)")]
    return "\n".join(told), int(code[1]) if code else None


def _has_failed(exit_code: int | None, reports_error: bool) -> bool | None:
    """Whether a tool failed; without an exit code, silence says nothing."""
    if exit_code is not None:
        return exit_code != 0
    return True if reports_error else None


def _decode(text: str) -> _Shown | None:
    if not text.startswith("{") or len(text) > _MAX_JSON_CHARS:
        return None
    try:
        return _shown.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


def _read_object(
    shown: _Shown, whole: str, reports_error: bool, kind: ToolKind, command: str
) -> ToolRun:
    exit_code = next(
        (code for code in (shown.exit_code, shown.returncode) if code is not None), None
    )
    if exit_code is None and shown.metadata is not None:
        exit_code = shown.metadata.exit_code
    has_error = (
        bytes(shown.error).strip() not in _EMPTY or bytes(shown.errors).strip() not in _EMPTY
    )
    has_failed = (
        has_error or shown.success is False or shown.ok is False or shown.status in _FAILED_STATUS
    )
    failed = _has_failed(exit_code, has_failed or reports_error)
    told = [shown.output, _error_text(shown.error), shown.exception_info]
    text = "\n".join(filter(None, told)) if shown.output is not None or told[1] else whole
    harmless = "not an error" in (shown.exit_code_meaning or "").lower()
    return ToolRun(kind, command, ends_of(text), exit_code, failed, harmless)


def _error_text(error: msgspec.Raw) -> str:
    raw = bytes(error).strip()
    if raw in _EMPTY:
        return ""
    stated = msgspec.json.decode(raw)
    return stated if isinstance(stated, str) else raw.decode(errors="replace")


def _exit_code(text: str, kind: ToolKind) -> int | None:
    if kind is ToolKind.READ:
        return None
    found = _EXIT_AT_HEAD.search(text[:300])
    if found is None and kind is ToolKind.SHELL:
        found = _EXIT_AT_TAIL.search(text[-160:])
    return int(found[1]) if found else None


def bare_call_id(call_id: str) -> str:
    """A tool-call id without punctuation, which some clients remove from ids."""
    return "".join(filter(str.isalnum, call_id))


def exchanges(messages: Iterable[Message]) -> Iterator[tuple[ToolCall, ToolResult] | str]:
    """The calls with their results, and what the person said, in their order."""
    calls: dict[str, ToolCall] = {}
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolCall):
                calls[bare_call_id(part.id)] = part
            elif isinstance(part, ToolResult) and (call := calls.get(bare_call_id(part.call_id))):
                yield call, part
        if message.role == Role.USER and any(isinstance(part, Text) for part in message.parts):
            yield text_of(message.parts)


class ResultMeaning(StrEnum):
    FINE = "fine"
    ANSWER = "answer"
    EXPECTED = "expected"
    TESTS_PASSED = "tests_passed"
    TESTS_FAILED = "tests_failed"
    STOPPED = "stopped"
    REFUSED = "refused"
    SCHEMA = "schema"
    UNKNOWN_TOOL = "unknown_tool"
    ENVIRONMENT = "environment"
    EXCEPTION = "exception"
    HANGS = "hangs"
    EXIT = "exit"
    ERROR = "error"


GOOD = frozenset(
    (ResultMeaning.FINE, ResultMeaning.ANSWER, ResultMeaning.EXPECTED, ResultMeaning.TESTS_PASSED)
)


@dataclass(frozen=True, slots=True)
class InterpretedResult:
    """The meaning of one result, with the words that show it."""

    meaning: ResultMeaning
    quote: str


class StepReading:
    """A step and the next step, if any. Computes once what several detectors need."""

    def __init__(self, step: Step, later: Step | None = None) -> None:
        self.step = step
        self.later = later

    @cached_property
    def answer(self) -> str:
        return said_by(self.step.answer)

    @cached_property
    def asked_back(self) -> bool:
        """Whether the answer ends with a question to the person."""
        return self.answer.rstrip(" \n*_)\"'").endswith(("?", "？"))

    @cached_property
    def said(self) -> str:
        """The user's next message, normalised by `phrases.spoken`."""
        return phrases.spoken(self.step.said_after or "")

    @cached_property
    def raw(self) -> str:
        """The user's next message as written, without the middle of a long text."""
        return ends_of((self.step.said_after or "").strip())

    @cached_property
    def has_said(self) -> bool:
        """Whether the user said something next."""
        return bool(self.raw)

    @cached_property
    def ran(self) -> tuple[ToolRun, ...]:
        """The calls with results; if there are more than `MAX_RESULTS`, the first and the last of
        them.
        """
        calls = {bare_call_id(call.id): call for call in self.step.calls}
        results = self.step.results
        if len(results) > MAX_RESULTS:
            results = results[: MAX_RESULTS // 2] + results[-MAX_RESULTS // 2 :]
        return tuple(
            read_result(result, calls.get(bare_call_id(result.call_id))) for result in results
        )

    @cached_property
    def findings(self) -> tuple[InterpretedResult, ...]:
        """The interpreted result of each answered call."""
        intent = phrases.spoken(f"{self.answer[-600:]} . {self.step.task[:600]}")
        return tuple(_meaning(ran, self, intent) for ran in self.ran)

    def found(self, *meanings: ResultMeaning) -> InterpretedResult | None:
        """The first result with one of these meanings, or None."""
        return next((finding for finding in self.findings if finding.meaning in meanings), None)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Messages after the answer that the client wrote, not the user."""
        own = (self.step.said_after or "").strip()
        texts = (
            part.text
            for message in self.step.after
            for part in message.parts
            if isinstance(part, Text)
        )
        return tuple(
            ends_of(text)
            for text in texts
            if not own or own not in text or len(text) > 2 * len(own) + 40
        )[:8]

    @cached_property
    def run(self) -> tuple[Message, ...]:
        """The messages of this task before the answer: those since the user's last message."""
        recent = self.step.history[-_LOOK_BACK:]
        task = self.step.task.strip()[:_TASK_CHARS]
        for at in range(len(recent) - 1, -1, -1):
            if recent[at].role == Role.USER and task and task in said_by(recent[at].parts):
                return recent[at + 1 :]
        return recent

    @cached_property
    def has_edited(self) -> bool:
        """Whether files were changed for this task before the last call."""
        calls = [
            part for message in self.run for part in message.parts if isinstance(part, ToolCall)
        ]
        return any(map(is_edit, (*calls, *self.step.calls[:-1])))


def is_edit(call: ToolCall) -> bool:
    """Whether a call changes files."""
    kind = _kind_of(call)
    return kind is ToolKind.EDIT or (
        kind is ToolKind.SHELL and _EDITS.search(command_of(call)[:_MAX_CHARS]) is not None
    )


_NETWORK, _CERTIFICATE, _SERVICE, _CREDENTIALS, _MACHINE, _PROGRAM, _REFUSED = (
    program_words(f"fault_{kind}")
    for kind in (
        "network",
        "certificate",
        "service",
        "credentials",
        "machine",
        "program",
        "refused",
    )
)
_INSTALLABLE = frozenset(programs_of("installable"))
_HTTP_STATUS = re.compile(
    r"(?:\b(?:http|error|status|code|e)\W{0,3}(?:code\W{0,2})?|\(|^)(?P<code>429|5\d\d|402)\b(?!\s*(?:ms|kb|mb|bytes|/))"
)
_NOT_FOUND = re.compile(r"(?:^|\n)\S{0,40}sh: (?:\d+: |line \d+: )?\S{1,60}: not found\b")
_MODULE = re.compile(
    r"no module named '?(?P<python>[\w.]+)|cannot find (?:module|package) '(?P<node>[^'./][^']*)'"
)
_TIMED_OUT = program_words("timed_out")


def outage(ran: ToolRun) -> str | None:
    """The words that show that the network or a service failed, in a way that passes."""
    text = ran.text.lower()
    if _MACHINE.find(text):
        return None
    return _NETWORK.find(text) or _breakdown(text)


def _breakdown(text: str) -> str | None:
    if found := _SERVICE.find(text):
        return found
    status = _HTTP_STATUS.search(text)
    return f"status {status['code']}" if status else None


def outside_fault(ran: ToolRun) -> str | None:
    """The words that show that the network, a service or the machine was at fault, or that time ran
    out.
    """
    text = ran.text.lower()
    lasting = _MACHINE.find(text) or _CERTIFICATE.find(text) or _CREDENTIALS.find(text)
    return lasting or outage(ran) or _TIMED_OUT.find(text)


def environment_fault(ran: ToolRun, *, is_own_server: bool) -> str | None:
    """The words that show that the environment caused a failure, or None. `is_own_server`: the
    agent itself wrote the server.
    """
    text = ran.text.lower()
    if found := _MACHINE.find(text) or _NETWORK.find(text) or _CERTIFICATE.find(text):
        return None if is_own_server and "timed out" in found else found
    if not is_own_server and (
        found := _CREDENTIALS.find(text) or _breakdown(text) or _REFUSED.find(text)
    ):
        return found
    if ran.exit_code == 127 or _NOT_FOUND.search(text):
        return "command not found"
    if found := _PROGRAM.find(text) or _missing_library(text):
        return found
    has_timed_out = ran.exit_code == 124 or _TIMED_OUT.find(text) is not None
    return (
        "timed out" if has_timed_out and CommandUse.NETWORK in command_uses(ran.command) else None
    )


def _missing_library(text: str) -> str | None:
    found = _MODULE.search(text)
    if found is None:
        return None
    name = found["node"] or (found["python"] or "").split(".")[0]
    return f"{name} is not installed" if found["node"] or name in _INSTALLABLE else None


_ERROR_HEAD = re.compile(
    r"\s{0,40}(?:<tool_use_error>|error\b[: ]|\[error\]|err!|failed to"
    r" |failure:|fatal:|exception:|traceback \(most recent"
    r"|unsupported call|unknown tool|tool \S{1,60} not found|model tried to call"
    r" unavailable|validation failed|bad_data"
    r"|validation_error|the \S{1,40} tool was called with invalid|argument validation error|missing"
    r" (?:required|value)"
    r"|invalid (?:arguments|input|parameter|json)|could not find (?:the exact|a"
    r" match|oldstring|old_str)"
    r"|no replacement was performed|file \S{1,200} has not been read|apply_patch verification failed|patch rejected|enoent|file not"
    r" found|no such file"
    r"|file does not exist|unable to |cannot (?:find|read|open)|request failed|mcp error|execution"
    r" error|tool execution aborted"
    r"|command (?:aborted|timed out)|the user (?:rejected|doesn't want|denied))",
    re.IGNORECASE,
)
_GIT_FAULT = "fatal: "
"""How git begins its own messages, also where its output is the content of files."""
_NO_SUCH_FILE = re.compile(
    r"\benoent\b|\b(?:file|path|directory) (?:was )?not found|no such"
    r" file|\b(?:file|path|directory)\b[^\n]{0,200} does not exist"
    r"|^error: |^failed to |request failed|cannot (?:find|read|open)|permission"
    r" denied|<tool_use_error>"
)
_SCHEMA, _HANGS = program_words("schema"), program_words("hangs")
_UNKNOWN_TOOL = re.compile(
    r"\b(?:no such tool|unknown tool|unsupported call|unavailable tool|tool not found"
    r"|tool \S{1,60} (?:not found|does not exist|is not available))\b"
)
_SIGNS_OF_EXCEPTION = (
    "traceback",
    "panic",
    "exception",
    "error",
    "fault",
    "core dumped",
    "unhandled",
    "\n    at ",
)
_EXCEPTION = re.compile(
    r"traceback \(most recent call last\)|panicked at|\bpanic: |exception in thread|unhandled"
    r" (?:exception|rejection)"
    r"|segmentation fault|core dumped|cellexecutionerror|\((?:no)?\w{1,30}error\)$"
    r"|^[ \t]{1,12}at \S{1,80} \(?\S{1,200}:\d{1,6}:\d{1,6}\)?$"
    r"|^[ \t]{0,12}(?:\w{1,40}\.){0,4}[a-z]\w{0,40}(?:error|exception)(?: \[\w{1,40}\])?: ",
    re.MULTILINE,
)
_PASSED = re.compile(
    r"\b[1-9]\d* pass(?:ed|ing)\b|\btest result: ok\b|^ok\s+\S|\bran \d+ tests? in"
    r" [\s\S]{0,60}\n\s*ok\b|\b0 failures\b"
    r"|\ball (?:\d+ )?tests (?:have )?passed\b|failures: 0, errors: 0|build success|^ok \(\d+"
    r" tests?",
    re.IGNORECASE | re.MULTILINE,
)
_NOT_PASSED = re.compile(
    r"\b[1-9]\d* (?:tests? )?(?:failed|failing|failures|errors?)\b(?! to)|test result:"
    r" failed|^fail(?:ed)?\b|^--- fail|failed \("
    r"|<<< (?:failure|error)|\bfailures: [1-9]|\berrors: [1-9]",
    re.IGNORECASE | re.MULTILINE,
)
# A runner that could not start: it collected, compiled or set up nothing, so that it counts no test.
_NOT_STARTED = re.compile(
    r"\[\w+ failed\]|\bsuite failed to run\b|\berrors? (?:in \d|during|collecting|at setup|occurred outside)"
    r"|\b(?:0 total|no tests)\b|\bfailed to import\b|\bcompilation (?:error|failed)|\bcould not compile\b"
    r"|\bbuild failed\b",
    re.IGNORECASE,
)
_A_TEST_FAILED = re.compile(
    r"^(?!\W*test (?:suites|files)\b)[^\n]*\b[1-9]\d* (?:tests? )?(?:failed|failing|failures?)\b"
    r"|--- fail|<<< (?:failure|error)|\b(?:failures|failed|failing)[:=] ?[1-9]|# fail [1-9]|\berrors: [1-9]"
    r"|^failed \S+::|^not ok \d",
    re.IGNORECASE | re.MULTILINE,
)


def _meaning(ran: ToolRun, reading: StepReading, intent: str) -> InterpretedResult:
    has_failed = looks_failed(ran) if ran.says_failed is None else ran.says_failed
    return (
        _meaning_of_failure(ran, reading, intent)
        if has_failed and not ran.is_harmless
        else _meaning_of_success(ran)
    )


def looks_failed(ran: ToolRun) -> bool:
    """Whether the text begins like an error, for clients without a flag or an exit code."""
    if ran.kind is ToolKind.READ:
        # A file may begin with the word error; a failed read is one short line.
        low = ran.text.lower() if len(ran.text) < 400 and ran.text.count("\n") < 4 else ""
        return _NO_SUCH_FILE.search(low) is not None or _SCHEMA.find(low) is not None
    if _HANGS.find(ran.text[-200:].lower()):
        return True
    if _GUARD.search(ran.command[:_MAX_CHARS]):
        return False
    if _only_looks(command_uses(ran.command)):
        return ran.text.startswith(_GIT_FAULT) and ran.command.split()[0] == "git"
    return _ERROR_HEAD.match(ran.text[:200]) is not None


def _meaning_of_success(ran: ToolRun) -> InterpretedResult:
    kinds = command_uses(ran.command) if ran.kind is ToolKind.SHELL else ()
    if CommandUse.TEST in kinds:
        if not _NOT_PASSED.search(ran.text) and (found := _PASSED.search(ran.text)):
            return InterpretedResult(ResultMeaning.TESTS_PASSED, found[0].strip())
    elif (
        ran.kind is ToolKind.SHELL
        and not _only_looks(kinds)
        and (quote := _exception(ran.text[-_TAIL_CHARS:]))
    ):
        return InterpretedResult(ResultMeaning.EXCEPTION, quote)
    return InterpretedResult(ResultMeaning.FINE, "")


def _only_looks(kinds: tuple[CommandUse, ...]) -> bool:
    """Whether the first command only reads something, so that errors in its output are content."""
    return bool(kinds) and kinds[0] in (
        CommandUse.LOOK,
        CommandUse.SEARCH,
        CommandUse.COMPARE,
        CommandUse.CHECK,
    )


def was_stopped(ran: ToolRun) -> InterpretedResult | None:
    """What says that the person refused or stopped a call, or None."""
    text = phrases.spoken(ran.text[:400])
    if found := phrases.REFUSED_BY_PERSON.find(text):
        return InterpretedResult(ResultMeaning.REFUSED, found)
    if found := phrases.INTERRUPTED.find(text) or ("interrupted" if ran.exit_code == 130 else None):
        return InterpretedResult(ResultMeaning.STOPPED, found)
    return None


def have_tests_passed(ran: ToolRun) -> bool:
    """Whether the output is the account of tests that passed."""
    return _NOT_PASSED.search(ran.text) is None and _PASSED.search(ran.text) is not None


def have_tests_failed(ran: ToolRun) -> bool:
    """Whether tests ran and some failed: that is their answer, not a failure of the call."""
    if CommandUse.TEST not in command_uses(ran.command):
        return False
    may_have = _NOT_PASSED.search(ran.text) and not _NOT_STARTED.search(ran.text)
    return bool(may_have or _A_TEST_FAILED.search(ran.text))


def _meaning_of_failure(ran: ToolRun, reading: StepReading, intent: str) -> InterpretedResult:
    if (stopped := was_stopped(ran)) is not None:
        return stopped
    low = ran.text[:1_000].lower()
    if ran.kind is not ToolKind.SHELL or ran.exit_code is None:
        if found := _SCHEMA.find(low):
            return InterpretedResult(ResultMeaning.SCHEMA, found)
        if unknown := _UNKNOWN_TOOL.search(low):
            return InterpretedResult(ResultMeaning.UNKNOWN_TOOL, unknown[0])
    own = _LOCAL.search(ran.command[:_MAX_CHARS]) is not None and reading.has_edited
    # Rate limits and timeouts in the output of failed tests are what the tests check.
    if not have_tests_failed(ran) and (found := environment_fault(ran, is_own_server=own)):
        return InterpretedResult(ResultMeaning.ENVIRONMENT, found)
    return _meaning_of_exit(ran, reading, intent)


def _meaning_of_exit(ran: ToolRun, reading: StepReading, intent: str) -> InterpretedResult:
    kinds = command_uses(ran.command)
    quote = next(
        (line.strip()[:200] for line in reversed(ran.text.splitlines()) if line.strip()), ""
    )
    if ran.exit_code is not None and answers_by_exit(ran.command, ran.exit_code):
        return InterpretedResult(ResultMeaning.ANSWER, quote)
    if ran.kind is ToolKind.SHELL and phrases.EXPECTED_FAILURE.find(intent):
        return InterpretedResult(ResultMeaning.EXPECTED, quote)
    is_first_test_run = (
        CommandUse.TEST in kinds
        and not reading.step.calls[:-1]
        and phrases.TROUBLE.find(intent) is not None
    )
    if not reading.has_edited and (CommandUse.CHECK in kinds or is_first_test_run):
        return InterpretedResult(ResultMeaning.ANSWER, quote)
    if CommandUse.TEST in kinds and ran.exit_code != 4:
        return InterpretedResult(ResultMeaning.TESTS_FAILED, quote)
    if _HANGS.find(ran.text.lower()):
        return InterpretedResult(ResultMeaning.HANGS, quote)
    if ran.kind is ToolKind.SHELL and (raised := _exception(ran.text)):
        return InterpretedResult(ResultMeaning.EXCEPTION, raised)
    return InterpretedResult(
        ResultMeaning.EXIT if ran.kind is ToolKind.SHELL else ResultMeaning.ERROR, quote
    )


def _exception(text: str) -> str | None:
    """The words of an exception, or None. The slow pattern is tried only if one of its words
    occurs.
    """
    low = text.lower()
    if not any(sign in low for sign in _SIGNS_OF_EXCEPTION):
        return None
    found = _EXCEPTION.search(low)
    return found[0].strip() if found else None

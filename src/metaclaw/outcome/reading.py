"""A step as detectors read it: its calls with their results, the user's next words, and what was done before."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import msgspec

from metaclaw.domain.chat import Message, Part, Role, Text, ToolCall, ToolResult
from metaclaw.domain.turn import Step
from metaclaw.outcome import phrases, shell
from metaclaw.outcome.phrases import programs_of

MAX_RESULTS = 12
_HEAD_CHARS, _TAIL_CHARS = 1_500, 1_500
_MAX_JSON_CHARS = 200_000
_SHORT_CHARS = 300
_TASK_CHARS = 80
_LOOK_BACK = 60  # messages


class ToolKind(StrEnum):
    """What a tool does."""

    SHELL = "shell"
    EDIT = "edit"
    READ = "read"
    OTHER = "other"


_KINDS = {
    name: kind
    for kind, table in ((ToolKind.SHELL, "shells"), (ToolKind.EDIT, "editors"), (ToolKind.READ, "readers"))
    for name in programs_of(table)
}


def tool_kind(name: str) -> ToolKind:
    """The kind of a tool, by its name."""
    return _KINDS.get(name.lower(), ToolKind.OTHER)


class _Arguments(msgspec.Struct):
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

_EXIT_AT_HEAD = re.compile(
    r"(?:^|\n)(?:Exit code:?|Process exited with code|Command failed with exit code|<returncode>|Exit Code:) ?(-?\d{1,5})\b"
)
_EXIT_AT_TAIL = re.compile(
    r"(?:Command exited with code|Command finished with exit code|completed with exit code|exited with code|Exit Code:|<returncode>"
    r"|exit status|exit code:?) ?(-?\d{1,5})\W{0,14}(?:</returncode>)?\s*$"
)


def command_of(call: ToolCall) -> str:
    """The command line of a shell call, or an empty string."""
    try:
        given = _arguments.decode(call.arguments)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return ""
    command = given.command or given.cmd or given.script or ""
    if isinstance(command, list):
        command = command[-1] if len(command) >= 3 and command[1].startswith("-") else " ".join(command)
    return command


def ends_of(text: str) -> str:
    """The beginning and the end of a long text, where programs report their result."""
    if len(text) <= _HEAD_CHARS + _TAIL_CHARS:
        return text
    return f"{text[:_HEAD_CHARS]}\n{text[-_TAIL_CHARS:]}"


def said_by(parts: Sequence[Part], limit: int = 4_000) -> str:
    """The text of some parts."""
    return "\n".join(part.text for part in parts if isinstance(part, Text))[:limit]


@dataclass(frozen=True, slots=True)
class ToolRun:
    """A call with its result. `says_failed` is what the result or the client's flag says; None if neither does."""

    call: ToolCall | None
    kind: ToolKind
    command: str
    text: str
    exit_code: int | None
    says_failed: bool | None
    is_harmless: bool


def _read_result(result: ToolResult, call: ToolCall | None) -> ToolRun:
    whole = "\n".join(part.text for part in result.parts if isinstance(part, Text))
    kind = tool_kind(call.name) if call else ToolKind.OTHER
    command = command_of(call) if call and kind is ToolKind.SHELL else ""
    # A file that was read may be any JSON; a failed read is short.
    shown = _decode(whole) if kind is not ToolKind.READ or len(whole) < _SHORT_CHARS else None
    if shown is not None:
        return _read_object(shown, whole, result, call, kind, command)
    exit_code = _exit_code(whole, kind)
    failed = exit_code != 0 if exit_code is not None else (True if result.is_error else None)
    return ToolRun(call, kind, command, ends_of(whole), exit_code, failed, False)


def _decode(text: str) -> _Shown | None:
    if not text.startswith("{") or len(text) > _MAX_JSON_CHARS:
        return None
    try:
        return _shown.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


def _read_object(shown: _Shown, whole: str, result: ToolResult, call: ToolCall | None, kind: ToolKind, command: str) -> ToolRun:
    exit_code = next((code for code in (shown.exit_code, shown.returncode) if code is not None), None)
    if exit_code is None and shown.metadata is not None:
        exit_code = shown.metadata.exit_code
    has_error = bytes(shown.error).strip() not in _EMPTY or bytes(shown.errors).strip() not in _EMPTY
    told = has_error or shown.success is False or shown.ok is False or shown.status in _FAILED_STATUS
    if exit_code is not None:
        failed: bool | None = exit_code != 0
    else:
        failed = True if told or result.is_error else None
    text = whole if shown.output is None else "\n".join(filter(None, (shown.output, _words_of(shown.error), shown.exception_info)))
    harmless = "not an error" in (shown.exit_code_meaning or "").lower()
    return ToolRun(call, kind, command, ends_of(text), exit_code, failed, harmless)


def _words_of(raw: msgspec.Raw) -> str:
    return "" if bytes(raw).strip() in _EMPTY else bytes(raw).decode(errors="replace").strip('"')


def _exit_code(text: str, kind: ToolKind) -> int | None:
    if kind is ToolKind.READ:
        return None
    found = _EXIT_AT_HEAD.search(text[:300])
    if found is None and kind is ToolKind.SHELL:
        found = _EXIT_AT_TAIL.search(text[-160:])
    return int(found[1]) if found else None


def same_id(one: str) -> str:
    """A call's id without punctuation, which OpenClaw removes from ids."""
    return "".join(filter(str.isalnum, one))


class StepReading:
    """A step and the one after it, if any, with what several detectors need, computed once."""

    def __init__(self, step: Step, later: Step | None = None) -> None:
        self.step = step
        self.later = later

    @cached_property
    def answer(self) -> str:
        """The text of the answer."""
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
        """The calls with results; of many, the first and the last."""
        calls = {same_id(call.id): call for call in self.step.calls}
        results = self.step.results
        if len(results) > MAX_RESULTS:
            results = results[: MAX_RESULTS // 2] + results[-MAX_RESULTS // 2 :]
        return tuple(_read_result(result, calls.get(same_id(result.call_id))) for result in results)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Messages after the answer that the client wrote, not the user."""
        own = (self.step.said_after or "").strip()
        texts = (part.text for message in self.step.after for part in message.parts if isinstance(part, Text))
        return tuple(ends_of(text) for text in texts if not own or own not in text or len(text) > 2 * len(own) + 40)[:8]

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
        calls = [part for message in self.run for part in message.parts if isinstance(part, ToolCall)]
        return any(map(is_edit, (*calls, *self.step.calls[:-1])))


def is_edit(call: ToolCall) -> bool:
    """Whether a call changes files."""
    kind = tool_kind(call.name)
    return kind is ToolKind.EDIT or (kind is ToolKind.SHELL and shell.edits(command_of(call)))

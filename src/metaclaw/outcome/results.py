"""Interpretation of tool results: success, a negative answer, an expected failure, or a failure, with its kind and cause."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from metaclaw.outcome import phrases, shell
from metaclaw.outcome.phrases import programs_of
from metaclaw.outcome.reading import StepReading, ToolKind, ToolRun
from metaclaw.outcome.shell import CommandUse

# Searched as plain text: a regular expression with so many words takes ten times as long.
_NETWORK, _SERVICE, _MACHINE, _PROGRAM, _REFUSED = (
    programs_of(f"fault_{kind}") for kind in ("network", "service", "machine", "program", "refused")
)
_INSTALLABLE = frozenset(programs_of("installable"))
_HTTP_STATUS = re.compile(
    r"(?:\b(?:http|error|status|code|e)\W{0,3}(?:code\W{0,2})?|\(|^)(?P<code>429|5\d\d|402)\b(?!\s*(?:ms|kb|mb|bytes|/))"
)
_NOT_FOUND = re.compile(r"(?:^|\n)\S{0,40}sh: (?:\d+: |line \d+: )?\S{1,60}: not found\b")
_MODULE = re.compile(r"no module named '?(?P<python>[\w.]+)|cannot find (?:module|package) '(?P<node>[^'./][^']*)'")
_TIMED_OUT = ("timed out", "timeout", "deadline")


def environment_fault(ran: ToolRun, *, is_own_server: bool) -> str | None:
    """The words that show that the environment caused a failure; None if it did not.

    `is_own_server` is set if the command talks to a server that the agent itself has just written.
    """
    text = ran.text.lower()
    if found := _first(text, _MACHINE) or _first(text, _NETWORK):
        return None if is_own_server and "timed out" in found else found
    if not is_own_server and (found := _first(text, _SERVICE) or _status(text) or _first(text, _REFUSED)):
        return found
    if ran.exit_code == 127 or _NOT_FOUND.search(text):
        return "command not found"
    if found := _first(text, _PROGRAM):
        return found
    return _missing_library(text) or _slow_outside(ran, text)


def _first(text: str, needles: tuple[str, ...]) -> str | None:
    return next((needle for needle in needles if needle in text), None)


def _status(text: str) -> str | None:
    found = _HTTP_STATUS.search(text)
    return f"status {found['code']}" if found else None


def _missing_library(text: str) -> str | None:
    found = _MODULE.search(text)
    if found is None:
        return None
    name = found["node"] or (found["python"] or "").split(".")[0]
    return f"{name} is not installed" if found["node"] or name in _INSTALLABLE else None


def _slow_outside(ran: ToolRun, text: str) -> str | None:
    """A network command that timed out."""
    if ran.exit_code != 124 and not any(word in text for word in _TIMED_OUT):
        return None
    return "timed out" if shell.CommandUse.NETWORK in shell.uses(ran.command) else None


class ResultMeaning(StrEnum):
    """The kind of a result."""

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


GOOD = frozenset((ResultMeaning.FINE, ResultMeaning.ANSWER, ResultMeaning.EXPECTED, ResultMeaning.TESTS_PASSED))


@dataclass(frozen=True, slots=True)
class InterpretedResult:
    """The meaning of one result, with the words that show it."""

    meaning: ResultMeaning
    quote: str


_ERROR_HEAD = re.compile(
    r"\s{0,40}(?:<tool_use_error>|error\b[: ]|\[error\]|err!|failed to |failure:|fatal:|exception:|traceback \(most recent"
    r"|unsupported call|unknown tool|tool \S{1,60} not found|model tried to call unavailable|validation failed|bad_data"
    r"|validation_error|the \S{1,40} tool was called with invalid|argument validation error|missing (?:required|value)"
    r"|invalid (?:arguments|input|parameter|json)|could not find (?:the exact|a match|oldstring|old_str)"
    r"|no replacement was performed|apply_patch verification failed|patch rejected|enoent|file not found|no such file"
    r"|file does not exist|unable to |cannot (?:find|read|open)|request failed|mcp error|execution error|tool execution aborted"
    r"|command (?:aborted|timed out)|the user (?:rejected|doesn't want|denied))",
    re.IGNORECASE,
)
_NO_SUCH_FILE = re.compile(
    r"enoent|(?:file|path|directory) (?:was )?not found|no such file|(?:file|path|directory)[^\n]{0,200} does not exist"
    r"|^error: |^failed to |request failed|cannot (?:find|read|open)|permission denied|<tool_use_error>"
)
_SCHEMA, _HANGS = programs_of("schema"), programs_of("hangs")
_UNKNOWN_TOOL = re.compile(
    r"no such tool|unknown tool|unsupported call|unavailable tool|tool not found"
    r"|tool \S{1,60} (?:not found|does not exist|is not available)"
)
_SIGNS_OF_EXCEPTION = ("traceback", "panic", "exception", "error", "fault", "core dumped", "unhandled", "\n    at ")
_EXCEPTION = re.compile(
    r"traceback \(most recent call last\)|panicked at|\bpanic: |exception in thread|unhandled (?:exception|rejection)"
    r"|segmentation fault|core dumped|cellexecutionerror|\((?:no)?\w{1,30}error\)$"
    r"|^[ \t]{1,12}at \S{1,80} \(?\S{1,200}:\d{1,6}:\d{1,6}\)?$"
    r"|^[ \t]{0,12}(?:\w{1,40}\.){0,4}[a-z]\w{0,40}(?:error|exception)(?: \[\w{1,40}\])?: ",
    re.MULTILINE,
)
_PASSED = re.compile(
    r"\b[1-9]\d* pass(?:ed|ing)\b|\btest result: ok\b|^ok\s+\S|\bran \d+ tests? in [\s\S]{0,60}\n\s*ok\b|\b0 failures\b"
    r"|\ball (?:\d+ )?tests (?:have )?passed\b|failures: 0, errors: 0|build success|^ok \(\d+ tests?",
    re.IGNORECASE | re.MULTILINE,
)
_NOT_PASSED = re.compile(
    r"\b[1-9]\d* (?:tests? )?(?:failed|failing|failures|errors?)\b(?! to)|test result: failed|^fail(?:ed)?\b|^--- fail|failed \("
    r"|<<< (?:failure|error)|\bfailures: [1-9]|\berrors: [1-9]",
    re.IGNORECASE | re.MULTILINE,
)
_TAIL_CHARS = 600


def interpret_results(reading: StepReading) -> tuple[InterpretedResult, ...]:
    """Interpret the result of every answered call."""
    intent = phrases.spoken(f"{reading.answer[-600:]} . {reading.step.task[:600]}")
    return tuple(_meaning(ran, reading, intent) for ran in reading.ran)


def _meaning(ran: ToolRun, reading: StepReading, intent: str) -> InterpretedResult:
    failed = ran.says_failed
    if failed is None:
        failed = _looks_failed(ran)
    if not failed or ran.is_harmless:
        return _meaning_of_success(ran)
    return _meaning_of_failure(ran, reading, intent)


def _looks_failed(ran: ToolRun) -> bool:
    """Whether the text begins like an error, for clients without a flag or an exit code."""
    if ran.kind is ToolKind.READ:
        # A file may begin with the word error; a failed read is one short line.
        low = ran.text.lower() if len(ran.text) < 400 and ran.text.count("\n") < 4 else ""
        return _NO_SUCH_FILE.search(low) is not None or any(one in low for one in _SCHEMA)
    if any(one in ran.text[-200:].lower() for one in _HANGS):
        return True
    if shell.is_guarded(ran.command) or _only_looks(shell.uses(ran.command)):
        return False
    return _ERROR_HEAD.match(ran.text[:200]) is not None


def _meaning_of_success(ran: ToolRun) -> InterpretedResult:
    kinds = shell.uses(ran.command) if ran.kind is ToolKind.SHELL else ()
    if CommandUse.TEST in kinds:
        if not _NOT_PASSED.search(ran.text) and (found := _PASSED.search(ran.text)):
            return InterpretedResult(ResultMeaning.TESTS_PASSED, found[0].strip())
    elif ran.kind is ToolKind.SHELL and not _only_looks(kinds) and (quote := _exception(ran.text[-_TAIL_CHARS:])):
        return InterpretedResult(ResultMeaning.EXCEPTION, quote)
    return InterpretedResult(ResultMeaning.FINE, "")


def _only_looks(kinds: tuple[CommandUse, ...]) -> bool:
    """Whether the first command only reads something, so that errors in its output are content."""
    return bool(kinds) and kinds[0] in (CommandUse.LOOK, CommandUse.SEARCH, CommandUse.COMPARE, CommandUse.CHECK)


def _meaning_of_failure(ran: ToolRun, reading: StepReading, intent: str) -> InterpretedResult:
    text = phrases.spoken(ran.text[:400])
    if found := phrases.REFUSED_BY_PERSON.find(text):
        return InterpretedResult(ResultMeaning.REFUSED, found)
    if found := phrases.INTERRUPTED.find(text) or ("interrupted" if ran.exit_code == 130 else None):
        return InterpretedResult(ResultMeaning.STOPPED, found)
    low = ran.text[:1_000].lower()
    if ran.kind is not ToolKind.SHELL or ran.exit_code is None:
        if found := next((one for one in _SCHEMA if one in low), None):
            return InterpretedResult(ResultMeaning.SCHEMA, found)
        if unknown := _UNKNOWN_TOOL.search(low):
            return InterpretedResult(ResultMeaning.UNKNOWN_TOOL, unknown[0])
    own = shell.is_local(ran.command) and reading.has_edited
    if not _tests_failed(ran) and (found := environment_fault(ran, is_own_server=own)):
        return InterpretedResult(ResultMeaning.ENVIRONMENT, found)
    return _meaning_of_exit(ran, reading, intent)


def _tests_failed(ran: ToolRun) -> bool:
    """Whether tests ran and some failed. Rate limits or timeouts in their output are then their subject."""
    return CommandUse.TEST in shell.uses(ran.command) and _NOT_PASSED.search(ran.text) is not None


def _meaning_of_exit(ran: ToolRun, reading: StepReading, intent: str) -> InterpretedResult:
    kinds = shell.uses(ran.command)
    quote = _last_line(ran.text)
    if ran.exit_code is not None and shell.answers_by_exit(ran.command, ran.exit_code):
        return InterpretedResult(ResultMeaning.ANSWER, quote)
    if ran.kind is ToolKind.SHELL and phrases.EXPECTED_FAILURE.find(intent):
        return InterpretedResult(ResultMeaning.EXPECTED, quote)
    if not reading.has_edited and (CommandUse.CHECK in kinds or _is_first_test_run(kinds, intent, reading)):
        return InterpretedResult(ResultMeaning.ANSWER, quote)
    if CommandUse.TEST in kinds and ran.exit_code != 4:
        return InterpretedResult(ResultMeaning.TESTS_FAILED, quote)
    if any(one in ran.text.lower() for one in _HANGS):
        return InterpretedResult(ResultMeaning.HANGS, quote)
    if ran.kind is ToolKind.SHELL and (raised := _exception(ran.text)):
        return InterpretedResult(ResultMeaning.EXCEPTION, raised)
    return InterpretedResult(ResultMeaning.EXIT if ran.kind is ToolKind.SHELL else ResultMeaning.ERROR, quote)


def _is_first_test_run(kinds: Iterable[CommandUse], intent: str, reading: StepReading) -> bool:
    """Whether tests are run before any change, to see what is broken."""
    return CommandUse.TEST in kinds and not reading.step.calls[:-1] and phrases.TROUBLE.find(intent) is not None


def _exception(text: str) -> str | None:
    """The words of an exception, or None. The slow pattern is tried only if one of its words occurs."""
    low = text.lower()
    if not any(sign in low for sign in _SIGNS_OF_EXCEPTION):
        return None
    found = _EXCEPTION.search(low)
    return found[0].strip() if found else None


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""

"""What each tool result means: it went well, it is an answer, it was announced, or it failed, and then how and by whose doing."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from metaclaw.outcome import phrases, shell, words
from metaclaw.outcome.faults import environment_fault
from metaclaw.outcome.reading import Ran, Reading, ToolKind
from metaclaw.outcome.shell import Use
from metaclaw.outcome.tables import programs_of


class Meaning(StrEnum):
    """What one result came to."""

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


GOOD = frozenset((Meaning.FINE, Meaning.ANSWER, Meaning.EXPECTED, Meaning.TESTS_PASSED))


@dataclass(frozen=True, slots=True)
class Finding:
    """One result's meaning, with the words that show it."""

    meaning: Meaning
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


def findings(reading: Reading) -> tuple[Finding, ...]:
    """What every answered call came to."""
    intent = words.spoken(f"{reading.answer[-600:]} . {reading.step.task[:600]}")
    return tuple(_meaning(ran, reading, intent) for ran in reading.ran)


def _meaning(ran: Ran, reading: Reading, intent: str) -> Finding:
    failed = ran.says_failed
    if failed is None:
        failed = _looks_failed(ran)
    if not failed or ran.is_harmless:
        return _meaning_of_success(ran)
    return _meaning_of_failure(ran, reading, intent)


def _looks_failed(ran: Ran) -> bool:
    """For clients without a flag or an exit code: whether the first words are those of an error."""
    if ran.kind is ToolKind.READ:
        # A file may begin with the word error; a tool that could not read one says so in one short line.
        low = ran.text.lower() if len(ran.text) < 400 and ran.text.count("\n") < 4 else ""
        return _NO_SUCH_FILE.search(low) is not None or any(one in low for one in _SCHEMA)
    if any(one in ran.text[-200:].lower() for one in _HANGS):
        return True
    if shell.is_guarded(ran.command) or _only_looks(shell.uses(ran.command)):
        return False
    return _ERROR_HEAD.match(ran.text[:200]) is not None


def _meaning_of_success(ran: Ran) -> Finding:
    kinds = shell.uses(ran.command) if ran.kind is ToolKind.SHELL else ()
    if Use.TEST in kinds:
        if not _NOT_PASSED.search(ran.text) and (found := _PASSED.search(ran.text)):
            return Finding(Meaning.TESTS_PASSED, found[0].strip())
    elif ran.kind is ToolKind.SHELL and not _only_looks(kinds) and (quote := _exception(ran.text[-_TAIL_CHARS:])):
        return Finding(Meaning.EXCEPTION, quote)
    return Finding(Meaning.FINE, "")


def _only_looks(kinds: tuple[Use, ...]) -> bool:
    """Whether the output is something that was read, not something that happened: a `tail` behind a pipe does not make it so."""
    return bool(kinds) and kinds[0] in (Use.LOOK, Use.SEARCH, Use.COMPARE, Use.CHECK)


def _meaning_of_failure(ran: Ran, reading: Reading, intent: str) -> Finding:
    text = words.spoken(ran.text[:400])
    if found := phrases.REFUSED_BY_PERSON.find(text):
        return Finding(Meaning.REFUSED, found)
    if found := phrases.INTERRUPTED.find(text) or ("interrupted" if ran.exit_code == 130 else None):
        return Finding(Meaning.STOPPED, found)
    low = ran.text[:1_000].lower()
    if ran.kind is not ToolKind.SHELL or ran.exit_code is None:
        if found := next((one for one in _SCHEMA if one in low), None):
            return Finding(Meaning.SCHEMA, found)
        if unknown := _UNKNOWN_TOOL.search(low):
            return Finding(Meaning.UNKNOWN_TOOL, unknown[0])
    own = shell.is_local(ran.command) and reading.has_edited
    if not _tests_failed(ran) and (found := environment_fault(ran, is_own_server=own)):
        return Finding(Meaning.ENVIRONMENT, found)
    return _meaning_of_exit(ran, reading, intent)


def _tests_failed(ran: Ran) -> bool:
    """Whether tests ran and some failed: what their names and messages speak of, a rate limit or a timeout, is their subject."""
    return Use.TEST in shell.uses(ran.command) and _NOT_PASSED.search(ran.text) is not None


def _meaning_of_exit(ran: Ran, reading: Reading, intent: str) -> Finding:
    kinds = shell.uses(ran.command)
    quote = _last_line(ran.text)
    if ran.exit_code is not None and shell.answers_by_exit(ran.command, ran.exit_code):
        return Finding(Meaning.ANSWER, quote)
    if ran.kind is ToolKind.SHELL and phrases.EXPECTED_FAILURE.find(intent):
        return Finding(Meaning.EXPECTED, quote)
    if not reading.has_edited and (Use.CHECK in kinds or _is_a_first_look(kinds, intent, reading)):
        return Finding(Meaning.ANSWER, quote)
    if Use.TEST in kinds and ran.exit_code != 4:
        return Finding(Meaning.TESTS_FAILED, quote)
    if any(one in ran.text.lower() for one in _HANGS):
        return Finding(Meaning.HANGS, quote)
    if ran.kind is ToolKind.SHELL and (raised := _exception(ran.text)):
        return Finding(Meaning.EXCEPTION, raised)
    return Finding(Meaning.EXIT if ran.kind is ToolKind.SHELL else Meaning.ERROR, quote)


def _is_a_first_look(kinds: Iterable[Use], intent: str, reading: Reading) -> bool:
    """Tests are run, before anything was changed, to see what is broken."""
    return Use.TEST in kinds and not reading.step.calls[:-1] and phrases.TROUBLE.find(intent) is not None


def _exception(text: str) -> str | None:
    """The words of an exception. The pattern is slow, so that it is tried only where one of its words is there."""
    low = text.lower()
    if not any(sign in low for sign in _SIGNS_OF_EXCEPTION):
        return None
    found = _EXCEPTION.search(low)
    return found[0].strip() if found else None


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""

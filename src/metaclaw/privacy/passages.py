"""Passages of a session with their sources, and the facts of tool results."""

import json
import re
from dataclasses import dataclass
from enum import StrEnum

from metaclaw.domain.chat import Text, ToolCall, ToolResult


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
    r"(?:exit(?:ed)?(?: with)?(?: status| code)?|returncode|return code|status)[\"'>]?[ \t]*[:=>]?[ \t]*(-?\d{1,5})\b"
    r"|\"exit_?code\":[ ]?(-?\d{1,5})",
    re.IGNORECASE,
)
_ERROR_CLASS = re.compile(
    r"\b([A-Z]\w{1,40}(?:Error|Exception|Failure|Warning|Timeout|NotFound))\b|\b(E[A-Z]{4,14})\b|\b(TS\d{4}|E\d{3,4}"
    r"|error\[E\d{4}\]|SQLSTATE\[?\w{5}\]?|HTTP (?:4|5)\d\d|(?:4|5)\d\d (?:[A-Z][a-z]+ ?){1,3})"
)
_ERROR_LINE = re.compile(
    r"^.{0,300}?(?:\berror\b|exception\b|\bfailed\b|\bfailure\b|\bfatal\b|traceback|not found|no such|denied|cannot|can't"
    r"|could not|unable|invalid|unknown|unexpected"
    r"|missing|required|undefined|not permitted|refused|timed? out|conflict|expected|mismatch|unrecognized|unsupported"
    r"|not (?:a|allowed|supported|valid|defined|installed)).{0,300}$",
    re.IGNORECASE | re.MULTILINE,
)
_NAMED = re.compile(
    r"[`'\"‘“]([^`'\"‘’“”\n]{1,60})[`'\"’”]|(?:module|command|option|flag|file|script|package|argument|property|column|field"
    r"|key|target|branch|test)s?:? ([\w./@-]{2,60})"
)
_MAX_LOOK = 200_000
_MAX_NAMED = 12


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
    text = "\n".join(part.text for part in result.parts if isinstance(part, Text))
    look = text[:_MAX_LOOK]
    code = exit_code(look)
    ok = not result.is_error and not code
    found = None if ok else _ERROR_CLASS.search(look)
    arguments = _arguments(call)
    return ToolOutcome(
        call.name if call is not None else "unknown tool",
        tuple(arguments),
        ok,
        next((group for group in found.groups() if group), None) if found else None,
        code,
        _program(arguments),
        () if ok else _names(look),
        text,
    )


def exit_code(text: str) -> int | None:
    """The exit code in the text, or None."""
    found = _EXIT.search(text[:300]) or _EXIT.search(text[-300:])
    return int(found[1] or found[2]) if found else None


def error_lines(text: str) -> list[str]:
    """The lines that report an error."""
    return [found[0].strip() for found in _ERROR_LINE.finditer(text[:_MAX_LOOK])]


def _names(text: str) -> tuple[str, ...]:
    """Quoted names, and names after a noun, in error lines: a missing module, an unknown option."""
    names: dict[str, None] = {}
    for line in error_lines(text)[:20]:
        for found in _NAMED.finditer(line):
            name = (found[1] or found[2]).strip()
            if name.count(" ") <= 2 and not re.search(r"https?:|[|;&<>$]", name):
                names[name] = None
    return tuple(names)[:_MAX_NAMED]


def _arguments(call: ToolCall | None) -> dict[str, object]:
    try:
        value = json.loads(call.arguments) if call is not None else None
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _program(arguments: dict[str, object]) -> str | None:
    """The first words of a shell command."""
    command = next((arguments[key] for key in ("command", "cmd", "script") if key in arguments), None)
    words = command.split() if isinstance(command, str) else [str(word) for word in command] if isinstance(command, list) else []
    return " ".join(word for word in words[:3] if re.fullmatch(r"[\w./:@-]{1,40}", word)) or None

"""Shell commands: their purpose, and whether an exit code is an answer rather than a failure."""

import re
from enum import StrEnum

from metaclaw.outcome.phrases import programs_of

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


_USES = {program: use for use in CommandUse for program in programs_of(f"use_{use}")}
_WRAPPERS = frozenset(programs_of("wrappers"))
_EDITS = re.compile(r"\bsed -i|\bpatch\b|\btee\b|(?<![<>&\d])>{1,2}\s*[\w./~-]|\bgit apply\b|\bmv |\bcp |\brm |\bperl -\w*i")
_LOCAL = re.compile(r"localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\]|(?<!\S):\d{2,5}\b")
_GUARD = re.compile(r"\|\| ?(?:true|:|echo)\b|; ?true\b|\|\| ?:")
_TIME_LIMIT = re.compile(r"(?:^|[;&|]\s*)(?:sudo )?timeout \S")
_UNDOES = re.compile(
    r"\bgit (?:checkout (?:--? |HEAD\b|\.|[\w./-]+\.\w{1,8}\b)|restore (?!--staged)|reset --(?:hard|merge)|revert\b|clean -"
    r"|stash(?! (?:pop|apply|list|show))(?=\s*(?:$|push|-|drop)))"
)


def segments(command: str) -> list[list[str]]:
    """The programs of a command line with their first arguments, without wrappers such as `sudo` and `cd X &&`."""
    found = []
    for piece in _SEPARATORS.split(command[:_MAX_CHARS]):
        words = piece.split(None, 12)
        while words and (words[0] in _WRAPPERS or _ASSIGNMENT.match(words[0])):
            words = words[1:] if words[0] != "timeout" else words[2:]
        if words and words[0] != "cd":
            found.append(words)
    return found


def use_of(words: list[str]) -> CommandUse:
    """The purpose of one program."""
    if len(words) > 1 and (use := _USES.get(f"{words[0]} {words[1]}")):
        return use
    return _USES.get(words[0].rsplit("/", 1)[-1], CommandUse.OTHER)


def uses(command: str) -> tuple[CommandUse, ...]:
    """The purpose of each program of a command line, in order."""
    return tuple(use_of(words) for words in segments(command))


def answers_by_exit(command: str, exit_code: int) -> bool:
    """Whether the exit code is a negative answer: nothing found, files differ, condition false."""
    kinds = uses(command)
    if exit_code == 124 and _TIME_LIMIT.search(command[:_MAX_CHARS]):
        return True
    if not kinds or exit_code > 4:
        return False
    if kinds[-1] is CommandUse.LOOK:
        return "2>/dev/null" in command or "2>&1" in command
    asking = {CommandUse.SEARCH, CommandUse.COMPARE, CommandUse.ASK}
    if kinds[-1] in asking:
        return exit_code == 1 or kinds[-1] is CommandUse.ASK or (exit_code == 2 and "-exitcode" in command)
    return exit_code == 1 and "&&" in command and any(kind in asking for kind in kinds)


def is_guarded(command: str) -> bool:
    """Whether the command line ignores failures (`|| true`)."""
    return _GUARD.search(command[:_MAX_CHARS]) is not None


def is_local(command: str) -> bool:
    """Whether it talks to a server on this machine."""
    return _LOCAL.search(command[:_MAX_CHARS]) is not None


def edits(command: str) -> bool:
    """Whether it changes files."""
    return _EDITS.search(command[:_MAX_CHARS]) is not None


def undoes(command: str) -> bool:
    """Whether it discards changes."""
    return _UNDOES.search(command[:_MAX_CHARS]) is not None and "stash pop" not in command

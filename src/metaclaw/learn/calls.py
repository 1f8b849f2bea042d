"""A tool call in canonical form, and what it does to the world: looks at it, takes a note, changes a file, or who knows what.

Two calls with one `key` are the same call: the order of keys, blanks, harmless quotes and a model's remarks about what it is doing
make no difference. What a call does is judged by its tool's name and its command; whatever is not known to be harmless changes
everything.
"""

import json
import posixpath
import re
import shlex
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from metaclaw.domain.chat import Json, ToolCall
from metaclaw.learn.commands import canonical_command, only_looks, paths_read
from metaclaw.wires import call_name, decode_json


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_SHELL: Final = _set("bash shell sh terminal exec command cmd run execute powershell console")
_COMMANDS: Final = ("command", "cmd", "script")
_LOOKS: Final = _set("read get list ls view cat grep glob search find fetch show describe lookup stat inspect browse count status")
_CHANGES: Final = _set(
    "write edit create update delete remove set put post send patch apply insert replace move rename add commit push run execute"
    " submit kill start stop upload install save query"
)
_NOTES: Final = _set("todo todos plan think thinking")
_NOTE_VERBS: Final = _set("write read update create set list enter exit mode tool sequential")
_VERBS: Final = ("command", "action", "operation")
_PATHS: Final = ("file_path", "filepath", "path", "file", "filename", "notebook_path", "target_file", "absolute_path")
_PATCHED: Final = re.compile(r"^(?:\*\*\* (?:Add|Update|Delete) File: |\+\+\+ (?:b/)?)(\S[^\n\t]*)", re.MULTILINE)
# What a model says about a call, and how long it is ready to wait: no part of the question.
_REMARKS: Final = _set(
    "description explanation reason justification thought rationale why timeout timeout_ms timeout_s yield_time_ms"
)
# How much of the answer is wanted.
_AMOUNTS: Final = _set(
    "limit offset head_limit max_results num_results page_size max_output_tokens max_lines lines start_line end_line view_range"
    " max_length max_chars"
)


class Deed(StrEnum):
    """What a call does."""

    LOOK = "look"
    NOTE = "note"
    WRITE = "write"
    ANYTHING = "anything"


@dataclass(frozen=True, slots=True)
class Understood:
    """A call, understood. `loose` is its key without how much of the answer is wanted; `paths` is what it looks at or changes, or
    None where that may be anything."""

    name: str
    key: str
    loose: str
    deed: Deed
    paths: tuple[str, ...] | None

    @property
    def changes(self) -> bool:
        """Whether the world may be another one afterwards."""
        return self.deed in (Deed.WRITE, Deed.ANYTHING)

    def touches(self, other: "Understood") -> bool:
        """Whether the two may have to do with the same thing."""
        if self.paths is None or other.paths is None:
            return True
        return any(_overlap(mine, theirs) for mine in self.paths for theirs in other.paths)


def understand(call: ToolCall) -> Understood:
    """What a call is, and what it does."""
    name = call_name(call)
    arguments = _decoded(call.arguments)
    if not isinstance(arguments, dict):
        key = f"{name} {json.dumps(arguments)}"
        return Understood(name, key, key, Deed.ANYTHING, None)
    words = {word.lower() for word in _WORDS.findall(name)}
    command = _command(arguments) if words & _SHELL else None
    deed = _deed(words, command, arguments)
    paths = paths_read(command) if command is not None else _paths(arguments)
    if command is None and deed is not Deed.LOOK:
        key = _key(name, arguments, None)
        return Understood(name, key, key, deed, paths)
    kept = {key: _trimmed(value) for key, value in arguments.items() if key.lower() not in _REMARKS}
    fewer = {key: value for key, value in kept.items() if key.lower() not in _AMOUNTS}
    return Understood(name, _key(name, kept, command), _key(name, fewer, command), deed, paths)


def _deed(words: set[str], command: str | None, arguments: dict[str, Json]) -> Deed:
    if command is not None:
        return Deed.LOOK if only_looks(command) else Deed.ANYTHING
    if words & _NOTES and words <= _NOTES | _NOTE_VERBS:
        return Deed.NOTE
    # One tool for many things says in an argument which of them it does: `{"command": "view", "path": …}`.
    verbs = {verb for name in _VERBS if isinstance(verb := arguments.get(name), str)}
    if verbs & _LOOKS or (not verbs and words & _LOOKS and not words & _CHANGES):
        return Deed.LOOK
    return Deed.WRITE if (words | verbs) & _CHANGES and _paths(arguments) else Deed.ANYTHING


def _decoded(arguments: str) -> Json:
    try:
        return decode_json(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments.strip()


def _command(arguments: dict[str, Json]) -> str | None:
    """The command line, whether it comes as text, as words, or as words for a shell that is given the text."""
    value = next((arguments[name] for name in _COMMANDS if name in arguments), None)
    match value:
        case str():
            return value
        case [str() as shell, str() as flag, str() as line] if posixpath.basename(shell) in ("bash", "sh", "zsh") and "c" in flag:
            return line
        case [str(), *_]:
            return shlex.join(str(word) for word in value)
        case _:
            return None


def _paths(arguments: dict[str, Json]) -> tuple[str, ...] | None:
    """The files a call names; None where it names none."""
    found = [value for name in _PATHS if isinstance(value := arguments.get(name), str) and value.strip()]
    if not found and isinstance(patch := arguments.get("input") or arguments.get("patch"), str):
        found = _PATCHED.findall(patch)
    return tuple(sorted({_clean(path) for path in found})) or None


def _clean(path: str) -> str:
    return path.strip() if "://" in path else posixpath.normpath(path.strip())


def _overlap(mine: str, theirs: str) -> bool:
    """Whether two paths may be one, or one may lie in the other. Where a relative path begins is not known."""
    if mine == theirs or "." in (mine, theirs):
        return True
    short, long = sorted((mine.strip("/"), theirs.strip("/")), key=len)
    return f"/{short}/" in f"/{long}/"


def _key(name: str, arguments: dict[str, Json], command: str | None) -> str:
    shown = {key: _canonical(key, value) for key, value in arguments.items() if value is not None}
    if command is not None:
        shown = {key: value for key, value in shown.items() if key not in _COMMANDS} | {"command": canonical_command(command)}
    return f"{name} {json.dumps(shown, sort_keys=True, separators=(',', ':'))}"


def _canonical(key: str, value: Json) -> Json:
    match value:
        case str() if key in _PATHS and value.strip():
            return _clean(value)
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_canonical("", item) for item in value]
        case dict():
            return {name: _canonical(name, item) for name, item in value.items() if item is not None}
        case _:
            return value


def _trimmed(value: Json) -> Json:
    return value.strip() if isinstance(value, str) else value

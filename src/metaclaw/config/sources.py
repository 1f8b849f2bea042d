"""Sources of values (defaults, lines of the file, environment variables, options), and the position
of each key in a TOML text.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """One header or one `key = value`; lines count from 1. `in_table` is the table that contains
    it; for a header, its own.
    """

    path: KeyPath
    in_table: KeyPath
    is_header: bool
    first_line: int
    last_line: int


def statements(text: str) -> Iterator[Statement]:
    """Every header and assignment, in the order they are written."""
    table: KeyPath = ()
    tables: Counter[tuple[str, ...]] = Counter()
    at = 0
    while (at := _skip_blank(text, at)) < len(text):
        begin = at
        is_header = text[at] == "["
        if is_header:
            width = 2 if text.startswith("[[", at) else 1
            at = _skip_to(text, at + width, "]")
            names = _names(text[begin + width : at])
            if width == 2:
                tables[names] += 1
            table = path = _numbered(names, tables)
        else:
            at = _skip_to(text, at, "=")
            path = table + _names(text[begin:at])
        at = _skip_to(text, at, "\n")
        first = text.count("\n", 0, begin) + 1
        yield Statement(
            path, table, is_header, first, text.count("\n", 0, min(at, len(text.rstrip()))) + 1
        )


def line_of(text: str, path: Sequence[str | int]) -> int | None:
    """The line of a key, or of the innermost statement that contains it."""
    best: Statement | None = None
    for statement in statements(text):
        depth = len(statement.path)
        if tuple(path[:depth]) == statement.path and (best is None or depth > len(best.path)):
            best = statement
    return None if best is None else best.first_line


def _numbered(names: tuple[str, ...], tables: Counter[tuple[str, ...]]) -> KeyPath:
    """A header's path. After each part that is an array of tables follows the index of its newest
    element.
    """
    path: list[str | int] = []
    for depth, name in enumerate(names, 1):
        path.append(name)
        if names[:depth] in tables:
            path.append(tables[names[:depth]] - 1)
    return tuple(path)


def _names(key: str) -> tuple[str, ...]:
    """The parts of a key as written: bare, quoted and dotted."""
    names: list[str] = []
    value: object = tomllib.loads(f"{key.strip()} = 0")
    while isinstance(value, dict):
        name, value = next(iter(value.items()))
        names.append(name)
    return tuple(names)


def _skip_blank(text: str, at: int) -> int:
    while at < len(text):
        if text[at] == "#":
            at = _line_end(text, at)
        elif text[at].isspace():
            at += 1
        else:
            break
    return at


def _skip_to(text: str, at: int, stop: str) -> int:
    """The position of `stop` outside strings, comments and brackets; the end of the text if there
    is none.
    """
    depth = 0
    while at < len(text):
        char = text[at]
        if depth == 0 and char == stop:
            return at
        if char in "\"'":
            at = _string_end(text, at)
            continue
        if char == "#":
            at = _line_end(text, at)
            continue
        depth += (char in "[{") - (char in "]}" and depth > 0)
        at += 1
    return at


def _string_end(text: str, at: int) -> int:
    quote = text[at]
    fence = quote * 3 if text.startswith(quote * 3, at) else quote
    at += len(fence)
    while at < len(text):
        if quote == '"' and text[at] == "\\":
            at += 2
        elif text.startswith(fence, at):
            at += len(fence)
            # A multi-line string may contain one or two quotes right before the fence.
            while len(fence) == 3 and text.startswith(quote, at):
                at += 1
            return at
        else:
            at += 1
    return at


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


LISTS = ("providers", "teams")
"""The sections that are lists of tables, each entry with a `name`."""


OPTIONAL = ("policy",)
"""Sections that are off if absent: they have defaults only if they are written."""

_NAME = re.compile(r"(?=.*[^\W\d])[\w-]+")


class SourceKind(StrEnum):
    """The sources, weakest first."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    OPTION = "option"


@dataclass(frozen=True, slots=True)
class ValueSource:
    """The source of a value; `name` is file:line, a variable or an option."""

    kind: SourceKind
    name: str

    def __str__(self) -> str:
        return self.name


DEFAULT = ValueSource(SourceKind.DEFAULT, "default")


@dataclass(frozen=True, slots=True)
class ValueAssignment:
    """One `key = value` from outside the file, parsed for the key's type."""

    path: KeyPath
    value: object
    source: ValueSource


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The text of the file and its tree; both empty if it does not exist."""

    path: Path
    text: str
    tree: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ValueSources:
    """The layers of a configuration; the last assignment to a key wins."""

    file: ConfigFile
    assignments: Sequence[ValueAssignment]

    def of(self, key: str) -> ValueSource:
        return self.of_path(path_of(key))

    def of_path(self, path: KeyPath) -> ValueSource:
        """The source of a key, or of the nearest part of the tree around it."""
        for assignment in reversed(self.assignments):
            depth = min(len(path), len(assignment.path))
            if path[:depth] == assignment.path[:depth] and (
                len(path) >= len(assignment.path) or not self._has(path)
            ):
                return assignment.source
        return self._line(path) if self._has(path) else DEFAULT

    def around(self, path: KeyPath) -> ValueSource:
        """The source to show for a key that may be missing: that of the innermost part of the path
        that has one.
        """
        for depth in range(len(path), 0, -1):
            source = self.of_path(path[:depth])
            if source != DEFAULT:
                return source
        return ValueSource(SourceKind.FILE, str(self.file.path))

    def _has(self, path: KeyPath) -> bool:
        here: object = self.file.tree
        for part in path:
            if isinstance(here, list):
                here = dict(enumerate(here))
            if not isinstance(here, Mapping) or part not in here:
                return False
            here = here[part]
        return True

    def _line(self, path: KeyPath) -> ValueSource:
        line = line_of(self.file.text, path)
        return ValueSource(
            SourceKind.FILE, f"{self.file.path}:{line}" if line else str(self.file.path)
        )


def path_of(key: str) -> KeyPath:
    """`providers.0.name` as a path; a part of digits is a position."""
    return tuple(int(part) if part.isdecimal() else part for part in key.split("."))


def key_of(path: Sequence[str | int]) -> str:
    return ".".join(str(part) for part in path)


def named_key_of(path: Sequence[str | int], names: Sequence[object]) -> str:
    """A path as a dotted key as `--set` takes it, with the name of a list entry in place of its
    position. The position stays if the entry has no usable name, or if the path leads to the
    name."""
    if (
        len(path) > 1
        and isinstance(path[1], int)
        and tuple(path[2:]) != ("name",)
        and path[1] < len(names)
    ):
        name = names[path[1]]
        if isinstance(name, str) and names.count(name) == 1 and _NAME.fullmatch(name):
            path = (path[0], name, *path[2:])
    return key_of(path)

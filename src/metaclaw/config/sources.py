"""Sources of values (defaults, lines of the file, environment variables, options), and the position
of each key in a TOML text.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """One header or one `key = value`; lines count from 1. `in_table` is the table that contains
    it; for a header, its own. `paths` are the parts of the tree that begin with it.
    """

    in_table: KeyPath
    first_line: int
    last_line: int
    paths: frozenset[KeyPath]


@lru_cache(maxsize=8)
def statements(text: str) -> tuple[Statement, ...]:
    """Every header and assignment of a valid text, in the order they are written. A statement ends
    with the first line up to which the text can be parsed."""
    found: list[Statement] = []
    table: KeyPath = ()
    known: set[KeyPath] = set()
    first_line = 0
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        first_line = first_line or number
        try:
            tree = tomllib.loads("\n".join(lines[:number]) + "\n")
        except tomllib.TOMLDecodeError:
            continue
        first = lines[first_line - 1]
        if first.lstrip().startswith("["):
            table = _table_of(first, tree)
        paths = {table, *_paths(tree)} - known
        found.append(Statement(table, first_line, number, frozenset(paths)))
        known |= paths
        first_line = 0
    return tuple(found)


def line_of(text: str, path: Sequence[str | int]) -> int | None:
    """The line at which a key begins, or the innermost part of the tree that contains it."""
    for depth in range(len(path), 0, -1):
        for statement in statements(text):
            if tuple(path[:depth]) in statement.paths:
                return statement.first_line
    return None


def _table_of(header: str, tree: Mapping[str, object]) -> KeyPath:
    """A header's path. After each part that is an array of tables follows the index of its newest
    element.
    """
    path: list[str | int] = []
    names: object = tomllib.loads(header + "\n")
    here: object = tree
    while names:
        if isinstance(names, list):
            names = names[0]
            continue
        assert isinstance(names, dict)
        assert isinstance(here, dict)
        name, names = next(iter(names.items()))
        path.append(name)
        here = here[name]
        if isinstance(here, list):
            path.append(len(here) - 1)
            here = here[-1]
    return tuple(path)


def _paths(value: object, path: KeyPath = ()) -> Iterator[KeyPath]:
    """The paths of everything inside a value."""
    inside: Mapping[Any, object] = {}
    if isinstance(value, Mapping):
        inside = value
    elif isinstance(value, list):
        inside = dict(enumerate(value))
    for name, part in inside.items():
        yield (*path, name)
        yield from _paths(part, (*path, name))


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

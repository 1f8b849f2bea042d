"""Where a value comes from: a default, a line of the file, an environment variable, an option."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from metaclaw.config.lines import KeyPath, line_of

LISTS = ("providers", "teams")
"""The sections that are lists of tables, each entry with a `name`."""


OPTIONAL = ("policy",)
"""The sections whose absence says something: they have no defaults unless they are written."""

_NAME = re.compile(r"(?=.*[^\W\d])[\w-]+")


class SourceKind(StrEnum):
    """The four layers, weakest first."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    OPTION = "option"


@dataclass(frozen=True, slots=True)
class Source:
    """One origin; `name` is how a person finds it (file:line, variable, option)."""

    kind: SourceKind
    name: str

    def __str__(self) -> str:
        return self.name


DEFAULT = Source(SourceKind.DEFAULT, "default")


@dataclass(frozen=True, slots=True)
class Assignment:
    """One `key = value` from outside the file, its value already parsed for the key's type."""

    path: KeyPath
    value: object
    source: Source


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The file as read: its text and the tree in it. An absent file is an empty one."""

    path: Path
    text: str
    tree: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Sources:
    """The layers one configuration was made from; the last assignment to a key wins."""

    file: ConfigFile
    assignments: Sequence[Assignment]

    def of(self, key: str) -> Source:
        """The origin of a dotted key."""
        return self.of_path(path_of(key))

    def of_path(self, path: KeyPath) -> Source:
        """The origin of a key, or of the part of the tree around it that has one."""
        for assignment in reversed(self.assignments):
            depth = min(len(path), len(assignment.path))
            if path[:depth] == assignment.path[:depth] and (len(path) >= len(assignment.path) or not self._has(path)):
                return assignment.source
        return self._line(path) if self._has(path) else DEFAULT

    def around(self, path: KeyPath) -> Source:
        """The nearest origin to point a person at, for a key that may be written nowhere."""
        for depth in range(len(path), 0, -1):
            source = self.of_path(path[:depth])
            if source != DEFAULT:
                return source
        return Source(SourceKind.FILE, str(self.file.path))

    def _has(self, path: KeyPath) -> bool:
        here: object = self.file.tree
        for part in path:
            if isinstance(here, list):
                here = dict(enumerate(here))
            if not isinstance(here, Mapping) or part not in here:
                return False
            here = here[part]
        return True

    def _line(self, path: KeyPath) -> Source:
        line = line_of(self.file.text, path)
        return Source(SourceKind.FILE, f"{self.file.path}:{line}" if line else str(self.file.path))


def path_of(key: str) -> KeyPath:
    """`providers.0.name` as a path; a part of digits is a position."""
    return tuple(int(part) if part.isdecimal() else part for part in key.split("."))


def key_of(path: Sequence[str | int]) -> str:
    """A path as a dotted key."""
    return ".".join(str(part) for part in path)


def named_key_of(path: Sequence[str | int], names: Sequence[object]) -> str:
    """A path as a dotted key, with the entry of a list by its name as `--set` takes it. Its position stays where the entry has
    no usable name, and where the name itself is meant."""
    if len(path) > 1 and isinstance(path[1], int) and tuple(path[2:]) != ("name",) and path[1] < len(names):
        name = names[path[1]]
        if isinstance(name, str) and names.count(name) == 1 and _NAME.fullmatch(name):
            path = (path[0], name, *path[2:])
    return key_of(path)

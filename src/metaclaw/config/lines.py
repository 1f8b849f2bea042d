"""Where in a TOML text each table and key stands. The text is known to parse; nothing is validated here."""

import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """One header or one `key = value`; lines count from 1. `in_table` is the table it stands in (a header: itself)."""

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
        yield Statement(path, table, is_header, first, text.count("\n", 0, min(at, len(text.rstrip()))) + 1)


def line_of(text: str, path: Sequence[str | int]) -> int | None:
    """The line of a key, or of the nearest thing around it that is written on a line of its own."""
    best: Statement | None = None
    for statement in statements(text):
        depth = len(statement.path)
        if tuple(path[:depth]) == statement.path and (best is None or depth > len(best.path)):
            best = statement
    return None if best is None else best.first_line


def _numbered(names: tuple[str, ...], tables: Counter[tuple[str, ...]]) -> KeyPath:
    """A header's path, with the number of the newest element wherever a part of it is an array of tables."""
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
    """The position of `stop` outside strings, comments and brackets; the end of the text if there is none."""
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
            # A multi-line string may end in one or two quotes of its own before the fence.
            while len(fence) == 3 and text.startswith(quote, at):
                at += 1
            return at
        else:
            at += 1
    return at


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end

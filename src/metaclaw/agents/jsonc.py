"""Change JSON in place, also with comments, trailing commas, single quotes and bare keys (JSONC,
JSON5).
"""

import json
import re
from typing import Never

from metaclaw.agents.formats import (
    Entry,
    KeyPath,
    UnreadableTextError,
    ValueNode,
    newline_of,
    parent_of,
    put,
)

_SPACE = re.compile(r"(?:[\s\ufeff]|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'', re.DOTALL)
_WORD = re.compile(r"[^\s,:{}\[\]\"'/]+")
_CONSTANTS: dict[str, object] = {"true": True, "false": False, "null": None}
_MOST_DEPTH = 200


class JsonFormat:
    """JSON as agents write it."""

    name = "JSON"
    is_appending = False

    def read(self, text: str) -> object:
        """The values in the text; an empty text is an empty object."""
        return _values(_Reader(text).whole())

    def put(self, text: str, path: KeyPath, value: object) -> str:
        if not text.strip():
            text = "{}" + (newline_of(text) if text else "\n")
        return put(self, text, _Reader(text).whole(), path, value)

    def remove(self, text: str, path: KeyPath) -> str:
        """Remove an entry and its comma."""
        found = parent_of(_Reader(text).whole(), path) if text.strip() else None
        if found is None:
            return text
        node, place = found
        start, end = node.entries[place].start, node.entries[place].node.end
        after = _SPACE.match(text, end)
        if after is not None and text[after.end() : after.end() + 1] == ",":
            end = after.end() + 1
        elif place > 0:
            return _without_comma_before(text, node.entries[place - 1].node.end, start, end)
        return _without_blank_line(text, start, end)

    def replaced(self, text: str, node: ValueNode, value: object) -> str:
        return (
            text[: node.start]
            + self._rendered(text, value, _indent_at(text, node.start))
            + text[node.end :]
        )

    def inserted(self, text: str, node: ValueNode, key: str | None, value: object) -> str:
        """Insert a new first entry, on its own line if the others are."""
        newline = newline_of(text)
        head = "" if key is None else f"{json.dumps(key)}: "
        if not node.entries:
            outer = _indent_at(text, node.start)
            inner = outer + _unit(text)
            entry = f"{newline}{inner}{head}{self._rendered(text, value, inner)}"
            rest = text[node.start + 1 :]
            closes = rest.lstrip(" \t").startswith(("}", "]"))
            tail = (
                newline + outer + rest.lstrip(" \t")
                if closes
                else ("" if _ends_line_first(rest) else newline) + rest
            )
            return text[: node.start + 1] + entry + tail
        first = node.entries[0].start
        line = text[text.rfind("\n", 0, first) + 1 : first]
        gap = newline + line if line.strip() == "" and "\n" in text[node.start : first] else " "
        indent = line if gap != " " else _indent_at(text, first)
        return text[:first] + f"{head}{self._rendered(text, value, indent)},{gap}" + text[first:]

    def _rendered(self, text: str, value: object, indent: str) -> str:
        shown = json.dumps(value, indent=_unit(text), ensure_ascii=False)
        return shown.replace("\n", newline_of(text) + indent)


def _without_comma_before(text: str, before: int, start: int, end: int) -> str:
    """Remove the last entry of several and the comma before it; comments around it stay."""
    space = _SPACE.match(text, before)
    assert space is not None
    comma = space.end()
    rest = _without_blank_line(text, start, end)
    return rest[:comma] + rest[comma + 1 :]


def _without_blank_line(text: str, start: int, end: int) -> str:
    """Remove a span of text, and its line if that is empty then."""
    begin = text.rfind("\n", 0, start) + 1
    if text[begin:start].strip() == "":
        follow = re.compile(r"[ \t]*(\r?\n)?").match(text, end)
        assert follow is not None
        if follow[1]:
            return text[:begin] + text[follow.end() :]
        return text[:start] + text[follow.end() :]
    return text[:start] + text[end:].removeprefix(" ")


def _ends_line_first(rest: str) -> bool:
    """Whether the rest of the line is empty or a comment."""
    line = rest.partition("\n")[0].strip()
    return line == "" or line.startswith("//")


def _indent_at(text: str, place: int) -> str:
    line = text[text.rfind("\n", 0, place) + 1 : place]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _unit(text: str) -> str:
    """The unit of indentation in this text."""
    found = re.search(r"\n([ \t]+)[^\s]", text)
    return found[1] if found else "  "


def _values(node: ValueNode) -> object:
    if node.kind == "mapping":
        return {entry.key: _values(entry.node) for entry in node.entries}
    if node.kind == "list":
        return [_values(entry.node) for entry in node.entries]
    return node.value


class _Reader:
    """Parses a text, keeping the position of each value."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def whole(self) -> ValueNode:
        if not self._text.strip():
            return ValueNode("mapping", 0, 0)
        self._skip()
        node = self._node(0)
        self._skip()
        if self._at < len(self._text):
            self._fail("something follows after the end")
        if node.kind != "mapping":
            self._at = 0
            self._fail("it is not an object")
        return node

    def _node(self, depth: int) -> ValueNode:
        if depth > _MOST_DEPTH:
            self._fail("it is nested too deeply")
        start = self._at
        opening = self._text[start : start + 1]
        if opening == "{":
            return ValueNode("mapping", start, entries=self._entries("}", depth), end=self._at)
        if opening == "[":
            return ValueNode("list", start, entries=self._entries("]", depth), end=self._at)
        value = self._scalar()
        return ValueNode("scalar", start, self._at, value)

    def _entries(self, closing: str, depth: int) -> tuple[Entry, ...]:
        self._at += 1
        found: list[Entry] = []
        self._skip()
        while self._text[self._at : self._at + 1] != closing:
            start = self._at
            key = self._key() if closing == "}" else None
            found.append(Entry(key, start, self._node(depth + 1)))
            self._skip()
            if self._text[self._at : self._at + 1] == ",":
                self._at += 1
                self._skip()
            elif self._text[self._at : self._at + 1] != closing:
                self._fail(f'expected "," or "{closing}"')
        self._at += 1
        return tuple(found)

    def _key(self) -> str:
        word = _WORD.match(self._text, self._at)
        if word is not None:
            self._at, key = word.end(), word[0]
        else:
            key = str(self._string())
        self._skip()
        if self._text[self._at : self._at + 1] != ":":
            self._fail('expected ":" after a key')
        self._at += 1
        self._skip()
        return key

    def _scalar(self) -> object:
        if self._text[self._at : self._at + 1] in ("'", '"'):
            return self._string()
        word = _WORD.match(self._text, self._at)
        if word is None:
            self._fail("expected a value")
        self._at = word.end()
        if word[0] in _CONSTANTS:
            return _CONSTANTS[word[0]]
        try:
            return json.loads(word[0])
        except ValueError:
            pass
        if not re.fullmatch(
            r"[+-]?(Infinity|NaN|0[xX][0-9a-fA-F]+|\d*\.?\d*([eE][+-]?\d+)?)", word[0]
        ):
            self._at = word.start()
            self._fail("expected a value")
        return word[0]

    def _string(self) -> str:
        found = _STRING.match(self._text, self._at)
        if found is None:
            self._fail("expected a text in quotes")
        self._at = found.end()
        inner = found[0]
        if inner.startswith("'"):
            inner = '"' + inner[1:-1].replace("\\'", "'").replace('"', '\\"') + '"'
        try:
            return str(json.loads(inner, strict=False))
        except ValueError:
            return inner[1:-1]

    def _skip(self) -> None:
        space = _SPACE.match(self._text, self._at)
        assert space is not None
        self._at = space.end()

    def _fail(self, why: str) -> Never:
        line = self._text.count("\n", 0, self._at) + 1
        raise UnreadableTextError(f"line {line}: {why}")

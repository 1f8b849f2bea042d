"""Paths into a configuration, what every format can do with one, and values with their places for formats that nest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Item:
    """The element of a list whose `key` has this value."""

    key: str
    value: str


KeyPath: TypeAlias = tuple[str | Item, ...]


class UnreadableTextError(ValueError):
    """The text is not valid in its format; the message says where and why."""


class TextFormat(Protocol):
    """One format. Texts are whole files; `put` and `remove` return the changed text."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    def read(self, text: str) -> object:
        """The values in the text. Raises UnreadableTextError."""
        ...

    def put(self, text: str, path: KeyPath, value: object) -> str:
        """Set the value at a path, making what leads to it."""
        ...

    def remove(self, text: str, path: KeyPath) -> str:
        """Remove the value at a path with its key; a path that is not there changes nothing."""
        ...


def newline_of(text: str) -> str:
    """The line ending that a text uses."""
    return "\r\n" if "\r\n" in text else "\n"


def nested(path: Sequence[str | Item], value: object) -> object:
    """The value inside the sections and lists that a path leads through."""
    for part in reversed(path):
        if isinstance(part, Item):
            inner = value if isinstance(value, dict) else {}
            value = [{part.key: part.value, **inner}]
        else:
            value = {part: value}
    return value


def lookup(tree: object, path: Sequence[str | Item]) -> tuple[bool, object]:
    """Whether there is a value at the path, and the value."""
    for part in path:
        if isinstance(part, Item):
            found = _element(tree, part)
            if found is None:
                return False, None
            tree = found
        elif isinstance(tree, Mapping) and part in tree:
            tree = tree[part]
        else:
            return False, None
    return True, tree


def with_value(tree: object, path: Sequence[str | Item], value: object) -> object:
    """A copy of the tree with the value at the path."""
    if not path:
        return value
    part, rest = path[0], path[1:]
    if isinstance(part, Item):
        if not isinstance(tree, list):
            return nested(path, value)
        known = _element(tree, part)
        if known is None:
            return [*_as_list(nested(path, value)), *tree]
        return [with_value(one, rest, value) if one is known else one for one in tree]
    if not isinstance(tree, Mapping):
        return nested(path, value)
    if part not in tree:
        return {**tree, part: nested(rest, value)}
    return {**tree, part: with_value(tree[part], rest, value)}


def _as_list(value: object) -> list[object]:
    assert isinstance(value, list)
    return value


def _element(tree: object, item: Item) -> object:
    if not isinstance(tree, list):
        return None
    return next((one for one in tree if isinstance(one, Mapping) and one.get(item.key) == item.value), None)


@dataclass(frozen=True, slots=True)
class ValueNode:
    """One value: `text[start:end]`."""

    kind: Literal["mapping", "list", "scalar"]
    start: int
    end: int
    value: object = None
    entries: "tuple[Entry, ...]" = ()
    is_flow: bool = True

    def find(self, part: str | Item) -> "Entry | None":
        """The entry for one part of a path; of several with the same key the last, which is the one that counts."""
        if isinstance(part, str):
            return next((entry for entry in reversed(self.entries) if self.kind == "mapping" and entry.key == part), None)
        return next((entry for entry in self.entries if self.kind == "list" and _is_item(entry.node, part)), None)


@dataclass(frozen=True, slots=True)
class Entry:
    """One key with its value, or one element of a list, beginning at `start`."""

    key: str | None
    start: int
    node: ValueNode = field(compare=False)


class Writer(Protocol):
    """How a format writes into a text."""

    def replaced(self, text: str, node: ValueNode, value: object) -> str:
        """The text with another value at this place."""
        ...

    def inserted(self, text: str, node: ValueNode, key: str | None, value: object) -> str:
        """The text with a new first entry in this mapping or list."""
        ...


def put(writer: Writer, text: str, root: ValueNode, path: KeyPath, value: object) -> str:
    """Set the value at a path below `root`."""
    node = root
    for depth, part in enumerate(path):
        if node.kind != ("list" if isinstance(part, Item) else "mapping"):
            return writer.replaced(text, node, nested(path[depth:], value))
        entry = node.find(part)
        if entry is None:
            return _insert(writer, text, node, path[depth:], value)
        node = entry.node
    return writer.replaced(text, node, value)


def _insert(writer: Writer, text: str, node: ValueNode, path: Sequence[str | Item], value: object) -> str:
    part = path[0]
    if isinstance(part, str):
        return writer.inserted(text, node, part, nested(path[1:], value))
    made = nested(path, value)
    assert isinstance(made, list)
    return writer.inserted(text, node, None, made[0])


def parent_of(root: ValueNode, path: KeyPath) -> tuple[ValueNode, int] | None:
    """The mapping or list that holds the last part of a path, and which of its entries that is."""
    node = root
    for part in path[:-1]:
        entry = node.find(part)
        if entry is None:
            return None
        node = entry.node
    entry = node.find(path[-1])
    return None if entry is None else (node, next(place for place, one in enumerate(node.entries) if one is entry))


def _is_item(node: ValueNode, item: Item) -> bool:
    return any(entry.key == item.key and entry.node.value == item.value for entry in node.entries)

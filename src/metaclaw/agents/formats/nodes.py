"""Values of a text with their places in it, for formats whose sections nest: JSON and YAML."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from metaclaw.agents.formats.path import Item, KeyPath, nested


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

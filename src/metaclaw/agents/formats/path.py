"""Paths into a configuration, and what every format can do with one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias


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

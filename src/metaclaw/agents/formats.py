"""Change configuration files as text, so that all other bytes stay: common parts, and YAML. JSON is
in `jsonc`, TOML in `toml`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import msgspec

if TYPE_CHECKING:
    import yaml


class Item(msgspec.Struct, frozen=True, array_like=True):
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
        """The format's name in messages."""

    @property
    def is_appending(self) -> bool:
        """Whether `put` adds new entries behind the others of their section."""

    def read(self, text: str) -> object:
        """The values in the text. Raises UnreadableTextError."""

    def put(self, text: str, path: KeyPath, value: object) -> str:
        """Set the value at a path, creating missing sections."""

    def remove(self, text: str, path: KeyPath) -> str:
        """Remove the value at a path with its key; a missing path changes nothing."""


def newline_of(text: str) -> str:
    """The line ending that a text uses."""
    return "\r\n" if "\r\n" in text else "\n"


def nested(path: Sequence[str | Item], value: object) -> object:
    """Wrap the value in the sections and lists of a path."""
    for part in reversed(path):
        value = [_new_element(part, value)] if isinstance(part, Item) else {part: value}
    return value


def _new_element(item: Item, values: object) -> dict[str, object]:
    return {item.key: item.value, **(values if isinstance(values, dict) else {})}


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
            return [_new_element(part, nested(rest, value)), *tree]
        return [
            with_value(element, rest, value) if element is known else element for element in tree
        ]
    if not isinstance(tree, Mapping):
        return nested(path, value)
    if part not in tree:
        return {**tree, part: nested(rest, value)}
    return {**tree, part: with_value(tree[part], rest, value)}


def _element(tree: object, item: Item) -> object:
    if not isinstance(tree, list):
        return None
    elements = (element for element in tree if isinstance(element, Mapping))
    return next((element for element in elements if element.get(item.key) == item.value), None)


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
        """The entry for one part of a path; of duplicate keys the last one, which counts."""
        if isinstance(part, str):
            return next(
                (
                    entry
                    for entry in reversed(self.entries)
                    if self.kind == "mapping" and entry.key == part
                ),
                None,
            )
        return next(
            (entry for entry in self.entries if self.kind == "list" and _is_item(entry.node, part)),
            None,
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """One key with its value, or one element of a list, beginning at `start`."""

    key: str | None
    start: int
    node: ValueNode = field(compare=False)


class Writer(Protocol):
    """Writes values into a text of one format."""

    def replaced(self, text: str, node: ValueNode, value: object) -> str:
        """The text with another value in place of the node."""

    def inserted(self, text: str, node: ValueNode, key: str | None, value: object) -> str:
        """The text with a new first entry in this mapping or list."""


def put(writer: Writer, text: str, root: ValueNode, path: KeyPath, value: object) -> str:
    """Set the value at a path below `root`."""
    node = root
    for depth, part in enumerate(path):
        if node.kind != ("list" if isinstance(part, Item) else "mapping"):
            return writer.replaced(text, node, nested(path[depth:], value))
        entry = node.find(part)
        if entry is None:
            made = nested(path[depth + 1 :], value)
            if isinstance(part, Item):
                return writer.inserted(text, node, None, _new_element(part, made))
            return writer.inserted(text, node, part, made)
        node = entry.node
    return writer.replaced(text, node, value)


def parent_of(root: ValueNode, path: KeyPath) -> tuple[ValueNode, int] | None:
    """The mapping or list with the last part of a path, and the index of the entry; None if it is
    missing.
    """
    node = root
    for part in path[:-1]:
        entry = node.find(part)
        if entry is None:
            return None
        node = entry.node
    entry = node.find(path[-1])
    return (
        None
        if entry is None
        else (node, next(index for index, other in enumerate(node.entries) if other is entry))
    )


def _is_item(node: ValueNode, item: Item) -> bool:
    return any(entry.key == item.key and entry.node.value == item.value for entry in node.entries)


class YamlFormat:
    """YAML whose top level is a mapping."""

    name = "YAML"
    is_appending = False

    def read(self, text: str) -> object:
        """The values in the text; an empty text is an empty mapping."""
        import yaml  # slow to import, so imported where it is used

        self._root(text)
        try:
            return yaml.safe_load(text) or {}
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise UnreadableTextError(_yaml_error(error)) from error

    def put(self, text: str, path: KeyPath, value: object) -> str:
        return put(self, text, self._root(text), path, value)

    def remove(self, text: str, path: KeyPath) -> str:
        """Remove an entry with its lines."""
        found = parent_of(self._root(text), path)
        if found is None:
            return text
        node, place = found
        entry = node.entries[place]
        end = _last_place(entry.node)
        if not node.is_flow:
            begin = text.rfind("\n", 0, entry.start) + 1
            stop = text.find("\n", end)
            return text[:begin] + (text[stop + 1 :] if stop >= 0 else "")
        if place + 1 < len(node.entries):
            return text[: entry.start] + text[node.entries[place + 1].start :]
        before = _last_place(node.entries[place - 1].node) if place else entry.start
        return text[:before] + text[end:]

    def replaced(self, text: str, node: ValueNode, value: object) -> str:
        end = _last_place(node)
        if not node.is_flow:
            return f"{text[: node.start].rstrip()} {_yaml_value(value)}{text[end:]}"
        lead = " " if node.start and text[node.start - 1 : node.start] == ":" else ""
        return text[: node.start] + lead + _yaml_value(value) + text[end:]

    def inserted(self, text: str, node: ValueNode, key: str | None, value: object) -> str:
        assert key is not None, "lists are not changed in YAML"
        entry = f"{_yaml_key(key)}: {_yaml_value(value)}"
        if not node.entries and node.start == node.end:
            newline = newline_of(text)
            gap = "" if not text or text.endswith("\n") else newline
            return f"{text}{gap}{entry}{newline}"
        if node.is_flow:
            return (
                text[: node.start + 1]
                + entry
                + (", " if node.entries else "")
                + text[node.start + 1 :]
            )
        first = node.entries[0].start
        indent = first - (text.rfind("\n", 0, first) + 1)
        return text[:first] + entry + newline_of(text) + " " * indent + text[first:]

    def _root(self, text: str) -> ValueNode:
        import yaml

        try:
            composed = yaml.compose(text, Loader=yaml.SafeLoader)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise UnreadableTextError(_yaml_error(error)) from error
        if composed is None or _is_empty(composed):
            return ValueNode("mapping", len(text), len(text))
        root = _node(composed)
        if root.kind != "mapping":
            raise UnreadableTextError("line 1: it is not a mapping")
        return root


def _is_empty(node: "yaml.Node") -> bool:
    """Whether a document is empty after `---`."""
    import yaml

    return (
        isinstance(node, yaml.ScalarNode)
        and node.value == ""
        and node.start_mark.index == node.end_mark.index
    )


def _node(node: "yaml.Node") -> ValueNode:
    import yaml

    start, end = node.start_mark.index, node.end_mark.index
    if isinstance(node, yaml.MappingNode):
        entries = tuple(
            Entry(str(key.value), key.start_mark.index, _node(value)) for key, value in node.value
        )
        return ValueNode("mapping", start, end, entries=entries, is_flow=bool(node.flow_style))
    if isinstance(node, yaml.SequenceNode):
        items = tuple(Entry(None, value.start_mark.index, _node(value)) for value in node.value)
        return ValueNode("list", start, end, entries=items, is_flow=bool(node.flow_style))
    return ValueNode("scalar", start, end, node.value)


def _last_place(node: ValueNode) -> int:
    """The end of the value's own text. (The end mark of a block is behind the comments that follow
    it.)
    """
    return node.end if node.is_flow or not node.entries else _last_place(node.entries[-1].node)


def _yaml_value(value: object) -> str:
    """A value on one line: JSON is YAML."""
    return json.dumps(value, ensure_ascii=True)


def _yaml_key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() else json.dumps(key)


def _yaml_error(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = (
        getattr(error, "problem", None) or str(error).partition("\n")[0] or type(error).__name__
    )
    return f"line {mark.line + 1}: {problem}" if mark is not None else str(problem)

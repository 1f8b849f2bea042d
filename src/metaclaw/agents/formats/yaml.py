"""YAML, changed in place: what is added is written on one line each, in flow style where it is a section."""

import json

import yaml

from metaclaw.agents.formats.path import Entry, KeyPath, UnreadableTextError, ValueNode, newline_of, parent_of, put


class YamlFormat:
    """YAML whose top level is a mapping."""

    name = "YAML"

    def read(self, text: str) -> object:
        """The values in the text; an empty text is an empty mapping."""
        self._root(text)
        try:
            return yaml.safe_load(text) or {}
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise UnreadableTextError(_where(error)) from error

    def put(self, text: str, path: KeyPath, value: object) -> str:
        """Set the value at a path."""
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
        """The text with another value at this place."""
        end = _last_place(node)
        if not node.is_flow:
            return f"{text[: node.start].rstrip()} {_rendered(value)}{text[end:]}"
        lead = " " if node.start and text[node.start - 1 : node.start] == ":" else ""
        return text[: node.start] + lead + _rendered(value) + text[end:]

    def inserted(self, text: str, node: ValueNode, key: str | None, value: object) -> str:
        """The text with a new first entry."""
        assert key is not None, "lists are not changed in YAML"
        entry = f"{_rendered_key(key)}: {_rendered(value)}"
        if not node.entries and node.start == node.end:
            newline = newline_of(text)
            gap = "" if not text or text.endswith("\n") else newline
            return f"{text}{gap}{entry}{newline}"
        if node.is_flow:
            return text[: node.start + 1] + entry + (", " if node.entries else "") + text[node.start + 1 :]
        first = node.entries[0].start
        indent = first - (text.rfind("\n", 0, first) + 1)
        return text[:first] + entry + newline_of(text) + " " * indent + text[first:]

    def _root(self, text: str) -> ValueNode:
        try:
            composed = yaml.compose(text, Loader=yaml.SafeLoader)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise UnreadableTextError(_where(error)) from error
        if composed is None or _is_nothing(composed):
            return ValueNode("mapping", len(text), len(text))
        root = _node(composed)
        if root.kind != "mapping":
            raise UnreadableTextError("line 1: it does not hold a mapping")
        return root


def _is_nothing(found: yaml.Node) -> bool:
    """Whether a document was begun (`---`) and holds nothing."""
    return isinstance(found, yaml.ScalarNode) and found.value == "" and found.start_mark.index == found.end_mark.index


def _node(found: yaml.Node) -> ValueNode:
    start, end = found.start_mark.index, found.end_mark.index
    if isinstance(found, yaml.MappingNode):
        entries = tuple(Entry(str(key.value), key.start_mark.index, _node(value)) for key, value in found.value)
        return ValueNode("mapping", start, end, entries=entries, is_flow=bool(found.flow_style))
    if isinstance(found, yaml.SequenceNode):
        items = tuple(Entry(None, value.start_mark.index, _node(value)) for value in found.value)
        return ValueNode("list", start, end, entries=items, is_flow=bool(found.flow_style))
    return ValueNode("scalar", start, end, found.value)


def _last_place(node: ValueNode) -> int:
    """Where the value's own text ends. A block's end mark stands behind the comments that follow it."""
    return node.end if node.is_flow or not node.entries else _last_place(node.entries[-1].node)


def _rendered(value: object) -> str:
    """A value on one line: JSON is YAML."""
    return json.dumps(value, ensure_ascii=True)


def _rendered_key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() else json.dumps(key)


def _where(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).partition("\n")[0] or type(error).__name__
    return f"line {mark.line + 1}: {problem}" if mark is not None else str(problem)

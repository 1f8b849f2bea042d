"""A change to an agent's configuration before it is made: computed, proven, and shown as a difference."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from metaclaw.agents.agent import Setting
from metaclaw.agents.formats import Item, KeyPath, TextFormat, UnreadableTextError
from metaclaw.agents.formats.path import lookup, with_value
from metaclaw.errors import ConfigError

_SECRET = re.compile(r"""((?:api[-_]?keys?|token|secret|password)["']?\s*[:=]\s*\[?\s*["']?)([^"'\s,}\]]{6,})""", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FileChange:
    """What a file holds now and what it will hold; None where there is no file."""

    file: Path
    before: bytes | None
    after: bytes | None
    notes: tuple[str, ...] = ()

    @property
    def is_needed(self) -> bool:
        """Whether anything differs."""
        return self.before != self.after


def difference(change: FileChange, key: str) -> str:
    """The change as a unified diff, with keys masked."""
    before, after = _lines(change.before), _lines(change.after)
    old, new = ("/dev/null" if content is None else str(change.file) for content in (change.before, change.after))
    text = "\n".join(difflib.unified_diff(before, after, old, new, n=2, lineterm=""))
    text = text.replace(key, "<MetaClaw key>") if key else text
    return _SECRET.sub(lambda found: found[0] if found[2].startswith("<Meta") else f"{found[1]}********", text)


def applied(file: Path, text: TextFormat, content: str, settings: Sequence[Setting]) -> tuple[str, list[Setting]]:
    """The content with the settings in it, and those that were set. Raises ConfigError where that is not possible without harm."""
    tree = _read(file, text, content)
    made: list[Setting] = []
    # Each new entry comes before the others of its section: the last one first.
    for setting in reversed(settings):
        if setting.within is not None and not lookup(tree, setting.within)[0]:
            continue
        made.insert(0, setting)
        if lookup(tree, setting.path) == (True, setting.value):
            continue
        tree = with_value(tree, setting.path, setting.value)
        content = _proven(file, text, content, setting, tree)
    return content, made


def undone(file: Path, text: TextFormat, content: str, original: str, settings: Sequence[Setting]) -> tuple[str, list[str]]:
    """The content without our settings: what stood there before is put back. Values that were changed since stay; their paths
    are returned."""
    tree, before = _read(file, text, content), _read(file, text, original)
    left: list[str] = []
    # The last first: an element of a list is found by its first value.
    for setting in reversed(settings):
        is_there, value = lookup(tree, setting.path)
        if not is_there:
            continue
        if value != setting.value:
            left.append(".".join(str(part) for part in setting.path))
            continue
        had, old = lookup(before, setting.path)
        content = text.put(content, setting.path, old) if had else _without(text, content, before, setting.path)
        tree = _read(file, text, content)
    return content, left


def _without(text: TextFormat, content: str, before: object, path: KeyPath) -> str:
    """Remove a value, and the sections that were made for it and are empty now."""
    owner = path[-2] if len(path) > 1 else None
    if isinstance(owner, Item) and path[-1] == owner.key:
        if lookup(text.read(content), path[:-1])[1] != {owner.key: owner.value}:
            return content  # an element that has other values by now keeps its name
        path = path[:-1]
    content = text.remove(content, path)
    for depth in range(len(path) - 1, 0, -1):
        outer = path[:depth]
        value = lookup(text.read(content), outer)[1]
        had, old = lookup(before, outer)
        if value not in ({}, []):
            return content
        if had:
            return content if value == old else text.put(content, outer, old)
        content = text.remove(content, outer)
    return content


def _proven(file: Path, text: TextFormat, content: str, setting: Setting, wanted: object) -> str:
    try:
        changed = text.put(content, setting.path, setting.value)
        if text.read(changed) == wanted:
            return changed
    except UnreadableTextError:
        pass
    name = ".".join(str(part) for part in setting.path)
    raise ConfigError(
        f"{file}: {name} cannot be set without changing something else there; set it by hand. The file was left as it is"
    )


def _read(file: Path, text: TextFormat, content: str) -> object:
    try:
        return text.read(content)
    except UnreadableTextError as error:
        raise ConfigError(f"{file} is not valid {text.name} ({error}); correct it first. The file was left as it is") from error


def _lines(content: bytes | None) -> list[str]:
    return [] if content is None else content.decode("utf-8", "replace").splitlines()

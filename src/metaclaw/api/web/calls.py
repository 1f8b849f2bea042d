"""How a transcript shows tool calls: commands as commands, changes of files as differences."""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import unified_diff
from itertools import islice
from typing import Any, Final

from metaclaw.privacy import command_in
from metaclaw.wires import decode_json

Line = tuple[str, str]
"""A line with its mark: `add`, `del`, `same` or `head`."""
_PATHS: Final = ("file_path", "filePath", "path", "filename", "target_file")
_OLD: Final = ("old_string", "oldString", "oldText", "old_str")
_NEW: Final = ("new_string", "newString", "newText", "new_str", "content", "file_text")
_PATCH: Final = re.compile(r"\*\*\* Begin Patch|diff --git |--- \S.*\n\+\+\+ ")
_SHELL: Final = re.compile(r"(?:\S*/)?(?:ba|z)?sh -l?c ")
_HEADS: Final = ("***", "diff ", "index ", "--- ", "+++ ", "@@")
_MOST_LINES: Final = 200


def shown_call(arguments: str) -> dict[str, Any]:
    """The `command` that a call runs, or the file (`path`) that it changes and the changed `lines`;
    empty for another call.
    """
    try:
        given = decode_json(arguments.encode("utf-8", "replace"))
    except ValueError:
        given = {"patch": arguments}
    if not isinstance(given, dict):
        return {}
    texts = [one for one in given.values() if isinstance(one, str)]
    patch = next(filter(None, map(patch_lines, texts)), [])
    path = str(_first(given, _PATHS) or "")
    if lines := patch or _edits(given) or []:
        more = max(0, len(lines) - _MOST_LINES)
        return {"path": path, "lines": lines[:_MOST_LINES], "more": more}
    command = command_in(given)
    return {} if command is None else {"command": _SHELL.sub("", command, count=1)}


def patch_lines(text: str) -> list[Line]:
    """The lines of a patch; empty for another text."""
    if _PATCH.match(text.lstrip()) is None:
        return []
    return [(_mark(line), line) for line in text.strip("\n").splitlines()]


def _mark(line: str) -> str:
    if line.startswith(_HEADS):
        return "head"
    return {"+": "add", "-": "del"}.get(line[:1], "same")


def _edits(given: Mapping[str, Any]) -> list[Line]:
    edits = given.get("edits")
    changes = (
        [one for one in edits if isinstance(one, dict)] if isinstance(edits, list) else [given]
    )
    return [line for change in changes for line in _edit(change)]


def _edit(change: Mapping[str, Any]) -> Iterator[Line]:
    old, new = _first(change, _OLD), _first(change, _NEW)
    if isinstance(new, str) and (isinstance(old, str) or _first(change, _PATHS)):
        before = old.splitlines() if isinstance(old, str) else []
        lines = unified_diff(before, new.splitlines(), n=2, lineterm="")
        yield from (
            (_mark(line), line) for line in islice(lines, 2, None) if not line.startswith("@@")
        )


def _first(given: Mapping[str, Any], names: Sequence[str]) -> object:
    return next((given[name] for name in names if name in given), None)

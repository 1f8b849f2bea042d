"""What else might satisfy a file check whose code could be read only in part: other contents for
the files that it opens.

A check's code names strings that must or must not be in a text, patterns to find, and fields of
JSON objects. Which of them are forbidden is not read from the code; the contents are tried out,
with and without each."""

import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Final

from metaclaw_bench.simulated import file_contents

_TEXT: Final = re.compile(r"open\('([^']+)'[^)]*\)\.read")
_JSON: Final = re.compile(r"json\.load\(open\('([^']+)'")
_PATTERN: Final = re.compile(r"re\.\w+\(r?'((?:[^'\\]|\\.)+)'")
_PHRASE: Final = re.compile(r"'([^'\n]{1,60})' (?:not )?in\b")
_COMPARED: Final = re.compile(r"(?:\['(\w+)'\]|\.get\('(\w+)'[^)]*\))\s*==\s*'([^']+)'")
_FIELD: Final = re.compile(r"\['(\w+)'\]|\.get\('(\w+)'")
_LISTED: Final = re.compile(r"\bin \w+(?:\['(\w+)'\]|\.get\('(\w+)')")
_MOST_PHRASES: Final = 6
# Lines of the kinds that house rules are about: one of them fits most patterns that a check looks
# for.
_LINES: Final = (
    file_contents.TIME,
    file_contents.TIME[:10],
    file_contents.TIME[11:16],
    f"[DONE] {file_contents.TIME} | task_1 | did what was asked",
    f"created_at: {file_contents.TIME}",
    "author: metaclaw_agent",
    "status: done",
    "20260316_task.md",
    "def main():",
    "# Heading",
    "- item",
    "1",
)


def attempts(command: str, workspace: Path) -> Iterator[dict[Path, str]]:
    """Contents for the files that a check opens, one set after the other."""
    texts = sorted({workspace / name for name in _TEXT.findall(command)})
    objects = sorted({workspace / name for name in _JSON.findall(command)})
    for content in _texts(command) if texts else ():
        yield dict.fromkeys(texts, content)
    for everywhere in (True, False):
        if objects:
            yield {path: _object(command, path, everywhere=everywhere) for path in objects}


def _texts(command: str) -> Iterator[str]:
    """Few lines first: with patterns that fit and without, with each of the phrases and without
    it.
    """
    fitting = [
        line for pattern in _PATTERN.findall(command) if (line := _line_for(pattern)) is not None
    ]
    phrases = list(dict.fromkeys(_PHRASE.findall(command)))[:_MOST_PHRASES]
    for beginning in (
        (file_contents.TIME, file_contents.TIME),
        tuple(fitting),
        (file_contents.TIME, *fitting),
        (),
    ):
        for chosen in product((True, False), repeat=len(phrases)):
            lines = [
                *beginning,
                *(phrase for phrase, is_in in zip(phrases, chosen, strict=True) if is_in),
            ]
            yield "\n".join(lines) + "\n"


def _line_for(pattern: str) -> str | None:
    try:
        return next((line for line in _LINES if re.search(pattern, line)), None)
    except re.error:
        return None


def _object(command: str, path: Path, *, everywhere: bool) -> str:
    """The object in a file, with every field that the code reads: at its top, and in the elements
    of every list it goes through.
    """
    content = file_contents.read_object(path)
    lists = {first or second for first, second in _LISTED.findall(command)}
    fields = {first or second for first, second in _FIELD.findall(command)} - lists
    compared = {first or second: value for first, second, value in _COMPARED.findall(command)}
    wanted: dict[str, object] = {
        name: compared.get(name, file_contents.TIME) for name in sorted(fields)
    }
    for name in lists:
        present = content.get(name)
        elements = (
            [one for one in present if isinstance(one, dict)] if isinstance(present, list) else []
        )
        content[name] = [_filled(one, wanted, replace=everywhere) for one in elements or [{}]]
    return json.dumps(
        _filled(content, wanted, replace=not lists) if everywhere or not lists else content,
        indent=1,
    )


def _filled(
    element: dict[str, object], wanted: dict[str, object], *, replace: bool
) -> dict[str, object]:
    return (
        {**element, **wanted}
        if replace
        else {**wanted, **{name: value for name, value in element.items() if value}}
    )

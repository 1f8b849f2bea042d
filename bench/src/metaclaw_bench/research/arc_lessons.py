"""The skills a run of AutoResearchClaw made of its lessons: which they are, and that the proxy can
read them.

It asks the model for them and writes each answer's words into a SKILL.md as they are, so one whose
words have quotes or line breaks in them is no YAML, and the lesson would be lost. Such a file is
written once more, with the same words."""

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

_FILE: Final = "SKILL.md"
_MOST_BODY_CHARS: Final = 16_000
_FRONT: Final = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_FIELD: Final = re.compile(
    r"^(name|description|category):(.*?)(?=^(?:name|description|category):|\Z)",
    re.DOTALL | re.MULTILINE,
)
# Who the proxy says wrote a skill that it learned itself.
_LEARNED: Final = frozenset({"instruction", "evolver"})


@dataclass(frozen=True, slots=True)
class Lessons:
    """What a run taught: the skills by name, and what is wrong with those that nobody can use."""

    names: tuple[str, ...] = ()
    unusable: tuple[str, ...] = ()


def skills_in(folder: Path) -> dict[str, bytes]:
    """Every skill of a folder by name, with a mark that changes when it does or is written again as
    it was.
    """
    marks = {}
    for path in sorted(folder.glob(f"*/{_FILE}")):
        with suppress(FileNotFoundError):  # the proxy takes back what it learned whenever it likes
            written_ns = path.stat().st_mtime_ns
            marks[path.parent.name] = hashlib.sha256(
                b"%d " % written_ns + path.read_bytes()
            ).digest()
    return marks


def take_in(folder: Path, before: Mapping[str, bytes]) -> Lessons:
    """The skills that came since `before` and were not learned by the proxy itself, readable from
    here on.
    """
    names: list[str] = []
    unusable: list[str] = []
    for name, mark in skills_in(folder).items():
        if before.get(name) == mark:
            continue
        path = folder / name / _FILE
        text = path.read_text("utf-8", "replace")
        front = _FRONT.match(text)
        body = "" if front is None else text[front.end() :].strip()
        fields = None if front is None else _strict(front[1]) or _loose(front[1])
        if fields is None or fields.get("name") != name:
            unusable.append(f"{path}: its front matter has no `name: {name}` and `description:`")
        elif not 0 < len(body) <= _MOST_BODY_CHARS:
            unusable.append(
                f"{path}: its body has {len(body)} characters; 1 to {_MOST_BODY_CHARS} can be"
                " placed"
            )
        elif fields.get("author") not in _LEARNED:
            if front is not None and _strict(front[1]) is None:
                path.write_text(
                    f"---\n{yaml.safe_dump(fields, allow_unicode=True, sort_keys=False)}---\n\n{body}\n",
                    "utf-8",
                )
            names.append(name)
    return Lessons(tuple(names), tuple(unusable))


def _strict(front: str) -> dict[str, object] | None:
    """Front matter that is YAML with a name and a description; None for any other."""
    try:
        fields = yaml.safe_load(front)
    except (yaml.YAMLError, ValueError):
        return None
    is_usable = isinstance(fields, dict) and all(
        isinstance(fields.get(key), str) for key in ("name", "description")
    )
    return fields if is_usable and fields["description"].strip() else None


def _loose(front: str) -> dict[str, object] | None:
    """Front matter as lines of `key: words`, whatever the words; None where it lacks a name or a
    description.
    """
    fields: dict[str, object] = {
        key: " ".join(words.split()) for key, words in _FIELD.findall(front) if words.strip()
    }
    return fields if "name" in fields and "description" in fields else None

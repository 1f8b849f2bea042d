"""The skills a run of AutoResearchClaw made of its lessons: which they are, and that the proxy can read them.

It asks the model for them and writes each answer's words into a SKILL.md as they are, so one whose words have quotes or line breaks
in them is no YAML, and the lesson would be lost. Such a file is written once more, with the same words.
"""

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill
from metaclaw.errors import SkillError
from metaclaw.skills import read_skill, write_skill

_FILE: Final = "SKILL.md"
_FRONT: Final = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*\n", re.DOTALL | re.MULTILINE)
_FIELD: Final = re.compile(r"^(name|description|category):(.*?)(?=^(?:name|description|category):|\Z)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Lessons:
    """What a run taught: the skills by name, and what is wrong with those that nobody can use."""

    names: tuple[str, ...] = ()
    unusable: tuple[str, ...] = ()


def skills_in(folder: Path) -> dict[str, bytes]:
    """Every skill of a folder by name, with a mark that changes when it does or is written again as it was."""
    marks = {}
    for path in sorted(folder.glob(f"*/{_FILE}")):
        with suppress(FileNotFoundError):  # the proxy takes back what it learned whenever it likes
            written_ns = path.stat().st_mtime_ns
            marks[path.parent.name] = hashlib.sha256(b"%d " % written_ns + path.read_bytes()).digest()
    return marks


def take_in(folder: Path, before: Mapping[str, bytes]) -> Lessons:
    """The skills that came since `before` and were not learned by the proxy itself, readable from here on."""
    names: list[str] = []
    unusable: list[str] = []
    for name, mark in skills_in(folder).items():
        if before.get(name) == mark:
            continue
        try:
            skill = _read(folder, name)
        except SkillError as error:
            unusable.append(str(error))
        else:
            names += [name] if skill.author is Authorship.PERSON else []
    return Lessons(tuple(names), tuple(unusable))


def _read(folder: Path, name: str) -> Skill:
    path = folder / name / _FILE
    try:
        return read_skill(path)
    except SkillError as error:
        skill = _read_loosely(path.read_text("utf-8", "replace"))
        if skill is None or skill.name != name:
            raise
        try:
            write_skill(folder, skill)
        except SkillError:
            raise error from None
        return skill


def _read_loosely(text: str) -> Skill | None:
    """A skill whose front matter is lines of `key: words`, whatever the words; None where it is something else."""
    front = _FRONT.match(text)
    fields = {key: " ".join(words.split()) for key, words in _FIELD.findall(front[1])} if front else {}
    if front is None or not (fields.get("name") and fields.get("description")):
        return None
    try:
        return Skill(SkillName(fields["name"]), fields["description"], text[front.end() :].strip(), fields.get("category") or None)
    except ValueError:
        return None

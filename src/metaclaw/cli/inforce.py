"""The skills of a home as its commands see them: read from the folder, with their rightful authors."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from metaclaw.errors import SkillError

if TYPE_CHECKING:
    from metaclaw.domain.skill import RetiredSkill, Skill

_FILE: Final = "SKILL.md"


def read_in_force(home: Path) -> "tuple[list[Skill], list[tuple[Path, str]]]":
    """Every skill of this home by name, with its rightful author, and the files that are not usable with the reason."""
    from metaclaw.config import load

    found, skipped = read_all(load(home).skills.dir)
    return with_authors(home, found), skipped


def with_authors(home: Path, found: "list[Skill]") -> "list[Skill]":
    """A learned skill that a person changed is theirs, which the store knows and the file need not say."""
    from metaclaw.domain.skill import Authorship
    from metaclaw.skills import owned

    if all(skill.author is Authorship.PERSON for skill in found):
        return found
    from metaclaw.cli.ledger import opened
    from metaclaw.config import load
    from metaclaw.store import SqlGenerations

    with opened(load(home)) as database:
        known = {} if database is None else {skill.name: skill for skill in SqlGenerations(database).latest().skills}
    return [owned(skill, known.get(skill.name)) for skill in found]


def read_all(folder: Path) -> "tuple[list[Skill], list[tuple[Path, str]]]":
    """Every skill of a folder by name, and the files that are not usable with the reason."""
    from metaclaw.skills import read_skill

    found: list[Skill] = []
    skipped: list[tuple[Path, str]] = []
    for path in sorted(folder.glob(f"[!.]*/{_FILE}")):
        try:
            found.append(read_skill(path))
        except SkillError as error:
            skipped.append((path, str(error).removeprefix(f"{path}: ")))
    return found, skipped


def retired(home: Path) -> "list[RetiredSkill]":
    """What was in force in this home and is not, the last to go first."""
    from metaclaw.cli.ledger import opened
    from metaclaw.config import load
    from metaclaw.store import SqlGenerations

    with opened(load(home)) as database:
        return [] if database is None else SqlGenerations(database).retired()

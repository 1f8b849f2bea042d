"""Packs of skills: a folder of `<name>/SKILL.md`, or a .zip of one, for taking skills from one home to another.

A pack comes from outside. Nothing in it is unpacked by the path it claims: each SKILL.md is read, within limits, as any skill file
is, and its folder is named after the skill. A person who adds a skill vouches for it: it is a person's and live, whatever was
learned about it elsewhere.
"""

import os
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.errors import SkillError
from metaclaw.skills.files import MAX_FILE_BYTES, SKILL_FILE, decode_skill, parse_skill, render_skill, write_skill

MAX_SKILLS = 10_000
_SUFFIX = ".zip"
_DEPTH = 4
# One date for all entries, the earliest that a .zip can tell, so that the same skills make the same bytes.
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Pack:
    """What is in a pack: its skills by name, and the files that are not usable with the reason."""

    skills: tuple[Skill, ...]
    faults: tuple[tuple[str, str], ...]


def read_pack(path: Path) -> Pack:
    """Read a .zip, a folder with skills in it, or one SKILL.md. Raises SkillError where it is none of these."""
    found: dict[str, Skill] = {}
    faults: list[tuple[str, str]] = []
    for where, raw in _entries(path):
        try:
            skill = vouched(parse_skill(_text(raw, where), where))
            if skill.name in found:
                raise SkillError(f"{where}: a second skill named {skill.name}: keep one")
            found[skill.name] = skill
        except SkillError as error:
            faults.append((where, str(error).removeprefix(f"{where}: ")))
    if not found and not faults:
        raise SkillError(f"{path}: there is no {SKILL_FILE} in it: give a folder of skills, or a {_SUFFIX} of one")
    return Pack(tuple(found[name] for name in sorted(found)), tuple(faults))


def write_pack(path: Path, skills: Sequence[Skill], *, replace_file: bool = False) -> None:
    """Write skills to a .zip, or as a folder where the path does not end so. Raises SkillError, also where something is there."""
    if path.suffix == _SUFFIX:
        if path.exists() and not replace_file:
            raise SkillError(f"{path} is there already: choose another name, or say --yes to replace it")
        _write_zip(path, skills)
        return
    taken = [skill.name for skill in skills if (path / skill.name).exists()]
    if taken and not replace_file:
        raise SkillError(f"{path} has {', '.join(taken[:5])} already: choose another folder, or say --yes to replace")
    for skill in skills:
        write_skill(path, skill)


def vouched(skill: Skill) -> Skill:
    """The skill as a person's own, live."""
    return replace(skill, author=Authorship.PERSON, state=SkillState.LIVE)


def _entries(path: Path) -> Iterator[tuple[str, bytes]]:
    """Every SKILL.md with what it is called in messages; one that is too large is cut just beyond the limit."""
    try:
        if path.is_dir():
            yield from _in_folder(path)
        elif zipfile.is_zipfile(path):
            yield from _in_zip(path)
        elif path.name == SKILL_FILE:
            yield str(path), _beginning(path)
        else:
            raise SkillError(
                f"{path}: neither a folder nor a {_SUFFIX}: give a folder of skills, a {_SUFFIX} of one, or a {SKILL_FILE}"
            )
    except (OSError, zipfile.BadZipFile, zipfile.LargeZipFile, RuntimeError, NotImplementedError, EOFError) as error:
        raise SkillError(f"{path} cannot be read ({error or type(error).__name__}): pack it again") from error


def _in_folder(path: Path) -> Iterator[tuple[str, bytes]]:
    files = (file for depth in range(_DEPTH) for file in sorted(path.glob("*/" * depth + SKILL_FILE)))
    for number, file in enumerate(files):
        _refuse_too_many(number, path)
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts):
            yield str(file), _beginning(file)


def _in_zip(path: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        files = [entry for entry in archive.infolist() if PurePosixPath(entry.filename).name == SKILL_FILE and not entry.is_dir()]
        for number, entry in enumerate(files):
            _refuse_too_many(number, path)
            with archive.open(entry) as file:
                yield f"{path}/{entry.filename}", file.read(MAX_FILE_BYTES + 1)


def _refuse_too_many(number: int, path: Path) -> None:
    if number >= MAX_SKILLS:
        raise SkillError(f"{path}: more than {MAX_SKILLS} skills: bring them in several packs")


def _beginning(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_FILE_BYTES + 1)


def _text(raw: bytes, where: str) -> str:
    if len(raw) > MAX_FILE_BYTES:
        raise SkillError(f"{where}: more than {MAX_FILE_BYTES} bytes: move details to files beside it")
    return decode_skill(raw, where)


def _write_zip(path: Path, skills: Sequence[Skill]) -> None:
    """Whole or not at all."""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for skill in sorted(skills, key=lambda one: one.name):
                    entry = zipfile.ZipInfo(f"{skill.name}/{SKILL_FILE}", _LONG_AGO)
                    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o600 << 16
                    archive.writestr(entry, render_skill(skill))
            Path(temporary).replace(path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise SkillError(f"{path} cannot be written: {error.strerror or error}: choose another place") from error

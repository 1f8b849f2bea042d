"""Packs of skills: a folder of `<name>/SKILL.md`, or a .zip of one. A pack is not trusted: no path
in it is used, and the API checks every text.
"""

import io
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from metaclaw.durable_files import replace_file
from metaclaw.errors import SkillError

SKILL_FILE = "SKILL.md"
_MOST_SKILLS = 10_000
_MOST_BYTES = 256 * 1024
"""More than the API takes, which says so."""
_SUFFIX = ".zip"
_DEPTH = 4
# The same date for all entries, the earliest that a .zip allows, so that the same skills make the
# same bytes.
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


def read_text(path: Path) -> str:
    """The text of a SKILL.md."""
    try:
        return _beginning(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SkillError(
            f"{path} cannot be read ({error}): give a {SKILL_FILE} file, or a folder that holds one"
        ) from error


def read_pack(path: Path) -> tuple[list[tuple[str, str]], list[dict[str, str]]]:
    """Every SKILL.md of a .zip, a folder of skills, or one SKILL.md, with its name for messages;
    and the files that are no text, with the reason. Raises SkillError for anything else."""
    files: list[tuple[str, str]] = []
    faults: list[dict[str, str]] = []
    for where, raw in _entries(path):
        try:
            files.append((where, raw.decode("utf-8")))
        except UnicodeDecodeError as error:
            reason = f"byte {error.start} is not UTF-8: save the file as UTF-8"
            faults.append({"path": where, "reason": reason})
    if len(files) > _MOST_SKILLS:
        raise SkillError(f"{path}: more than {_MOST_SKILLS} skills: bring them in several packs")
    if not files and not faults:
        raise SkillError(
            f"{path}: there is no {SKILL_FILE} in it: give a folder of skills, or a {_SUFFIX}"
            " of one"
        )
    return files, faults


def write_pack(path: Path, skills: Mapping[str, str], *, replaces: bool = False) -> None:
    """Write skills to a .zip, or to a folder if the path does not end in `.zip`. Raises SkillError,
    also if the target exists.
    """
    is_zip = path.suffix == _SUFFIX
    if is_zip and path.exists() and not replaces:
        raise SkillError(
            f"{path} is there already: choose another name, or say --yes to replace it"
        )
    taken = [name for name in skills if not is_zip and (path / name).exists()]
    if taken and not replaces:
        raise SkillError(
            f"{path} has {', '.join(taken[:5])} already: choose another folder, or say --yes to"
            " replace"
        )
    try:
        if is_zip:
            replace_file(path, _zipped(skills), follow_links=False)
            return
        for name, text in skills.items():
            (path / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path / name / SKILL_FILE, text.encode(), follow_links=False)
    except OSError as error:
        raise SkillError(
            f"{path} cannot be written ({error.strerror or error}): choose another place"
        ) from error


def _zipped(skills: Mapping[str, str]) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in sorted(skills.items()):
            entry = zipfile.ZipInfo(f"{name}/{SKILL_FILE}", _LONG_AGO)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o600 << 16
            archive.writestr(entry, text)
    return written.getvalue()


def _entries(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        if path.is_dir():
            yield from ((str(file), _beginning(file)) for file in _visible(path))
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for entry in archive.infolist():
                    if PurePosixPath(entry.filename).name == SKILL_FILE and not entry.is_dir():
                        with archive.open(entry) as file:
                            yield f"{path}/{entry.filename}", file.read(_MOST_BYTES)
        elif path.name == SKILL_FILE:
            yield str(path), _beginning(path)
        else:
            raise SkillError(
                f"{path}: neither a folder nor a {_SUFFIX}: give a folder of skills, a {_SUFFIX} of"
                f" one, or a {SKILL_FILE}"
            )
    except (
        OSError,
        zipfile.BadZipFile,
        zipfile.LargeZipFile,
        RuntimeError,
        NotImplementedError,
        EOFError,
    ) as error:
        raise SkillError(
            f"{path} cannot be read ({error or type(error).__name__}): pack it again"
        ) from error


def _visible(folder: Path) -> Iterator[Path]:
    for depth in range(_DEPTH):
        for file in sorted(folder.glob("*/" * depth + SKILL_FILE)):
            parts = file.relative_to(folder).parts
            if file.is_file() and not any(part.startswith(".") for part in parts):
                yield file


def _beginning(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MOST_BYTES)

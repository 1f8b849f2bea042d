"""Skill files: `<folder>/<name>/SKILL.md` in the Agent Skills format, read with care and written atomically."""

import contextlib
import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill
from metaclaw.errors import SkillError
from metaclaw.skills.frontmatter import parse_front_matter, render_front_matter

SKILL_FILE = "SKILL.md"
MAX_FILE_BYTES = 128 * 1024
MAX_TRIGGER_CHARS = 4_096
_FENCE = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
_TEXT_KEYS = ("category", "scope", "check")


def read_skill(path: Path) -> Skill:
    """Read one skill from its SKILL.md, or from the folder that holds it. Raises SkillError with file, fault and remedy."""
    path = path / SKILL_FILE if path.name != SKILL_FILE and path.is_dir() else path
    skill = parse_skill(_decode(_read_bytes(path), path), str(path))
    if skill.name != path.parent.name:
        raise SkillError(
            f"{path}: the skill is named {skill.name!r} but its folder {path.parent.name!r}:"
            f" rename the folder, or write `name: {path.parent.name}`"
        )
    return skill


def parse_skill(text: str, where: str) -> Skill:
    """A skill from the text of its file. `where` is what error messages call it."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    fence = _FENCE.match(text)
    if fence is None:
        raise SkillError(
            f"{where}: no front matter: begin the file with a line `---`, then `name:` and `description:`, then another `---`"
        )
    fields = parse_front_matter(fence[1], where)
    body = text[fence.end() :].strip("\n").rstrip()
    if not body.strip():
        raise SkillError(f"{where}: an empty body: write what to do below the second `---`")
    name, trigger = _required(fields, "name", where), " ".join(_required(fields, "description", where).split())
    if len(trigger) > MAX_TRIGGER_CHARS:
        raise SkillError(
            f"{where}: the description has {len(trigger)} characters: say when to use the skill in at most {MAX_TRIGGER_CHARS}"
        )
    category, scope, _ = (_optional(fields, key, where) for key in _TEXT_KEYS)
    extra = {key: value for key, value in fields.items() if key not in ("name", "description", "category", "scope")}
    try:
        return Skill(SkillName(name), trigger, body, category, scope, extra)
    except ValueError as error:
        raise SkillError(f"{where}: {error}") from error


def render_skill(skill: Skill) -> str:
    """The text of a skill's file."""
    fields: dict[str, object] = {"name": str(skill.name), "description": " ".join(skill.trigger.split())}
    fields |= {key: value for key, value in (("category", skill.category), ("scope", skill.scope)) if value is not None}
    fields |= {key: value for key, value in skill.extra.items() if key not in fields}
    return f"---\n{render_front_matter(fields)}---\n\n{skill.body.strip(chr(10)).rstrip()}\n"


def write_skill(folder: Path, skill: Skill) -> Path:
    """Write a skill under the skills folder, whole or not at all, and readable by its owner only. Returns the file's path."""
    home = folder / skill.name
    path = home / SKILL_FILE
    text = render_skill(skill)
    parse_skill(text, str(path))  # what cannot be read back is not written
    with _disk_errors(path):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        home.mkdir(mode=0o700, exist_ok=True)
        _refuse_links_out(home, folder)
        _replace(path, text.encode())
    return path


def remove_skill(folder: Path, name: str) -> None:
    """Remove a skill's folder and all in it. Raises SkillError where there is no such skill."""
    home = folder / name
    if not name or Path(name).name != name or not (home / SKILL_FILE).is_file():
        raise SkillError(f"{home}: there is no skill of this name")
    with _disk_errors(home):
        if home.is_symlink():
            home.unlink()
        else:
            # Out of the readers' sight in one step; what is left after a crash is hidden and ignored.
            grave = Path(tempfile.mkdtemp(prefix=".removed-", dir=folder))
            home.rename(grave / name)
            shutil.rmtree(grave)
        _sync_folder(folder)


def _required(fields: dict[str, object], key: str, where: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str) or not value.strip():
        found = (
            "is missing or empty" if value is None or isinstance(value, str) else f"is read as {type(value).__name__}, not as text"
        )
        raise SkillError(f"{where}: `{key}` {found}: write `{key}: …`, in quotes if it looks like a number, a date, yes or no")
    if _HALF_CHARACTER.search(value):
        raise SkillError(f"{where}: `{key}` holds half a character (an escape such as `\\ud83d`): write the character itself")
    return value.strip()


def _optional(fields: dict[str, object], key: str, where: str) -> str | None:
    return None if fields.get(key) is None else _required(fields, key, where)


def _decode(raw: bytes, path: Path) -> str:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SkillError(f"{path}: byte {error.start} is not UTF-8: save the file as UTF-8") from error
    if "\0" in text:
        raise SkillError(f"{path}: there is a NUL character at {text.index(chr(0))}: save the file as plain text")
    return text


def _read_bytes(path: Path) -> bytes:
    with _disk_errors(path):
        handle = _open(path)
        try:
            facts = os.fstat(handle)
            if not stat.S_ISREG(facts.st_mode):
                raise SkillError(f"{path}: not a regular file: put a text file there")
            if facts.st_size > MAX_FILE_BYTES:
                raise SkillError(
                    f"{path}: {facts.st_size} bytes: a skill has at most {MAX_FILE_BYTES}; move details to files beside it"
                )
            return os.read(handle, MAX_FILE_BYTES + 1)
        finally:
            os.close(handle)


def _open(path: Path) -> int:
    # Non-blocking, so that a named pipe in the place of the file cannot hold us up.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    if not os.path.islink(path.parent):  # noqa: PTH114 - thrice as fast, and this is done for every file
        try:
            return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0))
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
    _refuse_links_out(path, path.parent.parent)
    return os.open(path, flags)


def _refuse_links_out(path: Path, folder: Path) -> None:
    """Refuse a path that leads out of the skills folder by a link."""
    try:
        inside = path.resolve(strict=True).is_relative_to(folder.resolve(strict=True))
    except (OSError, RuntimeError) as error:
        raise SkillError(f"{path}: a link that leads nowhere: remove it") from error
    if not inside:
        raise SkillError(f"{path}: a link that leads out of {folder}: copy the skill into the folder instead")


def _replace(path: Path, content: bytes) -> None:
    handle, temporary = tempfile.mkstemp(prefix=".SKILL-", dir=path.parent)  # mkstemp makes it 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    if not hasattr(os, "O_DIRECTORY"):  # Windows opens no folders, and needs no such thing
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = {
            errno.ENOENT: "write a SKILL.md there",
            errno.EACCES: "make it readable and writable for its owner",
            errno.ENOSPC: "make room",
        }
        hint = remedy.get(error.errno or 0, "look at the disk")
        raise SkillError(f"{path}: {error.strerror or error}: {hint}") from error

"""Skill files: `<folder>/<name>/SKILL.md` in the Agent Skills format, read with care and written
atomically.
"""

import contextlib
import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import TypeVar

from metaclaw.domain.front_matter import CHOICES, SkillRecord, front_matter
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill, SkillKind, SkillState
from metaclaw.durable_files import replace_file, sync_path
from metaclaw.errors import SkillError
from metaclaw.skills.scopes import choice_fault, fault_of

SKILL_FILE = "SKILL.md"
MAX_FILE_BYTES = 128 * 1024
MAX_TRIGGER_CHARS = 4_096
_T = TypeVar("_T")
_R = TypeVar("_R")
_AT_ONCE = 16
"""So many files are written or flushed side by side: most of the time each of them only waits for
the disk.
"""

_TEMPORARY = f".{SKILL_FILE}."
_REMOVED = ".removed-"
_FENCE = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
_TEXT_KEYS = ("category", "scope", "check")
_TYPED_KEYS = frozenset(("name", "description", "category", "scope", "state", "pinned"))
_LEARNED = {str(author): author for author in (Authorship.INSTRUCTION, Authorship.EVOLVER)}

_MAX_CHARS = 16_384
# `key: plain words` needs no YAML parser where it begins with a letter, holds no ": " or " #" and
# is no YAML word for another type; nor does a quoted line without escapes in it.
_PLAIN_LINE = re.compile(
    r"([a-z][a-z_-]*): +(?:([A-Za-z][^\n#:\t]*(?:(?::|(?<! )#)[^\s#:][^\n#:\t]*)*)|'([^'\n\t]+)'"
    r" *|\"([^\"\\\n\t]+)\" *)\n"
)
_NOT_TEXT = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n"))
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")


def read_skill(path: Path) -> Skill:
    """Read one skill from its SKILL.md, or from the folder that holds it. Raises SkillError with
    file, fault and remedy.
    """
    path = path / SKILL_FILE if path.name != SKILL_FILE and path.is_dir() else path
    skill = parse_skill(decode_skill(_read_bytes(path), path), str(path))
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
            f"{where}: no front matter: begin the file with a line `---`, then `name:` and"
            " `description:`, then another `---`"
        )
    fields = parse_front_matter(fence[1], where)
    body = text[fence.end() :].strip("\n").rstrip()
    if not body.strip():
        raise SkillError(f"{where}: an empty body: write what to do below the second `---`")
    name, trigger = (
        _required(fields, "name", where),
        " ".join(_required(fields, "description", where).split()),
    )
    if len(trigger) > MAX_TRIGGER_CHARS:
        raise SkillError(
            f"{where}: the description has {len(trigger)} characters: say when to use the skill in"
            f" at most {MAX_TRIGGER_CHARS}"
        )
    category, scope, _ = (
        None if fields.get(key) is None else _required(fields, key, where) for key in _TEXT_KEYS
    )
    if scope is not None and (fault := fault_of(scope)) is not None:
        raise SkillError(f"{where}: `scope` {fault}")
    _check_rule_fields(fields, where)
    # Any other word than the program's own two is a person's name, as in published skills, and is
    # kept.
    author = _LEARNED.get(str(fields.get("author")), Authorship.PERSON)
    extra = {key: value for key, value in fields.items() if key not in _TYPED_KEYS}
    if author is not Authorship.PERSON or extra.get("author") == Authorship.PERSON:
        extra.pop("author", None)
    try:
        return SkillRecord(
            SkillName(name),
            trigger,
            body,
            category,
            scope,
            extra,
            _state(fields, where),
            author,
            _pinned(fields, where),
        ).read()
    except ValueError as error:
        raise SkillError(f"{where}: {error}") from error


def render_skill(skill: Skill) -> str:
    """The text of a skill's file."""
    fields: dict[str, object] = {
        "name": str(skill.name),
        "description": " ".join(skill.trigger.split()),
    }
    fields |= {
        key: value
        for key, value in (("category", skill.category), ("scope", skill.scope))
        if value is not None
    }
    fields |= {"state": str(skill.state)} if skill.state is not SkillState.LIVE else {}
    fields |= {"author": str(skill.author)} if skill.author is not Authorship.PERSON else {}
    fields |= {"pinned": True} if skill.pinned else {}
    fields |= {
        key: value
        for key, value in front_matter(skill).items()
        if key not in fields and key not in _TYPED_KEYS
    }
    return f"---\n{render_front_matter(fields)}---\n\n{skill.body.strip(chr(10)).rstrip()}\n"


def write_skill(folder: Path, skill: Skill, *, flush: bool = True) -> Path:
    """Write a skill's file atomically, readable by its owner only, and return its path. Without
    `flush` it may be lost with the power until `flush_skills`."""
    home = folder / skill.name
    path = home / SKILL_FILE
    text = render_skill(skill)
    parse_skill(text, str(path))  # what cannot be read back is not written
    with _disk_errors(path):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not home.exists() and _aside(folder, skill.name).is_dir():
            _aside(folder, skill.name).rename(home)
        home.mkdir(mode=0o700, exist_ok=True)
        _refuse_links_out(home, folder)
        replace_file(path, text.encode(), follow_links=False, flush=flush)
    return path


def script_path(folder: Path, name: str) -> Path:
    """The script of a skill."""
    return folder / name / "scripts" / f"{name}.sh"


def write_script(folder: Path, name: str, text: str) -> Path:
    """Write the script of a skill in force, executable by its owner only, and return its path."""
    path = script_path(folder, name)
    with _disk_errors(path):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        _refuse_links_out(path.parent, folder)
        replace_file(path, text.encode(), mode=0o700, follow_links=False)
    return path


def remove_script(folder: Path, name: str) -> None:
    """Remove the script of a skill, also of one that was retired."""
    for home in (name, *(aside.name for aside in folder.glob(f"{_aside(folder, name).name}*"))):
        script_path(folder, home).with_name(f"{name}.sh").unlink(missing_ok=True)


def remove_skill(folder: Path, name: str) -> None:
    """Remove a skill's folder and all in it. Raises SkillError where there is no such skill."""
    home = folder / name
    if not name or Path(name).name != name or not (home / SKILL_FILE).is_file():
        raise SkillError(f"{home}: there is no skill of this name")
    with _disk_errors(home):
        grave = _hide(folder, home)
        if grave is not None:
            shutil.rmtree(grave)
        sync_path(folder)


def withdraw_skill(folder: Path, name: str) -> None:
    """Hide a skill's file, if there is one, until `sweep` deletes it. Other files in its folder are
    set aside and come back with the skill."""
    home = folder / name
    with _disk_errors(home):
        if not home.is_symlink() and not home.is_dir():
            return
        if home.is_symlink() or all(
            one.name == SKILL_FILE or one.name.startswith(_TEMPORARY) for one in home.iterdir()
        ):
            _hide(folder, home)
            return
        aside = _aside(folder, name)
        aside = (
            Path(tempfile.mkdtemp(prefix=f"{aside.name}-", dir=folder)) if aside.exists() else aside
        )
        home.rename(aside)
        (aside / SKILL_FILE).unlink(missing_ok=True)


def in_parallel(work: Callable[[_T], _R], items: Collection[_T]) -> list[_R]:
    """The results for all items in order; more than two at the same time, since each waits for the
    disk. Raises RuntimeError if no thread can be started."""
    if len(items) <= 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(work, items))


def flush_skills(folder: Path, names: Sequence[str]) -> None:
    """Flush these files, and removals, to disk. In parallel, since each waits for the disk."""
    homes = [folder / name for name in names if (folder / name).is_dir()]
    with _disk_errors(folder):
        files = [home / SKILL_FILE for home in homes if (home / SKILL_FILE).is_file()]
        in_parallel(sync_path, [*files, *homes])
        if folder.is_dir():
            sync_path(folder)


def sweep(folder: Path) -> None:
    """Delete what was hidden."""
    for grave in folder.glob(f"{_REMOVED}*"):
        shutil.rmtree(grave, ignore_errors=True)


def _hide(folder: Path, home: Path) -> Path | None:
    """Rename a skill's folder to a hidden one, which readers ignore. Of a link, only the link is
    removed.
    """
    if home.is_symlink():
        home.unlink()
        return None
    grave = Path(tempfile.mkdtemp(prefix=_REMOVED, dir=folder))
    home.rename(grave / home.name)
    return grave


def _aside(folder: Path, name: str) -> Path:
    return folder / f".aside-{name}"


def _required(fields: dict[str, object], key: str, where: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str) or not value.strip():
        found = (
            "is missing or empty"
            if value is None or isinstance(value, str)
            else f"is read as {type(value).__name__}, not as text"
        )
        raise SkillError(
            f"{where}: `{key}` {found}: write `{key}: …`, in quotes if it looks like a number, a"
            " date, yes or no"
        )
    if _HALF_CHARACTER.search(value):
        raise SkillError(
            f"{where}: `{key}` holds half a character (an escape such as `\\ud83d`): write the"
            " character itself"
        )
    return value.strip()


def _state(fields: dict[str, object], where: str) -> SkillState:
    value = fields.get("state", "live")
    if value not in ("live", "canary"):  # earlier versions had skills on trial
        raise SkillError(
            f"{where}: `state` is {value!r}: write `live`, or leave it out; a skill in any other"
            " state has no file"
        )
    return SkillState.LIVE


def _pinned(fields: dict[str, object], where: str) -> bool:
    value = fields.get("pinned", False)
    if not isinstance(value, bool):
        raise SkillError(f"{where}: `pinned` is {value!r}: write `true` or `false`")
    return value


def _check_rule_fields(fields: dict[str, object], where: str) -> None:
    """Check the fields of rules. A date, and a bare `off`, which YAML reads as false, are put back
    into text.
    """
    overrides, kind, examples, expires = (
        fields.get(key) for key in ("overrides", "kind", "examples", "expires")
    )
    if overrides is not None and not _is_list_of_texts(
        [overrides] if isinstance(overrides, str) else overrides
    ):
        raise SkillError(
            f"{where}: `overrides` is not a skill's name or a list of such: write `overrides:"
            " other-skill`"
        )
    if kind is not None and kind not in list(SkillKind):
        raise SkillError(
            f"{where}: `kind` is {kind!r}: write `skill`, `rule` or `fact`, or leave it out, which"
            " is a skill"
        )
    if examples is not None and not _is_list_of_texts(examples):
        raise SkillError(
            f'{where}: `examples` is not a list of requests: write `examples: ["…", "…"]`'
        )
    if expires is not None:
        try:
            fields["expires"] = date.fromisoformat(str(expires)).isoformat()
        except ValueError as error:
            raise SkillError(
                f"{where}: `expires` is {expires!r}: write the last day as 2027-01-31"
            ) from error
    if fields.get("enforce") is False:
        fields["enforce"] = "off"
    for key, allowed in CHOICES.items():
        if (fault := choice_fault(f"`{key}`", fields.get(key), allowed)) is not None:
            raise SkillError(f"{where}: {fault}")


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) and one.strip() for one in value)


def decode_skill(raw: bytes, path: Path | str) -> str:
    """The text of a skill's file. Raises SkillError that names `path`."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SkillError(
            f"{path}: byte {error.start} is not UTF-8: save the file as UTF-8"
        ) from error
    if "\0" in text:
        raise SkillError(
            f"{path}: there is a NUL character at {text.index(chr(0))}: save the file as plain text"
        )
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
                    f"{path}: {facts.st_size} bytes: a skill has at most {MAX_FILE_BYTES}; move"
                    " details to files beside it"
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
    """Raise SkillError if a link leads out of the skills folder."""
    try:
        inside = path.resolve(strict=True).is_relative_to(folder.resolve(strict=True))
    except (OSError, RuntimeError) as error:
        raise SkillError(f"{path}: a link that leads nowhere: remove it") from error
    if not inside:
        raise SkillError(
            f"{path}: a link that leads out of {folder}: copy the skill into the folder instead"
        )


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


def parse_front_matter(text: str, where: str) -> dict[str, object]:
    """The mapping in a front matter. Raises SkillError that names `where`, the line and the
    remedy.
    """
    if len(text) > _MAX_CHARS:
        raise SkillError(
            f"{where}: the front matter has {len(text)} characters: keep it below {_MAX_CHARS};"
            " text belongs below the second `---`"
        )
    plain = _parse_plain(text)
    if plain is not None:
        return plain
    # Imported only where needed, which is rare, to keep the start quick.
    from metaclaw.skills.yaml_fields import parse_yaml

    return parse_yaml(text, where)


def render_front_matter(fields: dict[str, object]) -> str:
    """The mapping as YAML lines, in the order given."""
    from metaclaw.skills.yaml_fields import write_yaml

    return write_yaml(fields)


def _parse_plain(text: str) -> dict[str, object] | None:
    """Read only lines of `key: words`, ten times as fast as YAML; None if there is anything
    else.
    """
    fields: dict[str, object] = {}
    at = 0
    while at < len(text):
        line = _PLAIN_LINE.match(text, at)
        if line is None or line[1] in fields or line[1] in _NOT_TEXT:
            return None
        key, plain, single, double = line.groups()
        value = plain.rstrip(" ") if plain else single or double
        if _CONTROL.search(value) or (plain and value.lower() in _NOT_TEXT):
            return None
        fields[key] = value
        at = line.end()
    return fields

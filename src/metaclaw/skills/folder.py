"""The skills folder: find the files that changed since the last poll, and write the files of a
published generation.

Names, times, sizes and inodes tell whether a file changed; no file is opened. A file is written
only while it still has a text that this program wrote or read before (`file_record`), so that a
person's edit is never lost. Interrupted writes are done later."""

import errno
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill
from metaclaw.errors import SkillError
from metaclaw.skills.file_record import (
    RECORD_FILE,
    FileFate,
    FileRecord,
    NoText,
    digest_of,
    fate_of,
    write_record,
)
from metaclaw.skills.files import (
    SKILL_FILE,
    flush_skills,
    in_parallel,
    read_skill,
    sweep,
    withdraw_skill,
    write_skill,
)

log = logging.getLogger(__name__)

# A file changed this recently may change again with the same time, because the clock of a file
# system is coarse.
_UNSETTLED_S = 0.1
# A removal counts when the folder has been quiet for this long: until then, the whole folder may be
# on its way out.
_QUIET_S = 0.5

Signature = tuple[int, int, int]

_NO_FILE: Signature = (-1, errno.ENOENT, 0)

_MANY = 100


class FolderChanges(NamedTuple):
    """Names of skill folders to read again, and of those that are gone."""

    changed: list[str]
    gone: list[str]


class FolderScan:
    """Remembers the state of the folder. If nothing changed, a poll costs one system call per
    skill.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = str(folder)
        self._clock = clock
        self._listed_at: int | None = None
        self._seen: dict[str, Signature | None] = {}
        self._turn: list[str] = []
        self._absent: set[str] = set()
        self._missing: set[str] = set()
        self._removed_at = 0.0

    def __contains__(self, name: str) -> bool:
        """Whether a folder of this name was there at the last poll."""
        return name in self._seen

    def poll(self, most: int | None = None, also: Iterable[str] = ()) -> FolderChanges:
        """The changes since the last poll. Checks at most `most` files, others at the next call,
        and those of `also`; new and removed folders are always noticed, and removals told once the
        folder is quiet. Raises OSError if the folder cannot be listed; a missing folder is
        empty."""
        new: set[str] = set()
        if self._folder_changed():
            new, self._absent = self._list()
            self._seen.update(dict.fromkeys(new))
        due = set(self._next(most)).union(new, also, self._missing).difference(self._absent)
        found = {name: self._signature(name) for name in due if name in self._seen}
        changed = {name for name, signature in found.items() if signature != self._seen[name]}
        emptied = {name for name in changed - new if found[name] == _NO_FILE}
        gone = self._removals(emptied)
        if self._missing:
            changed -= emptied
        for name in gone:
            del self._seen[name]
        for name in changed:
            self._seen[name] = found[name] if self._settled(found[name][0]) else None
        return FolderChanges(sorted(changed), sorted(gone))

    @property
    def is_quiet(self) -> bool:
        """Whether nothing was added or removed for a while, or there is no folder any more."""
        changed_at = self._modified_at(self._folder)
        return changed_at is None or not (
            self._is_recent(changed_at) or self._is_recent(self._removed_at)
        )

    @property
    def is_losing(self) -> bool:
        """Whether skills are missing that `poll` has not told yet."""
        with suppress(OSError):
            return bool(self._missing or self._list()[1])
        return False

    def mark_changed(self, name: str) -> None:
        """Report this skill as changed at the next poll."""
        if name in self._seen:
            self._seen[name] = None
            self._turn.append(name)

    def forget(self, name: str) -> None:
        """Do not take this skill for a removed one: this program withdrew it."""
        self._seen.pop(name, None)
        self._absent.discard(name)
        self._missing.discard(name)
        self._listed_at = None

    def _folder_changed(self) -> bool:
        try:
            changed_at = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 - called several times a second
        except FileNotFoundError:
            changed_at = -1
        if changed_at == self._listed_at:
            return False
        self._listed_at = changed_at if self._settled(changed_at) else None
        return True

    def _removals(self, emptied: set[str]) -> set[str]:
        """The folders that are gone, if the time has come to tell; otherwise they are kept as
        missing with those of `emptied`.
        """
        missing = self._absent | emptied
        if not self._missing:
            self._removed_at = 0.0  # the first removal is dated by the folder
        elif not missing <= self._missing:
            self._removed_at = self._clock()
        self._missing = missing
        times = [self._modified_at(f"{self._folder}/{name}") for name in emptied]
        if not self.is_quiet or any(at is not None and self._is_recent(at) for at in times):
            return set()
        gone, self._absent, self._missing = self._absent, set(), set()
        return gone

    def _list(self) -> tuple[set[str], set[str]]:
        try:
            with os.scandir(self._folder) as entries:
                found = {
                    entry.name
                    for entry in entries
                    if not entry.name.startswith(".")
                    and (entry.is_dir() or entry.name.endswith(".md"))
                }
        except FileNotFoundError:
            found = set()
        return found - self._seen.keys(), self._seen.keys() - found

    def _next(self, most: int | None) -> list[str]:
        if most is None or most >= len(self._seen):
            self._turn.clear()
            return list(self._seen)
        if len(self._turn) < most:
            self._turn = [*self._seen, *self._turn]
        due = self._turn[-most:]
        del self._turn[-most:]
        return due

    def _signature(self, name: str) -> Signature:
        try:
            facts = os.stat(f"{self._folder}/{name}/{SKILL_FILE}")  # noqa: PTH116 - as above
        except OSError as error:
            return (-1, error.errno or 0, 0)
        return (facts.st_mtime_ns, facts.st_size, facts.st_ino)

    def _settled(self, changed_at_ns: int) -> bool:
        return not 0 <= self._clock() - changed_at_ns / 1e9 < _UNSETTLED_S

    def _is_recent(self, at: float) -> bool:
        return 0 <= self._clock() - at < _QUIET_S

    @staticmethod
    def _modified_at(folder: str) -> float | None:
        try:
            return os.stat(folder).st_mtime  # noqa: PTH116 - as above
        except OSError:
            return None


def modified_at(path: Path) -> float | None:
    """When a file was last written, or None if there is no file."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_mtime if stat.S_ISREG(facts.st_mode) else None


class FolderUpkeep:
    """Writes the files of the generation in force, and keeps the record of them. One writer at a
    time. Nothing is written while `is_held` says so."""

    def __init__(self, folder: Path, is_held: Callable[[], bool]) -> None:
        self._folder = folder
        self._is_held = is_held
        self._files: dict[SkillName, str] = {}
        self._begun: dict[SkillName, frozenset[str]] = {}
        self._due: dict[SkillName, Skill | None] = {}
        self._contested: set[SkillName] = set()
        self._recorded: tuple[int, str] | None = None
        self._is_up_to_date = False
        self._has_removed = True  # an earlier process may have removed files
        self._may_record = True
        self.trouble: str | None = None

    @property
    def is_behind(self) -> bool:
        """Whether there are too many files to write to wait for them."""
        return len(self._due) > _MANY

    @property
    def has_record(self) -> bool:
        """Whether the record of this folder and store is known."""
        return self._recorded is not None

    @property
    def is_lost(self) -> bool:
        """Whether the folder no longer has the record: it was removed, or is another one."""
        return self._recorded is not None and not (self._folder / RECORD_FILE).exists()

    def begin(self, record: FileRecord | None, due: Mapping[SkillName, Skill | None]) -> None:
        """Start from the record of the folder. `due` are the skills that the store has changed
        since, None for a retired one.
        """
        self._recorded = None if record is None else (record.generation, record.hash)
        self._files, self._begun = (
            ({}, {}) if record is None else (dict(record.files), dict(record.begun))
        )
        self._is_up_to_date = record is not None
        self._due = {}
        self._contested.clear()
        self.owe(due)

    def owe(self, changes: Mapping[SkillName, Skill | None]) -> None:
        """Add published changes that must be written to files; None for a file to remove."""
        self._due |= changes
        for name, skill in changes.items():
            # While it is due, a file with this text is not a person's edit.
            digests = () if skill is None else (digest_of(skill),)
            self._begun[name] = self._begun.get(name, frozenset()).union(digests)
            self._is_up_to_date = False

    def settle(self, generation: int, library: str) -> list[SkillName]:
        """Write and remove the files that are due, and return the names of those removed. A failure
        is reported in `trouble`, and tried again at the next call."""
        self.trouble = None
        if not self._due or self.is_lost or self._is_held():
            return []
        # Before the files, so that one that is written when the process is killed is not taken for
        # a person's edit.
        not_recorded = self._write_record(generation, library, flush=False)
        if not_recorded is not None:
            self.trouble = (
                f"skill files are behind their generation: {self._folder} cannot be written:"
                f" {not_recorded.strerror}"
            )
            return []
        self._contested -= self._due.keys()
        try:
            found = in_parallel(self._bring_in_line, self._due.items())
        except RuntimeError as error:  # no thread can be started
            self.trouble = f"skill files are behind their generation: {error}"
            return []
        faults = dict(zip(self._due, found, strict=True))
        for fault in filter(None, faults.values()):
            self.trouble = f"a skill file is behind its generation: {fault}"
        done = sorted(name for name, fault in faults.items() if fault is None)
        removed = [name for name in done if self._due[name] is None and name not in self._contested]
        if not done:
            return removed
        try:
            flush_skills(self._folder, done)
        except (SkillError, RuntimeError) as error:
            self.trouble = f"skill files are written but may not outlive a loss of power: {error}"
            return removed
        for name in done:
            skill = self._due.pop(name)
            if name not in self._contested:
                self.agree(name, None if skill is None else digest_of(skill))
        return removed

    def agree(self, name: str, found: str | None) -> None:
        """Note that a file with this digest agrees with the store; None: there is no file."""
        name = SkillName(name)
        self._due.pop(name, None)
        if self._begun.pop(name, None) is None and self._files.get(name) == found:
            return
        self._is_up_to_date = False
        if found is None:
            self._files.pop(name, None)
        else:
            self._files[name] = found

    def record(self, generation: int, library: str) -> None:
        """Bring the record up to date, where it is not."""
        if (
            self.is_lost
            or (self._recorded is None and not self._files)
            or self._is_recorded(generation, library)
        ):
            return
        if self._is_held():
            return
        fault = self._write_record(generation, library, flush=True)
        if fault is not None and self._may_record:
            log.warning(
                "skills_not_recorded folder=%s reason=%s; files removed while stopped will not"
                " count",
                self._folder,
                fault,
            )
        self._may_record = fault is None

    def tidy(self) -> None:
        """Delete hidden files, which may take a while."""
        if self._has_removed:
            sweep(self._folder)
            for draft in self._folder.glob(f".{RECORD_FILE}.*.tmp"):
                draft.unlink(missing_ok=True)
            self._has_removed = False

    def fate(self, name: str, read: Skill | None) -> FileFate:
        """What becomes of a file, if it differs from the store. `read` is the skill in it; None if
        it cannot be read.
        """
        name = SkillName(name)
        found = self._look(name) if read is None else read
        text = digest_of(found) if isinstance(found, Skill) else found
        return fate_of(
            text,
            self._files.get(name),
            self._begun.get(name, frozenset()),
            is_due=name in self._due,
        )

    def contested(self, name: str) -> bool:
        """Whether a person edited this file while the store changed its skill; told once."""
        is_contested = name in self._contested or name in self._due
        self._contested.discard(SkillName(name))
        return is_contested

    def _write_record(self, generation: int, library: str, *, flush: bool) -> OSError | None:
        """Write the record unless it is up to date. All skills that are due are among those begun,
        so that they stay due.
        """
        if self._is_recorded(generation, library):
            return None
        try:
            write_record(
                self._folder, FileRecord(generation, library, self._files, self._begun), flush=flush
            )
        except OSError as error:
            return error
        self._recorded, self._is_up_to_date = (generation, library), True
        return None

    def _is_recorded(self, generation: int, library: str) -> bool:
        return self._is_up_to_date and self._recorded == (generation, library)

    def _bring_in_line(self, change: tuple[SkillName, Skill | None]) -> SkillError | None:
        name, desired = change
        try:
            read = self._look(name)
            if isinstance(read, Skill) and read == desired:
                return None
            if self.fate(name, read if isinstance(read, Skill) else None) is not FileFate.WRITE:
                self._contested.add(name)
                self._files.pop(name, None)
                self._is_up_to_date = False
            elif desired is None:
                withdraw_skill(self._folder, name)
                self._has_removed = True
            else:
                write_skill(self._folder, desired, flush=False)
        except SkillError as error:
            return error
        return None

    def _look(self, name: SkillName) -> Skill | NoText | None:
        """The skill in a file; None if there is no file, `NoText` if it cannot be read."""
        path = self._folder / name / SKILL_FILE
        try:
            return read_skill(path) if path.exists() else None
        except SkillError:
            with suppress(OSError):
                return NoText.EMPTY if path.stat().st_size == 0 else NoText.UNREADABLE
            return NoText.UNREADABLE

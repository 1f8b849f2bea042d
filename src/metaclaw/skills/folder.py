"""The skills folder: find the files that changed since the last poll, and write the files of a published generation.

Names, times, sizes and inodes tell whether a file changed; no file is opened. A file is written only while it still has the text of
the generation before, so that a person's edit is never lost. Interrupted writes are done later.
"""

import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from typing import NamedTuple

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill, SkillGeneration
from metaclaw.errors import SkillError
from metaclaw.ports import GenerationStore
from metaclaw.skills.fields import meaning_of
from metaclaw.skills.files import AT_ONCE, SKILL_FILE, flush_skills, read_skill, sweep, withdraw_skill, write_skill

# A file changed this recently may change again with the same time, because the clock of a file system is coarse.
_UNSETTLED_S = 0.1

Signature = tuple[int, int, int]

# Files that could not be written for a while may be several generations behind; at most 8 generations are compared.
_GENERATIONS_BACK = 8
_MANY = 100


class FolderChanges(NamedTuple):
    """Names of skill folders to read again, and of those that are gone."""

    changed: list[str]
    gone: list[str]


class FolderScan:
    """Remembers the state of the folder. If nothing changed, a poll costs one system call per skill."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = str(folder)
        self._clock = clock
        self._listed_at: int | None = None
        self._seen: dict[str, Signature | None] = {}
        self._turn: list[str] = []

    def __contains__(self, name: str) -> bool:
        """Whether a folder of this name was there at the last poll."""
        return name in self._seen

    def poll(self, most: int | None = None, also: Iterable[str] = ()) -> FolderChanges:
        """The changes since the last poll. Checks at most `most` files, others at the next call, and those of `also`; new and
        removed folders are always noticed. Raises OSError if the folder cannot be listed; a missing folder is empty."""
        new, gone = self._list() if self._folder_changed() else ([], [])
        for name in gone:
            del self._seen[name]
        self._seen.update(dict.fromkeys(new))
        due = set(self._next(most)).union(new, also)
        return FolderChanges(sorted(name for name in due if name in self._seen and self._file_changed(name)), sorted(gone))

    def mark_changed(self, name: str) -> None:
        """Report this skill as changed at the next poll."""
        if name in self._seen:
            self._seen[name] = None
            self._turn.append(name)

    def _folder_changed(self) -> bool:
        try:
            changed_at = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 - called several times a second
        except FileNotFoundError:
            changed_at = -1
        if changed_at == self._listed_at:
            return False
        self._listed_at = changed_at if self._settled(changed_at) else None
        return True

    def _list(self) -> tuple[list[str], list[str]]:
        try:
            with os.scandir(self._folder) as entries:
                found = {
                    entry.name
                    for entry in entries
                    if not entry.name.startswith(".") and (entry.is_dir() or entry.name.endswith(".md"))
                }
        except FileNotFoundError:
            found = set()
        return [name for name in found if name not in self._seen], [name for name in self._seen if name not in found]

    def _next(self, most: int | None) -> list[str]:
        if most is None or most >= len(self._seen):
            self._turn.clear()
            return list(self._seen)
        if len(self._turn) < most:
            self._turn = [*self._seen, *self._turn]
        due = self._turn[-most:]
        del self._turn[-most:]
        return due

    def _file_changed(self, name: str) -> bool:
        try:
            facts = os.stat(f"{self._folder}/{name}/{SKILL_FILE}")  # noqa: PTH116 - as above
            signature: Signature = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
        except OSError as error:
            signature = (-1, error.errno or 0, 0)
        if self._seen[name] == signature:
            return False
        self._seen[name] = signature if self._settled(signature[0]) else None
        return True

    def _settled(self, changed_at_ns: int) -> bool:
        return not 0 <= self._clock() - changed_at_ns / 1e9 < _UNSETTLED_S


def modified_at(path: Path) -> float | None:
    """When a file was last written, or None if there is no file."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_mtime if stat.S_ISREG(facts.st_mode) else None


class NoText(Enum):
    """A file without a readable skill. An empty file may be the result of a power loss, and does not count as an edit."""

    EMPTY = auto()
    UNREADABLE = auto()


class OwedChange(NamedTuple):
    """The wanted and the previous text of a file; None is no file."""

    desired: Skill | None
    before: Skill | None


class FolderUpkeep:
    """Writes the files of the generation in force. One writer at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._owed: dict[SkillName, OwedChange] = {}
        self._settled: set[SkillName] = set()
        self._contested: dict[SkillName, Skill] = {}
        self._has_removed = True  # an earlier process may have removed files
        self.trouble: str | None = None

    @property
    def is_behind(self) -> bool:
        """Whether there are too many files to write to wait for them."""
        return len(self._owed) > _MANY

    def owe(self, changes: Mapping[SkillName, OwedChange]) -> None:
        """Add published changes that must be written to files."""
        for name, change in changes.items():
            # If the last change was not written, the file still has the text before that.
            earlier = self._owed.get(name)
            self._owed[name] = OwedChange(change.desired, change.before if earlier is None else earlier.before)
        self._settled -= changes.keys()

    def recall(self, generations: GenerationStore, latest: SkillGeneration) -> None:
        """Find in the store the changes that an earlier process published but did not write."""
        unwritten = generations.unwritten()
        doubtful, changes = set(unwritten), dict[SkillName, OwedChange]()
        for number in range(latest.number - 1, max(-1, latest.number - 1 - _GENERATIONS_BACK), -1):
            earlier = generations.at(number) if doubtful else None
            texts = {} if earlier is None else {skill.name: skill for skill in earlier.skills}
            for name in sorted(doubtful):
                owed = OwedChange(unwritten[name], texts.get(name))
                changes.setdefault(name, owed)
                if _is_same_text(self._read(name), owed.before):
                    changes[name] = owed
                    doubtful.remove(name)
        self.owe(changes)

    def settle(self, generations: GenerationStore) -> None:
        """Write and remove the files that are due. A failure is reported in `trouble`, and tried again at the next call. Raises
        StoreError."""
        self.trouble = None
        owed = list(self._owed.items())
        with ThreadPoolExecutor(AT_ONCE) as pool:  # starts no thread if there is nothing to do
            for (name, _), fault in zip(owed, pool.map(self._bring_in_line, owed), strict=True):
                if fault is not None:
                    self.trouble = f"a skill file is behind its generation: {fault}"
                else:
                    del self._owed[name]
                    self._settled.add(name)
        if self._settled:
            self._note(generations)

    def tidy(self) -> None:
        """Delete hidden files, which may take a while."""
        if self._has_removed:
            sweep(self._folder)
            self._has_removed = False

    def _note(self, generations: GenerationStore) -> None:
        try:
            flush_skills(self._folder, sorted(self._settled))
        except SkillError as error:
            self.trouble = f"skill files are written but may not outlive a loss of power: {error}"
        else:
            generations.written(sorted(self._settled))
            self._settled.clear()

    def awaits(self, name: str, read: Skill | None) -> bool:
        """Whether this file waits for a write and still has its old text, so that it does not count as an edit."""
        owed = self._owed.get(SkillName(name))
        return owed is not None and _is_same_text(read, owed.before)

    def contested(self, name: str) -> Skill | None:
        """The skill before a person edited its file while a write was due; returned once."""
        return self._contested.pop(SkillName(name), None)

    def _bring_in_line(self, change: tuple[SkillName, OwedChange]) -> SkillError | None:
        name, owed = change
        try:
            read = self._read(name)
            if read == owed.desired:
                return None
            if not _is_same_text(read, owed.before):
                self._contested |= {} if owed.before is None else {name: owed.before}
            elif owed.desired is None:
                withdraw_skill(self._folder, name)
                self._has_removed = True
            else:
                write_skill(self._folder, owed.desired, flush=False)
        except SkillError as error:
            return error
        return None

    def _read(self, name: SkillName) -> "Skill | NoText | None":
        """The skill in a file; None if there is no file, `NoText` if it cannot be read."""
        path = self._folder / name / SKILL_FILE
        try:
            return read_skill(path) if path.exists() else None
        except SkillError:
            with suppress(OSError):
                return NoText.EMPTY if path.stat().st_size == 0 else NoText.UNREADABLE
            return NoText.UNREADABLE


def _is_same_text(read: Skill | NoText | None, before: Skill | None) -> bool:
    """Whether a file still has its previous meaning; pinning counts."""
    if isinstance(read, NoText):
        return read is NoText.EMPTY
    if read is None or before is None:
        return read is before
    return (meaning_of(read), read.pinned) == (meaning_of(before), before.pinned)

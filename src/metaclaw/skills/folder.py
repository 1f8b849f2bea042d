"""The skills folder: what changed in it since the last look, and writing the files of a published generation.

Changes are told from names, times, sizes and inodes, without opening a file. A file that is owed a change is changed only while it
still says what it said before: an edit by a person is never lost, and what was interrupted is done later.
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

# A file changed this recently may change again without its time changing: the clock of a file system ticks every few milliseconds.
_UNSETTLED_S = 0.1

Signature = tuple[int, int, int]

# Files that could not be written for a while may be behind by several generations; older ones are not looked at.
_GENERATIONS_BACK = 8
_MANY = 100


class FolderChanges(NamedTuple):
    """Names of skill folders to read again, and of those that are gone."""

    changed: list[str]
    gone: list[str]


class FolderScan:
    """Remembers what the folder looked like. Where nothing changed, a look costs one system call a skill."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = str(folder)
        self._clock = clock
        self._listed_at: int | None = None
        self._seen: dict[str, Signature | None] = {}
        self._turn: list[str] = []

    def __contains__(self, name: str) -> bool:
        """Whether a folder of this name was there at the last look."""
        return name in self._seen

    def look(self, most: int | None = None, also: Iterable[str] = ()) -> FolderChanges:
        """What changed. With `most`, only so many files are checked, in turn from call to call, and those of `also`; new and
        removed folders are always noticed. Raises OSError if the folder cannot be listed; a missing one is empty."""
        new, gone = self._list() if self._folder_changed() else ([], [])
        for name in gone:
            del self._seen[name]
        self._seen.update(dict.fromkeys(new))
        due = set(self._next(most)).union(new, also)
        return FolderChanges(sorted(name for name in due if name in self._seen and self._file_changed(name)), sorted(gone))

    def look_again(self, name: str) -> None:
        """Report this one as changed next time."""
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
    """When a file was last written, or None where there is none."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_mtime if stat.S_ISREG(facts.st_mode) else None


class NoText(Enum):
    """A file without a readable skill. An empty one may be the result of a power loss, and is no edit."""

    EMPTY = auto()
    UNREADABLE = auto()


class OwedChange(NamedTuple):
    """The wanted and the previous text of a file; None is no file."""

    desired: Skill | None
    before: Skill | None


class FolderUpkeep:
    """Brings files in line with the generation in force. One writer at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._owed: dict[SkillName, OwedChange] = {}
        self._settled: set[SkillName] = set()
        self._contested: dict[SkillName, Skill] = {}
        self._has_removed = True  # perhaps, when the program last ran
        self.trouble: str | None = None

    @property
    def is_behind(self) -> bool:
        """Whether too many files are to be written to wait for them."""
        return len(self._owed) > _MANY

    def owe(self, changes: Mapping[SkillName, OwedChange]) -> None:
        """Note published changes that are to be written to files."""
        for name, change in changes.items():
            # A file that never got its last change still says what it said before that.
            earlier = self._owed.get(name)
            self._owed[name] = OwedChange(change.desired, change.before if earlier is None else earlier.before)
        self._settled -= changes.keys()

    def recall(self, generations: GenerationStore, latest: SkillGeneration) -> None:
        """Find in the store what was published but not written when the program last stopped."""
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
        """Write and remove the files that are due. A failure is kept in `trouble`, and the file is tried again. Raises
        StoreError."""
        self.trouble = None
        owed = list(self._owed.items())
        with ThreadPoolExecutor(AT_ONCE) as pool:  # which starts no thread where there is nothing to do
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
        """Whether this file is known to be outdated, so that its text is no edit."""
        owed = self._owed.get(SkillName(name))
        return owed is not None and _is_same_text(read, owed.before)

    def contested(self, name: str) -> Skill | None:
        """The skill as it was before a person changed it while the program was about to; returned once."""
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
    """Whether a file still means what it did before; pinning counts."""
    if isinstance(read, NoText):
        return read is NoText.EMPTY
    if read is None or before is None:
        return read is before
    return (meaning_of(read), read.pinned) == (meaning_of(before), before.pinned)

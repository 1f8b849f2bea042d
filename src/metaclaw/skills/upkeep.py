"""Bringing files in line with a generation that was published: whatever was interrupted is done later, and nobody's edit is lost.

A file that is owed a change is changed only while it still says what it said before. If it says anything else by then, a person has
been there: their version stays, and is taken in as their edit.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto
from pathlib import Path
from typing import NamedTuple

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill, SkillGeneration
from metaclaw.errors import SkillError
from metaclaw.ports import GenerationStore
from metaclaw.skills.files import AT_ONCE, SKILL_FILE, flush_skills, read_skill, sweep, withdraw_skill, write_skill
from metaclaw.skills.ownership import meaning_of

# Files that could not be written for a while may be behind by several generations; further back nobody looks.
_GENERATIONS_BACK = 8
_MANY = 100


class Nothing(Enum):
    """A file that says nothing. After a loss of power there may be an empty one, which is nobody's text."""

    EMPTY = auto()
    UNREADABLE = auto()


class Owed(NamedTuple):
    """What a file should say and what it said before; None is no file."""

    desired: Skill | None
    before: Skill | None


class Upkeep:
    """The files that do not say yet what the generation in force says. One writer at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._owed: dict[SkillName, Owed] = {}
        self._settled: set[SkillName] = set()
        self._contested: dict[SkillName, Skill] = {}
        self._has_removed = True  # perhaps, when the program last ran
        self.trouble: str | None = None

    @property
    def is_behind(self) -> bool:
        """Whether so many files are owed a change that nobody should be kept waiting for them."""
        return len(self._owed) > _MANY

    def owe(self, changes: Mapping[SkillName, Owed]) -> None:
        """Remember what has been published and is to be written."""
        for name, change in changes.items():
            # A file that never got its last change still says what it said before that.
            earlier = self._owed.get(name)
            self._owed[name] = Owed(change.desired, change.before if earlier is None else earlier.before)
        self._settled -= changes.keys()

    def recall(self, generations: GenerationStore, latest: SkillGeneration) -> None:
        """Find out from the store what was published and not written when the program last stopped."""
        unwritten = generations.unwritten()
        doubtful, changes = set(unwritten), dict[SkillName, Owed]()
        for number in range(latest.number - 1, max(-1, latest.number - 1 - _GENERATIONS_BACK), -1):
            earlier = generations.at(number) if doubtful else None
            texts = {} if earlier is None else {skill.name: skill for skill in earlier.skills}
            for name in sorted(doubtful):
                owed = Owed(unwritten[name], texts.get(name))
                changes.setdefault(name, owed)
                if _is_same_text(self._read(name), owed.before):
                    changes[name] = owed
                    doubtful.remove(name)
        self.owe(changes)

    def settle(self, generations: GenerationStore) -> None:
        """Write and remove what is owed. What fails is told in `trouble` and stays owed. Raises StoreError."""
        self.trouble = None
        owed = list(self._owed.items())
        with ThreadPoolExecutor(AT_ONCE) as pool:  # which starts no thread where there is nothing to do
            for (name, _), fault in zip(owed, pool.map(self._attempt, owed), strict=True):
                if fault is not None:
                    self.trouble = f"a skill file is behind its generation: {fault}"
                else:
                    del self._owed[name]
                    self._settled.add(name)
        if self._settled:
            self._note(generations)

    def tidy(self) -> None:
        """Delete for good what was taken out of sight, which may take a while."""
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
        """Whether this is a file we know to be outdated, so that what it says is nobody's edit."""
        owed = self._owed.get(SkillName(name))
        return owed is not None and _is_same_text(read, owed.before)

    def contested(self, name: str) -> Skill | None:
        """The skill that a person changed while the program was about to; asked once."""
        return self._contested.pop(SkillName(name), None)

    def _attempt(self, change: tuple[SkillName, Owed]) -> SkillError | None:
        try:
            self._bring_in_line(*change)
        except SkillError as error:
            return error
        return None

    def _bring_in_line(self, name: SkillName, owed: Owed) -> None:
        read = self._read(name)
        if read == owed.desired:
            return
        if not _is_same_text(read, owed.before):
            self._contested |= {} if owed.before is None else {name: owed.before}
        elif owed.desired is None:
            withdraw_skill(self._folder, name)
            self._has_removed = True
        else:
            write_skill(self._folder, owed.desired, flush=False)

    def _read(self, name: SkillName) -> "Skill | Nothing | None":
        """What a skill's file says, or that there is none, or nothing that can be read."""
        path = self._folder / name / SKILL_FILE
        try:
            return read_skill(path) if path.exists() else None
        except SkillError:
            return Nothing.EMPTY if _is_empty(path) else Nothing.UNREADABLE


def _is_same_text(read: Skill | Nothing | None, before: Skill | None) -> bool:
    """Whether nobody has changed what a file says; pinning is a word too."""
    if isinstance(read, Nothing):
        return read is Nothing.EMPTY
    if read is None or before is None:
        return read is before
    return (meaning_of(read), read.pinned) == (meaning_of(before), before.pinned)


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError:
        return False

"""A set of skills that can be searched, and its one hash: immutable, changed by making the next one."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from metaclaw.domain.skill import Skill, combined_hash
from metaclaw.skills.index import SkillIndex


class Library:
    """The index over a set of skills together with their content hashes, so that 100,000 texts are not hashed for one change."""

    __slots__ = ("_hash", "_hashes", "index")

    def __init__(self, index: SkillIndex, hashes: list[str]) -> None:
        self.index = index
        self._hashes = hashes
        self._hash: str | None = None

    def __len__(self) -> int:
        return len(self.index)

    @staticmethod
    def of(skills: Sequence[Skill]) -> "Library":
        """The library of these skills."""
        return Library(SkillIndex(), []).changed(skills, ())

    @property
    def hash(self) -> str:
        """One hash for the whole set."""
        if self._hash is None:
            self._hash = combined_hash(self._hashes)
        return self._hash

    def get(self, name: str) -> Skill | None:
        """The skill of this name."""
        return self.index.get(name)

    def skills(self) -> list[Skill]:
        """Every skill, in no particular order."""
        return self.index.skills()

    def changed(self, put: Sequence[Skill], removed: Iterable[str]) -> "Library":
        """The next library: `removed` names taken out, `put` added or, where the name is known, replaced."""
        removed = [name for name in removed if self.get(name) is not None]
        if not put and not removed:
            return self
        hashes = self._hashes.copy()
        for name in {*removed, *(skill.name for skill in put)}:
            outdated = self.get(name)
            if outdated is not None:
                del hashes[bisect_left(hashes, outdated.content_hash)]
        hashes += [skill.content_hash for skill in put]
        hashes.sort()  # all but the last few are in order already, which makes this a single pass
        return Library(self.index.changed(put, removed), hashes)

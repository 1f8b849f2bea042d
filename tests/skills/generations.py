"""A generation store in memory for tests of the library. It can fail, and stop the program at any call."""

from collections.abc import Iterable, Sequence

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import LearnedFrom, Skill, SkillGeneration, library_hash
from metaclaw.errors import StoreError


class Stopped(BaseException):
    """The program was killed here."""


class Generations:
    """Keeps everything that was ever published."""

    def __init__(self) -> None:
        self.kept = [SkillGeneration(0, library_hash(()), ())]
        self.reasons = ["empty"]
        self.owed: set[SkillName] = set()
        self.broken = False
        self.stops_after_publishing = False
        self.stops_before_noting = False

    def latest(self) -> SkillGeneration:
        self._refuse_if_broken()
        return self.kept[-1]

    def at(self, number: int) -> SkillGeneration | None:
        self._refuse_if_broken()
        return self.kept[number] if 0 <= number < len(self.kept) else None

    def publish(
        self,
        skills: Sequence[Skill],
        reason: str,
        unwritten: Sequence[SkillName] = (),
        *,
        learned: LearnedFrom | None = None,
        reverted_to: int | None = None,
    ) -> SkillGeneration:
        self._refuse_if_broken()
        self.kept.append(SkillGeneration(len(self.kept), library_hash(skills), tuple(sorted(skills, key=lambda one: one.name))))
        self.reasons.append(reason)
        self.owed |= set(unwritten)
        if self.stops_after_publishing:
            raise Stopped
        return self.kept[-1]

    def unwritten(self) -> dict[SkillName, Skill | None]:
        self._refuse_if_broken()
        texts = {skill.name: skill for skill in self.kept[-1].skills}
        return {name: texts.get(name) for name in self.owed}

    def written(self, names: Iterable[SkillName]) -> None:
        self._refuse_if_broken()
        if self.stops_before_noting:
            raise Stopped
        self.owed -= set(names)

    def _refuse_if_broken(self) -> None:
        if self.broken:
            raise StoreError("disk full")

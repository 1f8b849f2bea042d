"""A generation store in memory for tests of the library. It can fail, and stop the program at any
call.
"""

from collections.abc import Sequence

from metaclaw.domain.skill import ChangesSince, LearnedFrom, Skill, SkillGeneration, library_hash
from metaclaw.errors import OvertakenError, StoreError


class Stopped(BaseException):
    """The program was killed here."""


class Generations:
    """Keeps everything that was ever published."""

    def __init__(self) -> None:
        self.kept = [SkillGeneration(0, library_hash(()), ())]
        self.reasons = ["empty"]
        self.broken = False
        self.stops_after_publishing = False

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
        *,
        after: int | None = None,
        learned: LearnedFrom | None = None,
        reverted_to: int | None = None,
    ) -> SkillGeneration:
        self._refuse_if_broken()
        if after not in (None, len(self.kept) - 1):
            raise OvertakenError("somebody was faster")
        self.kept.append(
            SkillGeneration(
                len(self.kept),
                library_hash(skills),
                tuple(sorted(skills, key=lambda one: one.name)),
            )
        )
        self.reasons.append(reason)
        if self.stops_after_publishing:
            raise Stopped
        return self.kept[-1]

    def since(self, number: int) -> ChangesSince:
        self._refuse_if_broken()
        known = self.kept[min(number, len(self.kept) - 1)]
        before, now = (
            {one.name: one for one in generation.skills} for generation in (known, self.kept[-1])
        )
        put = tuple(skill for name, skill in now.items() if before.get(name) != skill)
        return ChangesSince(
            self.kept[-1].number, self.kept[-1].hash, put, tuple(before.keys() - now.keys())
        )

    def _refuse_if_broken(self) -> None:
        if self.broken:
            raise StoreError("disk full")

"""The skills in force, as the loops need them: read at any time, changed by one atomic publication."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import LearnedFrom, Skill
from metaclaw.skills import ShelfView


class SkillShelf(Protocol):
    """`skills.Shelf`, or what stands for it in the learner's process."""

    @property
    def view(self) -> ShelfView: ...
    def publish(
        self,
        put: Sequence[Skill],
        retire: Iterable[SkillName],
        reason: str,
        *,
        expected: Mapping[SkillName, str | None] | None = None,
        learned: LearnedFrom | None = None,
        by_person: bool = False,
    ) -> ShelfView:
        """These skills are in force from now on, those no longer; the view afterwards. Blocks.

        Raises SkillError, and changes nothing, where one of them is another than expected, or a person's unless they asked for it
        (`by_person`), and RefusedError where
        the evidence is out of date."""


def stay() -> None:
    """How a loop keeps up with skills that are always up to date: not at all."""

"""Skills that came into force or changed after a failure: their effect must show before the failure may teach."""

from typing import Protocol

from metaclaw.domain.audience import Audience, audience_of
from metaclaw.domain.skill import SkillChange
from metaclaw.domain.turn import Scope
from metaclaw.domain.verdict import OpenFailure
from metaclaw.skills import Teams, applying


class ChangeReader(Protocol):
    """`store.SqlGenerations`, as far as it is needed here."""

    def skill_changes(self, after: int) -> list[SkillChange]: ...


class SkillChanges:
    """Remembers the newest change of a skill for each audience, and reads only generations it has not read. Blocks."""

    def __init__(self, generations: ChangeReader, teams: Teams) -> None:
        self._generations = generations
        self._teams = teams
        self._newest: dict[Audience, SkillChange] = {}
        # Changes of the generations after `_from` up to `_to` are in `_newest`.
        self._from = self._to = 0

    def without_overtaken(self, failures: list[OpenFailure], generation: int) -> list[OpenFailure]:
        """The failures after whose turn and verdict no skill that applies to their speaker came into force or changed.

        `generation` is the newest generation known to be in the database.
        """
        if not failures:
            return []
        self._read(min(one.generation for one in failures), generation)
        last: dict[Scope, SkillChange | None] = {scope: self._last(scope) for scope in {one.scope for one in failures}}
        return [one for one in failures if not _is_overtaken(one, last[one.scope])]

    def _read(self, after: int, generation: int) -> None:
        if after < self._from or not self._to:
            self._newest, self._from, self._to = {}, after, after
        if generation > self._to:
            for change in self._generations.skill_changes(self._to):
                audience = audience_of(change.skill)
                if audience is not None:
                    self._newest[audience] = change
            self._to = generation

    def _last(self, scope: Scope) -> SkillChange | None:
        """The newest change of a skill for this speaker."""
        mine = applying(scope, self._teams)
        found = (
            change
            for change in self._newest.values()
            if (change.skill.scope is None or change.skill.scope in mine) and change.skill.is_for_workspace(scope.workspace)
        )
        return max(found, key=lambda change: change.number, default=None)


def _is_overtaken(failure: OpenFailure, last: SkillChange | None) -> bool:
    # Of all changes the last decides: it has the highest number and the latest time.
    return last is not None and last.number > failure.generation and last.published_at >= failure.judged_at

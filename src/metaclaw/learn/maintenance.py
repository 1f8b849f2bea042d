"""Maintenance of the learned skills: count their uses, and once a day retire those that did not help
or that no task needed. Lessons are withdrawn by `learn.lessons`."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypedDict

import anyio
from anyio.to_thread import run_sync

from metaclaw.domain.skill import Authorship, Skill
from metaclaw.domain.verdict import Outcome
from metaclaw.learn.admission import CandidateAdmission
from metaclaw.learn.retention import microseconds
from metaclaw.learn.store_rpc import AnyLibrary
from metaclaw.skills import OWNER, Teams
from metaclaw.store import InForce, LedgerReader, SqlCursors, SqlGenerations, SqlUses

_EVERY_S: Final = 20.0
_PAGE: Final = 500
_MOST_PAGES: Final = 10
_DAY_US: Final = 86_400_000_000
_CURSOR: Final = "chore retirement"
_TURNS_THAT_REFUTE: Final = 5
_MOST_TURNS: Final = 60
# Both, so that a holiday makes no skill stale.
_STALE_AFTER: Final = timedelta(days=90)
_STALE_TASKS: Final = 500


class ScopeMembers(TypedDict, total=False):
    """Members of a scope: users (None: requests without a user id) or workspaces; everyone if none
    is named.
    """

    users: Collection[str | None]
    workspaces: Collection[str]


def members_of_scope(scope: str | None, teams: Teams) -> ScopeMembers:
    """The members of a skill's scope."""
    if scope is None:
        return ScopeMembers()
    if scope == OWNER:
        return ScopeMembers(users=(None,))
    kind, _, who = scope.partition(":")
    match kind:
        case "user":
            return ScopeMembers(users=(who,))
        case "workspace":
            return ScopeMembers(workspaces=(who,))
        case "team":
            return ScopeMembers(users=tuple(teams.get(who, ())))
        case _:
            return ScopeMembers(users=(scope,), workspaces=(scope,))


@dataclass(frozen=True, slots=True)
class SkillTally:
    """The known outcomes of turns with a skill in their prompt, since it has its present text."""

    passed: int = 0
    failed: int = 0

    @property
    def did_not_help(self) -> bool:
        return self.failed >= _TURNS_THAT_REFUTE and self.failed >= self.passed


@dataclass(eq=False)
class SkillCounts:
    """Counts the outcomes of skills. Blocks."""

    uses: SqlUses
    generations: SqlGenerations
    teams: Teams

    def tally(self, skill: Skill) -> SkillTally:
        since = self.generations.in_force(skill.name)
        if since is None:
            return SkillTally()
        members = members_of_scope(skill.scope, self.teams)
        outcomes = self.uses.outcomes(skill.name, since.text_since, _MOST_TURNS, **members)
        return SkillTally(outcomes.count(Outcome.PASS), outcomes.count(Outcome.FAIL))


@dataclass(eq=False, kw_only=True)
class Maintenance:
    """Counts the uses of skills every 20 seconds, and retires skills once a day. Skills that a
    person stated, wrote or pinned stay."""

    reader: LedgerReader
    cursors: SqlCursors
    library: AnyLibrary
    counts: SkillCounts
    admission: CandidateAdmission
    now: Callable[[], datetime]

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await anyio.sleep(_EVERY_S)
            await self.run_once()

    async def run_once(self) -> None:
        await run_sync(self.library.follow)
        await run_sync(self._count_uses)
        if await run_sync(self._is_due):
            for skill, reason in await run_sync(self._retirements):
                await self.admission.retire(skill, reason)

    def _count_uses(self) -> None:
        uses = self.counts.uses
        for _ in range(_MOST_PAGES):
            rows = self.reader.turns_after(uses.cursor(), _PAGE)
            uses.note(rows)
            if len(rows) < _PAGE:
                return

    def _is_due(self) -> bool:
        """Whether a day has passed since the last time; it then counts as done."""
        now_us = microseconds(self.now())
        # A time in the future means that the clock was ahead then.
        if 0 <= now_us - self.cursors.cursor(_CURSOR) < _DAY_US:
            return False
        self.cursors.move_cursor(_CURSOR, now_us)
        return True

    def _retirements(self) -> list[tuple[Skill, str]]:
        """The learned skills to retire, by name, and why."""
        found = []
        for skill in sorted(self.library.view.index.skills(), key=lambda skill: skill.name):
            is_learned = skill.is_skill and skill.author is Authorship.EVOLVER
            since = self.counts.generations.in_force(skill.name) if is_learned else None
            if since is None or skill.pinned:
                continue
            reason = self._failed(skill) or self._stale(skill, since)
            if reason is not None:
                found.append((skill, reason))
        return found

    def _failed(self, skill: Skill) -> str | None:
        tally = self.counts.tally(skill)
        if not tally.did_not_help:
            return None
        decided = tally.passed + tally.failed
        return f"it did not help: {tally.failed} of {decided} turns with it failed"

    def _stale(self, skill: Skill, since: InForce) -> str | None:
        uses = self.counts.uses
        use = uses.uses_of([skill.name]).get(skill.name)
        # Earlier uses were of another skill with the same name.
        last = since.since if use is None else max(use.last_at, since.since)
        idle = self.now() - last
        if idle < _STALE_AFTER:
            return None
        members = members_of_scope(skill.scope, self.counts.teams)
        tasks = uses.tasks_since(last, _STALE_TASKS, **members)
        if tasks < _STALE_TASKS:
            return None
        return f"no task has matched it for {idle.days} days and {tasks} tasks"

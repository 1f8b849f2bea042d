"""A daily chore: skills that nothing has asked for in a long time, although there was plenty to do, are retired."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from metaclaw.domain.skill import Authorship, Skill
from metaclaw.learn.admission import CandidateAdmission
from metaclaw.skills import OWNER, Life, RetireRules, Teams, find_retirements
from metaclaw.store import SkillUse, SqlGenerations, SqlUses

_AT_ONCE: Final = 500


class Expiry:
    """Retires what is stale. What a person said, wrote or pinned does not age."""

    name = "aging"

    def __init__(
        self,
        *,
        uses: SqlUses,
        generations: SqlGenerations,
        admission: CandidateAdmission,
        teams: Teams,
        rules: RetireRules | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._uses = uses
        self._generations = generations
        self._admission = admission
        self._teams = teams
        self._rules = rules or RetireRules()
        self._now = now

    async def do(self, learned: Sequence[Skill], aside: TaskGroup) -> None:
        """Look at all of them; those never counted before begin to age now."""
        mine = [skill for skill in learned if skill.author is Authorship.EVOLVER]
        for at in range(0, len(mine), _AT_ONCE):
            some = mine[at : at + _AT_ONCE]
            known = {skill.name: skill for skill in some}
            for retirement in find_retirements(await run_sync(self._lives, some), self._now(), self._rules):
                await self._admission.retire(known[retirement.skill], retirement.reason)

    def _lives(self, skills: Sequence[Skill]) -> list[Life]:
        """Those that have not matched for long; only for them it is worth counting what there was to do."""
        uses = self._uses.uses_of([skill.name for skill in skills])
        self._uses.begin([skill.name for skill in skills if skill.name not in uses], self._now())
        lives = [self._life(skill, uses[skill.name]) for skill in skills if self._is_long_ago(uses.get(skill.name))]
        return [life for life in lives if life is not None]

    def _is_long_ago(self, use: SkillUse | None) -> bool:
        return use is not None and self._now() - use.last_at >= self._rules.stale_after

    def _life(self, skill: Skill, use: SkillUse) -> Life | None:
        since = self._generations.in_force(skill.name)
        if since is None:
            return None
        # What was used before it came into force as it is now was another skill of this name.
        last = max(use.last_at, since.since)
        who = whose(skill.scope, self._teams)
        tasks = self._uses.tasks_since(
            last, self._rules.stale_opportunities, users=who.users, workspaces=who.workspaces, nobody=who.is_nobody
        )
        return Life(skill, last, tasks)


@dataclass(frozen=True, slots=True)
class Whose:
    """Who speaks in a scope: these users, in these workspaces, or whoever has no user id; everyone where nobody is named."""

    users: Collection[str] | None = None
    workspaces: Collection[str] | None = None
    is_nobody: bool = False


def whose(scope: str | None, teams: Teams) -> Whose:
    """Who a skill of this scope is for."""
    if scope is None:
        return Whose()
    if scope == OWNER:
        return Whose(is_nobody=True)
    kind, _, who = scope.partition(":")
    match kind:
        case "user":
            return Whose(users=(who,))
        case "workspace":
            return Whose(workspaces=(who,))
        case "team":
            return Whose(users=tuple(teams.get(who, ())))
        case _:
            return Whose(users=(scope,), workspaces=(scope,))

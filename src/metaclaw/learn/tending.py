"""The library's upkeep, from live evidence: canaries promoted or demoted, harmful and stale skills retired."""

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

import anyio
from anyio.to_thread import run_sync

from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.domain.verdict import Outcome
from metaclaw.learn.admitting import Admitting
from metaclaw.skills import Shelf
from metaclaw.skills.gate import CanaryDecision, LiveTrial, judge_canary
from metaclaw.skills.hygiene import Life, Uplift, find_retirements, measure_uplift
from metaclaw.store import LedgerReader

log = logging.getLogger(__name__)

_EVERY_S: Final = 20.0


class Tending:
    """Looks at every learned skill in force, now and then."""

    def __init__(
        self,
        *,
        reader: LedgerReader,
        shelf: Shelf,
        admitting: Admitting,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._reader = reader
        self._shelf = shelf
        self._admitting = admitting
        self._now = now

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await anyio.sleep(_EVERY_S)
            await self.look()

    async def look(self) -> None:
        """Decide about each canary, then retire what has had its day."""
        for skill in await run_sync(self._learned):
            if skill.state is SkillState.CANARY:
                await self._judge(skill)
        await self._retire(await run_sync(self._learned))

    def _learned(self) -> list[Skill]:
        return [skill for skill in self._shelf.view.skills if skill.author is not Authorship.PERSON and not skill.pinned]

    async def _judge(self, skill: Skill) -> None:
        report = judge_canary(await run_sync(self.trials, skill))
        match report.decision:
            case CanaryDecision.PROMOTE:
                await self._admitting.change_state(skill, SkillState.LIVE, f"promoted {skill.name}: {report.reason}")
                log.info("skill_promoted name=%s reason=%s", skill.name, report.reason)
            case CanaryDecision.DEMOTE:
                await self._admitting.retire(skill, report.reason)
            case CanaryDecision.WAIT:
                log.debug("canary_waits name=%s reason=%s", skill.name, report.reason)

    async def _retire(self, skills: Sequence[Skill]) -> None:
        lives = await run_sync(lambda: [self._life(skill) for skill in skills])
        known = {skill.name: skill for skill in skills}
        for retirement in find_retirements(lives, self._now()):
            await self._admitting.retire(known[retirement.skill], retirement.reason)

    def _life(self, skill: Skill) -> Life:
        return Life(skill, self._now(), 0, self.uplift(skill))

    def uplift(self, skill: Skill) -> Uplift:
        """What a skill is worth, from the turns on which it was withheld by chance. Blocks."""
        return measure_uplift(self.trials(skill))

    def trials(self, skill: Skill) -> list[LiveTrial]:
        """One coin per task: a task's turns share their draw, so they count as one, which failed if any of its turns did."""
        tasks: dict[tuple[str, int], LiveTrial] = {}
        for drawn in reversed(self._reader.drawn_turns(skill.name)):
            key, outcome = (drawn.session, drawn.segment), drawn.outcome or Outcome.UNKNOWN
            before = tasks.get(key)
            tasks[key] = LiveTrial(drawn.placed, drawn.propensity, outcome if before is None else _worse(before.outcome, outcome))
        return list(tasks.values())


def _worse(one: Outcome, other: Outcome) -> Outcome:
    order = (Outcome.UNKNOWN, Outcome.PASS, Outcome.FAIL)
    return max(one, other, key=order.index)

"""A daily chore: a skill that was proven with one model goes on trial again when another model serves most of its tasks."""

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.learn.admission import CandidateAdmission, accepted_candidate
from metaclaw.learn.uplift import UpliftReader
from metaclaw.store import SkillUse, SqlCandidates, SqlUses

log = logging.getLogger(__name__)

_AT_ONCE: Final = 500
_LATELY: Final = timedelta(days=30)


class Retrial:
    """Puts live skills on trial again. Only for a gate that has live trials."""

    name = "regating"

    def __init__(
        self,
        *,
        uses: SqlUses,
        candidates: SqlCandidates,
        admission: CandidateAdmission,
        uplift: UpliftReader,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._uses = uses
        self._candidates = candidates
        self._admission = admission
        self._uplift = uplift
        self._now = now

    async def do(self, learned: Sequence[Skill], aside: TaskGroup) -> None:
        """Compare the model each was proven with and the one that serves most of its tasks now."""
        for skill in await run_sync(self._in_use, learned):
            model = await run_sync(self._other_model, skill)
            reason = f"{skill.name} is tried again: {model} serves most of its tasks now"
            if model is not None and await self._admission.change_state(skill, SkillState.CANARY, reason):
                log.info("skill_tried_again hash=%s model=%s", skill.content_hash, model)

    def _in_use(self, learned: Sequence[Skill]) -> list[Skill]:
        """Live skills that have matched lately: which model serves the others, nobody knows."""
        live = [skill for skill in learned if skill.state is SkillState.LIVE and skill.author is Authorship.EVOLVER]
        found: list[Skill] = []
        for at in range(0, len(live), _AT_ONCE):
            some = live[at : at + _AT_ONCE]
            uses = self._uses.uses_of([skill.name for skill in some])
            found += [one for one in some if one.name in uses and self._is_lately(uses[one.name])]
        return found

    def _is_lately(self, use: SkillUse) -> bool:
        return use.times > 0 and self._now() - use.last_at < _LATELY

    def _other_model(self, skill: Skill) -> str | None:
        """The model that serves now, if it is another one; None also where nobody knows with which one it was proven."""
        model = self._uplift.model(skill)
        mine = None if model is None else accepted_candidate(self._candidates, skill)
        if model is None or mine is None or mine.certificate is None or not mine.certificate.model:
            return None
        return model if mine.certificate.model != model else None

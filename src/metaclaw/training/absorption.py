"""Which skills a version has absorbed: with the weights that serve, does a skill still have to
stand in the prompt?

Recorded prompts in which the skill stood are answered with it and without it by the same weights;
each pair gives d = score without - score with, in [-1, 1]. Bets are made against two claims, pair by
pair (`bets`):

    "without it answers are worse by a tenth or more", E[d] <= -0.1      refuted → absorbed, if answers without it are good
    "without it answers are no worse",                 E[d] >= 0         refuted → needed

Without it means without everything that would be gone: what was found absorbed before it leaves the
prompt, too. Taken out one at a time, three rules of the same form are each followed because of the
other two, and none once all are gone.

If answers without the skill are bad, it is not absorbed: it may make no difference because nothing
helps. What is absorbed leaves the prompts of that version. A version inherits the absorbed skills of
its parent and may gain or lose some; a rollback brings back every skill that the older version
needs. Where the prompts do not decide, the evidence is kept and goes on when there are more of
them."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from anyio.to_thread import run_sync

from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.policy import BASE_POLICY, PolicyVersion
from metaclaw.domain.skill import Skill, SkillKind
from metaclaw.domain.status import LoopState
from metaclaw.errors import (
    BackendDownError,
    TrainerMemoryError,
    TrainingBudgetError,
    TrainingError,
)
from metaclaw.ports import Windows
from metaclaw.store import SqlPolicies
from metaclaw.training.bets import Shown, compare_pairs
from metaclaw.training.prompts import PromptMaker, PromptPair
from metaclaw.training.recipe import JudgingBudget
from metaclaw.training.rewards import Rewards
from metaclaw.training.sampling import VersionSampler
from metaclaw.training.serving_versions import Versions
from metaclaw.training.status import LoopStatus
from metaclaw.training.training_turns import MOST_HELD_OUT, Clocks, QueryTurns

log = logging.getLogger(__name__)

_LEAST_PROMPTS: Final = 8
_DRAWS: Final = 4
_MORE_PROMPTS: Final = 8
_ALPHA: Final = 0.05
_MARGIN: Final = 0.1
_GOOD: Final = 0.5
_MOST_PAIRS: Final = 200
SkillPair: TypeAlias = tuple[float | None, float | None]
"""Scores from 0 to 1 on one prompt with a skill and without; None if an answer could not be
scored.
"""


class Absorption(StrEnum):
    """Whether the weights follow a skill without its text."""

    ABSORBED = "absorbed"
    NEEDED = "needed"
    UNDECIDED = "undecided"


def judge_absorption(pairs: Collection[SkillPair], most: int = _MOST_PAIRS) -> Absorption:
    """Decide from the pairs so far, in order; pairs after the first decisive one do not count.
    After `most` pairs without a decision, the skill is needed."""
    known = [(mine, bare) for mine, bare in pairs if mine is not None and bare is not None]
    test = compare_pairs(
        [bare - mine for mine, bare in known],
        better_at=1 / _ALPHA,
        worse_at=1 / _ALPHA,
        margin=_MARGIN,
    )
    is_good = sum(bare for _, bare in known) >= _GOOD * len(known)
    if test.shown is Shown.BETTER and is_good:
        return Absorption.ABSORBED
    is_needed = test.shown is Shown.WORSE or len(known) >= most
    return Absorption.NEEDED if is_needed else Absorption.UNDECIDED


def absorbed_by(
    parent: frozenset[SkillName], findings: Mapping[SkillName, Absorption]
) -> frozenset[SkillName]:
    """The absorbed skills of a new version: those of its parent, without those now needed, and with
    those now absorbed.
    """
    gained = {name for name, finding in findings.items() if finding is Absorption.ABSORBED}
    lost = {name for name, finding in findings.items() if finding is Absorption.NEEDED}
    return (parent - lost) | gained


@dataclass(eq=False, kw_only=True)
class AbsorptionTest:
    """Finds out what the version that serves has absorbed, once for its weights and the skills in
    force, and again with more prompts while those there were do not decide.
    """

    turns: QueryTurns
    policies: SqlPolicies
    versions: Versions
    windows: Windows
    judging: JudgingBudget
    sampler: VersionSampler
    rewards: Rewards
    prompts: PromptMaker
    skills: Callable[[], Sequence[Skill]]
    status: LoopStatus

    def __post_init__(self) -> None:
        self._due_from: dict[Clocks, int] = {}
        self._seen_of = BASE_POLICY
        self._seen: dict[tuple[str, frozenset[SkillName]], dict[tuple[TurnId, int], SkillPair]] = {}

    async def once(self) -> bool:
        """Whether there was anything to find out."""
        clocks = self.turns.clocks()
        if clocks.version == BASE_POLICY or self.windows.window is None:
            return False
        prompts = await run_sync(self.turns.kept, MOST_HELD_OUT)
        version = await run_sync(self.policies.version, clocks.version)
        if version is None or prompts < self._due_from.get(clocks, 0):
            return False
        self._due_from = {clocks: MOST_HELD_OUT + 1}
        self.status.state = LoopState.ABSORBING
        try:
            findings = await self._findings(version)
        except (TrainingBudgetError, BackendDownError, TrainerMemoryError) as error:
            log.info("absorption_waits version=%d reason=%s", version.number, error)
            self._due_from.clear()
            return False
        except TrainingError as error:
            log.warning("absorption_not_tested version=%d reason=%s", version.number, error)
            return False
        finally:
            self.status.state = LoopState.WAITING
        if Absorption.UNDECIDED in findings.values():
            self._due_from = {clocks: prompts + _MORE_PROMPTS}
        absorbed = absorbed_by(version.absorbed.intersection(findings), findings)
        if absorbed != version.absorbed:
            await run_sync(self.policies.absorb, version.number, absorbed)
            await self.versions.restore()
        return True

    async def _findings(self, version: PolicyVersion) -> dict[SkillName, Absorption]:
        # What was absorbed is what a skill said when the version was made: one that was changed
        # since is told whatever is found. A fact stays in the prompt: it may change without the
        # turns that were made with it becoming too old.
        skills = [
            skill
            for skill in self.skills()
            if skill.kind is not SkillKind.FACT
            and self.versions.is_same(skill.name, version.generation)
        ]
        turns = await run_sync(self.turns.held_out, MOST_HELD_OUT)
        await self.judging.require_for_gate(turns)
        if version.number != self._seen_of:
            self._seen_of, self._seen = version.number, {}
        findings = dict.fromkeys((skill.name for skill in skills), Absorption.UNDECIDED)
        for skill in skills:
            known = version.absorbed.intersection(findings)
            gone = absorbed_by(known, findings) - {skill.name}
            pairs = await run_sync(self.prompts.prompts_with, skill, turns, gone)
            if len(pairs) >= _LEAST_PROMPTS:
                findings[skill.name] = await self._weigh(version, skill, gone, pairs)
        return findings

    async def _weigh(
        self,
        version: PolicyVersion,
        skill: Skill,
        gone: frozenset[SkillName],
        pairs: Sequence[PromptPair],
    ) -> Absorption:
        seen = self._seen.setdefault((skill.content_hash, gone), {})
        finding = judge_absorption(seen.values())
        weights = await self.versions.local(version)
        for again in range(_DRAWS):
            fresh = [one for one in pairs if (one.turn, again) not in seen]
            if finding is not Absorption.UNDECIDED or not fresh:
                continue
            whole, without = [
                await self.sampler.one_of_each(
                    prompts,
                    weights,
                    self.sampler.max_tokens,
                    version.number * 1_009 + again,
                )
                for prompts in zip(*((one.whole, one.without) for one in fresh), strict=True)
            ]
            for one, mine, bare in zip(fresh, whole, without, strict=True):
                worth = await self.rewards.score(one.step, [mine, bare])
                seen[one.turn, again] = (worth[0], worth[1])
            finding = judge_absorption(seen.values())
        log.info(
            "skill_weighed hash=%s version=%d pairs=%d finding=%s",
            skill.content_hash,
            version.number,
            len(seen),
            finding.value,
        )
        return finding

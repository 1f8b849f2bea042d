"""Which skills a version has absorbed: with the weights that serve, does a skill still have to
stand in the prompt?

Recorded prompts in which the skill stood are answered with it and without it by the same weights;
where leaving it out costs nothing, it is absorbed by that version and leaves its prompts. Where the
prompts do not decide, the evidence is kept and goes on when there are more of them
(`train.absorption`)."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from anyio.to_thread import run_sync

from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.policy import BASE_POLICY, PolicyVersion
from metaclaw.domain.skill import Skill, SkillGeneration
from metaclaw.domain.training import Drawing
from metaclaw.domain.turn import Step
from metaclaw.errors import EngineError, WireError
from metaclaw.ports import Tokeniser, TrainingBackend, Windows
from metaclaw.skills import Budgets
from metaclaw.store import LedgerReader
from metaclaw.training.absorption_evidence import (
    Absorption,
    SkillPair,
    absorbed_by,
    judge_absorption,
)
from metaclaw.training.replay import UnplayableError, request_without, sent_request
from metaclaw.training.rewards import Rewards
from metaclaw.training.training_turns import TrainingTurn
from metaclaw.wires import plain

log = logging.getLogger(__name__)

_LEAST_PROMPTS: Final = 8
_DRAWS: Final = 4


@dataclass(frozen=True, slots=True)
class PromptPair:
    """A recorded prompt with a skill and without."""

    turn: TurnId
    step: Step
    with_skill: tuple[int, ...]
    without: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SkillPrompts:
    """How prompts are put together again. `generation` gives the skills that were in force then."""

    reader: LedgerReader
    tokeniser: Tokeniser
    generation: Callable[[int], SkillGeneration | None]
    budgets: Budgets

    def prompts_with(self, skill: Skill, turns: Sequence[TrainingTurn]) -> list[PromptPair]:
        """The prompts among these in which the skill stood. Blocks."""
        found = [self._one(skill, turn) for turn in turns if skill.name in turn.step.stamp.skills]
        return [one for one in found if one is not None]

    def _one(self, skill: Skill, turn: TrainingTurn) -> PromptPair | None:
        recorded = self.reader.turn(turn.id)
        generation = None if recorded is None else self.generation(recorded.turn.stamp.generation)
        if recorded is None or generation is None:
            return None
        try:
            known = {one.name: one for one in generation.skills}
            if skill.name not in known or known[skill.name].content_hash != skill.content_hash:
                return None  # another text stood there
            sent = sent_request(recorded.turn)
            without = request_without(recorded.turn, skill.name, known, self.budgets)
            prompts = [self.tokeniser.prompt(plain(arm)) for arm in (sent, without)]
        except (UnplayableError, WireError, EngineError) as error:
            log.info(
                "skill_not_weighed hash=%s turn=%s reason=%s", skill.content_hash, turn.id, error
            )
            return None
        return PromptPair(turn.id, turn.step, prompts[0], prompts[1])


@dataclass(slots=True)
class _Weighing:
    """What was seen of one skill under one version."""

    pairs: list[SkillPair] = field(default_factory=list)
    tried: set[tuple[TurnId, int]] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class AbsorbedSkills:
    """What a version needs no more; `is_open` where more prompts could tell of further skills."""

    absorbed: frozenset[SkillName]
    is_open: bool


@dataclass(eq=False, kw_only=True)
class AbsorptionTest:
    """Finds out what a version has absorbed."""

    backend: TrainingBackend
    rewards: Rewards
    prompts: SkillPrompts
    windows: Windows
    max_tokens: int
    temperature: float

    def __post_init__(self) -> None:
        self._version = BASE_POLICY
        self._weighed: dict[str, _Weighing] = {}

    async def find(
        self,
        version: PolicyVersion,
        inherited: frozenset[SkillName],
        skills: Sequence[Skill],
        turns: Sequence[TrainingTurn],
    ) -> AbsorbedSkills:
        """Which of these skills the version needs no more. Raises TrainingError."""
        if version.number != self._version:
            self._version, self._weighed = version.number, {}
        findings: dict[SkillName, Absorption] = {}
        for skill in skills:
            pairs = await run_sync(self.prompts.prompts_with, skill, turns)
            findings[skill.name] = Absorption.UNDECIDED
            if len(pairs) >= _LEAST_PROMPTS:
                weighing = self._weighed.setdefault(skill.content_hash, _Weighing())
                findings[skill.name] = await self._weigh(version, skill, pairs, weighing)
        absorbed = absorbed_by(inherited & {skill.name for skill in skills}, findings)
        return AbsorbedSkills(absorbed, Absorption.UNDECIDED in findings.values())

    async def _weigh(
        self, version: PolicyVersion, skill: Skill, pairs: Sequence[PromptPair], seen: _Weighing
    ) -> Absorption:
        report = judge_absorption(seen.pairs)
        for again in range(_DRAWS):
            fresh = [one for one in pairs if (one.turn, again) not in seen.tried]
            if report.finding is not Absorption.UNDECIDED or not fresh:
                continue
            drawing = Drawing(1, self.max_tokens, self.temperature, version.number * 1_009 + again)
            await self.windows.until_open()
            with_skill = await self.backend.sample(
                [one.with_skill for one in fresh], drawing, version.weights
            )
            await self.windows.until_open()
            without = await self.backend.sample(
                [one.without for one in fresh], drawing, version.weights
            )
            for one, mine, bare in zip(fresh, with_skill, without, strict=True):
                worth = await self.rewards.score(one.step, [mine[0], bare[0]])
                seen.pairs.append(SkillPair(worth[0], worth[1]))
                seen.tried.add((one.turn, again))
            report = judge_absorption(seen.pairs)
        log.info(
            "skill_weighed hash=%s version=%d %s", skill.content_hash, version.number, report.reason
        )
        return report.finding

"""Which skills a version has absorbed: with the weights that serve, does a skill still have to
stand in the prompt?

Recorded prompts in which the skill stood are answered with it and without it by the same weights;
each pair gives d = score without - score with, in [-1, 1]. Bets are made against two claims, pair by
pair (`bets`):

    "without it answers are worse by `margin` or more", E[d] <= -margin      refuted → absorbed, if answers without it are good
    "without it answers are no worse",                  E[d] >= 0            refuted → needed

If answers without the skill are bad, it is not absorbed: it may make no difference because nothing
helps. What is absorbed leaves the prompts of that version. A version inherits the absorbed skills of
its parent and may gain or lose some; a rollback brings back every skill that the older version
needs. Where the prompts do not decide, the evidence is kept and goes on when there are more of
them."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from anyio.to_thread import run_sync

from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.policy import BASE_POLICY, PolicyVersion
from metaclaw.domain.skill import Skill, SkillGeneration, SkillKind
from metaclaw.domain.status import LoopState
from metaclaw.domain.training import Drawing
from metaclaw.domain.turn import Step
from metaclaw.errors import (
    BackendDownError,
    EngineError,
    TrainerMemoryError,
    TrainingBudgetError,
    TrainingError,
    WireError,
)
from metaclaw.ports import Tokeniser, TrainingBackend, Windows
from metaclaw.skills import Budgets
from metaclaw.store import LedgerReader, SqlPolicies
from metaclaw.training.bets import GainBets
from metaclaw.training.recipe import JudgingBudget
from metaclaw.training.replay import UnplayableError, request_without, sent_request
from metaclaw.training.rewards import Rewards
from metaclaw.training.serving_versions import Versions
from metaclaw.training.status import LoopStatus
from metaclaw.training.training_turns import MOST_HELD_OUT, Clocks, QueryTurns, TrainingTurn
from metaclaw.wires import plain

log = logging.getLogger(__name__)

_LEAST_PROMPTS: Final = 8
_DRAWS: Final = 4
_MORE_PROMPTS: Final = 8


@dataclass(frozen=True, slots=True)
class SkillPair:
    """Scores from 0 to 1 of the new weights on one prompt, with and without a skill; None if an
    answer could not be scored.
    """

    with_skill: float | None
    without: float | None

    def __post_init__(self) -> None:
        for score in (self.with_skill, self.without):
            if score is not None and not 0.0 <= score <= 1.0:
                raise ValueError(f"a score of {score} is not in [0, 1]")


@dataclass(frozen=True, slots=True)
class AbsorptionThresholds:
    """Error level, margin, and the most pairs. A skill is absorbed only if the mean score without
    it is at least `good`.
    """

    alpha: float = 0.05
    margin: float = 0.1
    good: float = 0.5
    most: int = 200


class Absorption(StrEnum):
    """Whether the weights follow a skill without its text."""

    ABSORBED = "absorbed"
    NEEDED = "needed"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class AbsorptionReport:
    """The finding, why, and the evidence."""

    finding: Absorption
    reason: str


def judge_absorption(
    pairs: Sequence[SkillPair], rules: AbsorptionThresholds | None = None
) -> AbsorptionReport:
    """Decide from the pairs so far, in order; pairs after the first decisive one do not count.
    After `most` pairs without a decision, the skill is needed."""
    rules = rules or AbsorptionThresholds()
    absorbed, needed = GainBets(rules.margin), GainBets()
    scores: list[float] = []
    finding = Absorption.UNDECIDED
    for pair in pairs:
        if pair.with_skill is None or pair.without is None:
            continue
        scores.append(pair.without)
        absorbed.add(pair.without - pair.with_skill)
        needed.add(pair.with_skill - pair.without)
        finding = _absorption(absorbed.e_value, needed.e_value, scores, rules)
        if finding is not Absorption.UNDECIDED:
            break
    mean = math.fsum(scores) / len(scores) if scores else None
    shown = (
        "no pair was scored"
        if mean is None
        else f"mean score without it {mean:.2f} in {len(scores)} pairs"
    )
    reason = (
        f"{finding}: {shown}; e = {absorbed.e_value:.3g} for absorbed, {needed.e_value:.3g} for"
        " needed"
    )
    return AbsorptionReport(finding, reason)


def absorbed_by(
    parent: frozenset[SkillName], findings: Mapping[SkillName, Absorption]
) -> frozenset[SkillName]:
    """The absorbed skills of a new version: those of its parent, without those now needed, and with
    those now absorbed.
    """
    gained = {name for name, finding in findings.items() if finding is Absorption.ABSORBED}
    lost = {name for name, finding in findings.items() if finding is Absorption.NEEDED}
    return (parent - lost) | gained


def _absorption(
    absorbed: float, needed: float, scores: Sequence[float], rules: AbsorptionThresholds
) -> Absorption:
    if needed >= 1 / rules.alpha:
        return Absorption.NEEDED
    if absorbed >= 1 / rules.alpha and math.fsum(scores) / len(scores) >= rules.good:
        return Absorption.ABSORBED
    return Absorption.NEEDED if len(scores) >= rules.most else Absorption.UNDECIDED


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


@dataclass(eq=False, kw_only=True)
class AbsorptionLook:
    """Finds out what the version that serves has absorbed, once for its weights and the skills in
    force, and again with more prompts while those there were do not decide.
    """

    turns: QueryTurns
    policies: SqlPolicies
    versions: Versions
    windows: Windows
    judging: JudgingBudget
    test: AbsorptionTest
    skills: Callable[[], Sequence[Skill]]
    status: LoopStatus

    def __post_init__(self) -> None:
        self._due_from: dict[Clocks, int] = {}

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
            found = await self._absorbed(version)
        except TrainingError as error:
            is_paid = not isinstance(error, TrainingBudgetError)
            if is_paid:
                log.warning("absorption_not_tested version=%d reason=%s", version.number, error)
            if not is_paid or isinstance(error, BackendDownError | TrainerMemoryError):
                self._due_from.clear()
            return False
        finally:
            self.status.state = LoopState.WAITING
        if found.is_open:
            self._due_from = {clocks: prompts + _MORE_PROMPTS}
        if found.absorbed != version.absorbed:
            await run_sync(self.policies.absorb, version.number, found.absorbed)
            await self.versions.refresh()
        return True

    async def _absorbed(self, version: PolicyVersion) -> AbsorbedSkills:
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
        return await self.test.find(version, version.absorbed, skills, turns)

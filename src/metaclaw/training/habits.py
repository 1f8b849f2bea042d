"""What the report of the gate tells beside the ruling: how often rules are broken without their text
in the prompt, before a version and with it, and how often answers leave the recorded calls.

Candidate and serving version answer held-out prompts from which every rule was taken, and the check
of each counts the answers that break it. Every rule: beside others that ask for the same form one
rule is kept although its text is gone. The report of the gate shows both."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from anyio.to_thread import run_sync

from metaclaw.domain.policy import Habit, Weights
from metaclaw.domain.skill import Skill, SkillKind
from metaclaw.training.prompts import PromptMaker, PromptPair
from metaclaw.training.recorded_tasks import follows
from metaclaw.training.rewards import Rewards
from metaclaw.training.sampling import VersionSampler
from metaclaw.training.training_turns import TrainingTurn

_LEAST_PROMPTS: Final = 4
_MOST_PROMPTS: Final = 24
_DRAWS: Final = 4


@dataclass(eq=False, kw_only=True)
class HabitTest:
    """Counts on held-out prompts."""

    sampler: VersionSampler
    rewards: Rewards
    prompts: PromptMaker
    rules: Callable[[], Sequence[Skill]]

    async def compare(
        self, candidate: Weights, serving: Weights | None, turns: Sequence[TrainingTurn]
    ) -> tuple[Habit, ...]:
        """The habits of the rules that stood in these turns' prompts. Raises TrainingError."""
        found: list[Habit] = []
        rules = [one for one in self.rules() if one.kind is SkillKind.RULE]
        names = [rule.name for rule in rules]
        for rule in rules:
            if rule.check is None:
                continue
            pairs = (await run_sync(self.prompts.prompts_with, rule, turns, names))[:_MOST_PROMPTS]
            if len(pairs) < _LEAST_PROMPTS:
                continue
            before, after = [
                await self._broken(rule, pairs, weights) for weights in (serving, candidate)
            ]
            if before is not None and after is not None:
                found.append(Habit(rule.name, before, after))
        return tuple(found)

    async def share_left(self, weights: Weights, turns: Sequence[TrainingTurn]) -> float | None:
        """The share of answers to turns with calls that make other calls than were recorded; None
        if there are no such turns.
        """
        calling = [turn for turn in turns if turn.step.calls][:_MOST_PROMPTS]
        if not calling:
            return None
        drawn = await self.sampler.draw(
            [turn.prompt for turn in calling], weights, _DRAWS, len(calling)
        )
        marks = [
            not follows(answer, turn.step)
            for turn, group in zip(calling, drawn, strict=True)
            for answer in group
        ]
        return sum(marks) / len(marks)

    async def _broken(
        self, rule: Skill, pairs: Sequence[PromptPair], weights: Weights | None
    ) -> float | None:
        """How many of 100 answers that the rule is about break it; None if it is about none."""
        drawn = await self.sampler.draw(
            [pair.without for pair in pairs], weights, _DRAWS, len(pairs)
        )
        marks = [
            mark
            for pair, group in zip(pairs, drawn, strict=True)
            for mark in await run_sync(self.rewards.breaks, rule, pair.step, group)
            if mark is not None
        ]
        return 100.0 * sum(marks) / len(marks) if marks else None

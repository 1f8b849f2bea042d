"""The gate at work: candidate and serving version answer the same held-out prompts and the golden set, and the gate rules on it."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from typing import Protocol

from metaclaw.domain.batch import Drawing, Rollout
from metaclaw.domain.ids import SkillName
from metaclaw.domain.policy import GateReport, Weights
from metaclaw.domain.step import Step
from metaclaw.learn.slow.general_abilities import GeneralAbilities
from metaclaw.learn.slow.recipe import Lesson
from metaclaw.ports import TrainingBackend, Windows
from metaclaw.train.degeneration import HeldOutAnswer
from metaclaw.train.gate import Evidence, GateRules, Pair, Ruling, judge_candidate

log = logging.getLogger(__name__)

_DRAWS_A_PROMPT = 8
_DISTANCE_PROMPTS = 16


class Measures(Protocol):
    """The two measures of an answer, each from 0 to 1, None where it cannot tell."""

    async def score(self, step: Step, answers: Sequence[Rollout]) -> list[float | None]:
        """By the measure that trains."""

    async def score_strictly(self, step: Step, answers: Sequence[Rollout]) -> list[float | None]:
        """By the second measure, which does not train."""


@dataclass(frozen=True, slots=True)
class ProofRules:
    """How answers are drawn for the comparison; the gate's own rules beside it."""

    gate: GateRules
    max_tokens: int
    temperature: float


class Proof:
    """Compares weights on held-out prompts, which are answered as the policy serves, and on the golden set."""

    def __init__(
        self,
        *,
        backend: TrainingBackend,
        measures: Measures,
        abilities: GeneralAbilities,
        windows: Windows,
        rules: ProofRules,
    ) -> None:
        self._backend = backend
        self._measures = measures
        self._abilities = abilities
        self._windows = windows
        self._rules = rules

    async def weigh(
        self, candidate: Weights, serving: Weights | None, held_out: Sequence[Lesson], *, seed: int, judge: str | None
    ) -> GateReport:
        """Try the candidate until the gate has decided. The golden set, which takes longest, comes last. Raises TrainingError."""
        kl = await self._distance(candidate, held_out[:_DISTANCE_PROMPTS], seed)
        evidence = Evidence(pairs=(), kl=kl, judge=judge)
        tries = _tries(held_out, seed)
        while (decision := judge_candidate(evidence, self._rules.gate)).ruling is Ruling.UNDECIDED:
            if decision.more:
                wave = list(islice(tries, decision.more))
                pairs = await self._pairs(candidate, serving, wave)
                evidence = replace(evidence, pairs=(*evidence.pairs, *pairs), is_all=not wave)
            else:
                old, new, _ = await self._abilities.compare(candidate, serving, self._rules.gate.golden)
                evidence = replace(evidence, golden_serving=old, golden_candidate=new)
        log.info("policy_weighed ruling=%s reasons=%s", decision.ruling.value, "; ".join(decision.report.reasons))
        return decision.report

    async def _pairs(self, candidate: Weights, serving: Weights | None, wave: Sequence[tuple[Lesson, int]]) -> list[Pair]:
        """One pair for each prompt of a wave; those of one seed are drawn together."""
        pairs: list[Pair] = []
        for seed in dict.fromkeys(seed for _, seed in wave):
            lessons = [lesson for lesson, mine in wave if mine == seed]
            drawing = Drawing(1, self._room(lessons), self._rules.temperature, seed)
            prompts = [lesson.prompt for lesson in lessons]
            new, old = [await self._sample(prompts, drawing, weights) for weights in (candidate, serving)]
            pairs += [await self._pair(*one) for one in zip(lessons, new, old, strict=True)]
        return pairs

    def _room(self, lessons: Sequence[Lesson]) -> int:
        """The longest answer that is drawn for these turns: never longer than their clients allowed."""
        most = self._rules.max_tokens
        return max(most if lesson.max_tokens is None else min(most, lesson.max_tokens) for lesson in lessons)

    async def _pair(self, lesson: Lesson, mine: Rollout, theirs: Rollout) -> Pair:
        step, both = lesson.step, [mine, theirs]
        worth = await self._measures.score(step, both)
        strict = await self._measures.score_strictly(step, both)
        new, old = [HeldOutAnswer(step.task, one.text, len(one.tokens_T), one.is_whole) for one in both]
        return Pair(worth[0], worth[1], step.stamp.skills, strict[0], strict[1], (new, old))

    async def _distance(self, candidate: Weights, some: Sequence[Lesson], seed: int) -> float | None:
        """The distance to the untrained weights after the last update, in nats a token of the candidate's own answers to held-out
        prompts; None where there are no prompts."""
        prompts = [lesson.prompt for lesson in some]
        if not prompts:
            return None
        said = await self._sample(prompts, Drawing(1, self._room(some), self._rules.temperature, seed), candidate)
        await self._windows.until_open()
        untrained = await self._backend.score_base([(prompt, one.tokens_T) for prompt, one in zip(prompts, said, strict=True)])
        gained = sum(sum(one.logprobs_T) - sum(base) for one, base in zip(said, untrained, strict=True))
        return gained / sum(len(one.tokens_T) for one in said)

    async def _sample(self, prompts: Sequence[Sequence[int]], drawing: Drawing, weights: Weights | None) -> list[Rollout]:
        await self._windows.until_open()
        if weights is None:
            drawn = await self._backend.sample_base(prompts, drawing)
        else:
            drawn = await self._backend.sample(prompts, drawing, weights)
        return [group[0] for group in drawn]


def _tries(held_out: Sequence[Lesson], seed: int) -> Iterator[tuple[Lesson, int]]:
    """Every prompt once, then every prompt again with other random numbers, a few times. Skills take turns, so that each is tried
    early, however seldom it is asked for."""
    by_skills: dict[tuple[SkillName, ...], list[Lesson]] = {}
    for lesson in held_out:
        by_skills.setdefault(lesson.step.stamp.skills, []).append(lesson)
    rounds = list(zip_longest(*by_skills.values()))
    return ((lesson, seed + again) for again in range(_DRAWS_A_PROMPT) for some in rounds for lesson in some if lesson is not None)

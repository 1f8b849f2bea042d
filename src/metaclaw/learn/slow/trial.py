"""The gate at work: candidate and serving version answer the same held-out prompts and the golden set, and the gate rules on it."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest

from metaclaw.domain.batch import Drawing, Rollout
from metaclaw.domain.ids import SkillName
from metaclaw.domain.policy import GateReport, Weights
from metaclaw.learn.slow.recipe import Lesson
from metaclaw.learn.slow.rewards import Rewards
from metaclaw.ports import Tokeniser, TrainingBackend, Windows
from metaclaw.train.gate import Evidence, GateRules, Pair, Ruling, judge_candidate
from metaclaw.train.golden import GoldenItem, GoldenScore, golden_score, read_answer, reference_pairs

log = logging.getLogger(__name__)

_DRAWS_A_PROMPT = 4
_DISTANCE_PROMPTS = 16


@dataclass(frozen=True, slots=True)
class TrialRules:
    """How answers are drawn for the comparison; the gate's own rules beside it."""

    gate: GateRules
    max_tokens: int
    temperature: float
    golden_tokens: int = 96


class Trial:
    """Compares weights. `golden` is tried greedily, held-out prompts as the policy serves."""

    def __init__(
        self,
        *,
        backend: TrainingBackend,
        rewards: Rewards,
        tokeniser: Tokeniser,
        golden: Sequence[GoldenItem],
        windows: Windows,
        rules: TrialRules,
    ) -> None:
        self._backend = backend
        self._rewards = rewards
        self._tokeniser = tokeniser
        self._golden = list(golden)
        self._windows = windows
        self._rules = rules

    async def weigh(
        self,
        candidate: Weights,
        serving: Weights | None,
        held_out: Sequence[Lesson],
        *,
        seed: int,
        kl: float | None,
        judge: str | None,
        measures_kl: bool = False,
    ) -> GateReport:
        """Try the candidate until the gate has made up its mind. `kl` is its distance to the untrained weights, where its run has
        measured it; `measures_kl` has it measured now. Raises TrainingError."""
        evidence = Evidence(
            pairs=(),
            golden_serving=await self._golden_score(serving),
            golden_candidate=await self._golden_score(candidate),
            kl=await self._distance(candidate, held_out[:_DISTANCE_PROMPTS], seed) if measures_kl else kl,
            judge=judge,
        )
        tries = _tries(held_out, seed)
        while (decision := judge_candidate(evidence, self._rules.gate)).ruling is Ruling.UNDECIDED:
            wave = list(islice(tries, decision.more or self._rules.gate.wave))
            pairs = await self._pairs(candidate, serving, wave)
            evidence = replace(evidence, pairs=(*evidence.pairs, *pairs), is_all=not wave)
        log.info("policy_weighed ruling=%s reasons=%s", decision.ruling.value, "; ".join(decision.report.reasons))
        return decision.report

    async def _pairs(self, candidate: Weights, serving: Weights | None, wave: Sequence[tuple[Lesson, int]]) -> list[Pair]:
        """One pair for each prompt of a wave; those of one seed are drawn together."""
        pairs: list[Pair] = []
        for seed in dict.fromkeys(seed for _, seed in wave):
            lessons = [lesson for lesson, mine in wave if mine == seed]
            drawing = Drawing(1, self._rules.max_tokens, self._rules.temperature, seed)
            prompts = [lesson.prompt for lesson in lessons]
            new, old = [await self._sample(prompts, drawing, weights) for weights in (candidate, serving)]
            for lesson, mine, theirs in zip(lessons, new, old, strict=True):
                worth = await self._rewards.score(lesson.step, [mine, theirs])
                pairs.append(Pair(worth[0], worth[1], lesson.step.stamp.skills))
        return pairs

    async def _distance(self, candidate: Weights, some: Sequence[Lesson], seed: int) -> float | None:
        """How far it is from the untrained weights, in nats a token of its own answers; nobody knows where there are no prompts."""
        prompts = [lesson.prompt for lesson in some]
        if not prompts:
            return None
        said = await self._sample(prompts, Drawing(1, self._rules.max_tokens, self._rules.temperature, seed), candidate)
        await self._windows.until_open()
        untrained = await self._backend.score_base([(prompt, one.tokens_T) for prompt, one in zip(prompts, said, strict=True)])
        gained = sum(sum(one.logprobs_T) - sum(base) for one, base in zip(said, untrained, strict=True))
        return gained / sum(len(one.tokens_T) for one in said)

    async def _golden_score(self, weights: Weights | None) -> GoldenScore:
        """How a version does on the golden set, and how likely it finds the reference answers."""
        pairs = reference_pairs(self._golden, self._tokeniser.prompt, self._tokeniser.encode)
        said = await self._sample([prompt for prompt, _ in pairs], Drawing(1, self._rules.golden_tokens, 0.0), weights)
        await self._windows.until_open()
        scores = await (self._backend.score_base(pairs) if weights is None else self._backend.score(pairs, weights))
        return golden_score(self._golden, [read_answer(rollout.text) for rollout in said], scores)

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

"""The gate at work: candidate and serving version answer the same held-out prompts and the golden set, and the gate rules on it."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from typing import Protocol, TypeAlias

from metaclaw.domain.batch import Drawing, Rollout
from metaclaw.domain.ids import SkillName
from metaclaw.domain.policy import GateReport, Weights
from metaclaw.domain.step import Step
from metaclaw.learn.slow.general_abilities import GeneralAbilities
from metaclaw.learn.slow.recipe import Lesson
from metaclaw.ports import TrainingBackend, Windows
from metaclaw.skills import TRIVIAL_ANSWERS, CheckKind, constant_parts, near_answers
from metaclaw.train import Evidence, GateRules, HeldOutAnswer, Pair, Ruling, judge_candidate, one_answer

log = logging.getLogger(__name__)

_DRAWS_A_PROMPT = 8
_DISTANCE_PROMPTS = 16
_DEMANDED_BY = 3
_LENIENT_BY = 4
_LEAST_LENIENT_BY = 3
_SHRUNK = 3


_Drawn: TypeAlias = tuple[Lesson, Rollout, Rollout]


class Measures(Protocol):
    """The two measures of an answer, each from 0 to 1, None where it cannot tell."""

    async def score(self, step: Step, answers: Sequence[Rollout]) -> list[float | None]:
        """By the measure that trains."""

    async def score_strictly(self, step: Step, answers: Sequence[Rollout]) -> list[float | None]:
        """By the second measure, which does not train."""

    async def score_by_judge(self, step: Step, answers: Sequence[Rollout]) -> list[float | None]:
        """By the judge alone."""

    async def check_kind(self, step: Step) -> CheckKind:
        """What the checks that score this turn do."""


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
                drawn = await self._draw(candidate, serving, wave)
                pairs = [await self._pair(*one) for one in drawn]
                lenient = {**evidence.lenient, **await self._lenient(drawn, pairs, evidence.lenient)}
                earlier = [
                    _unproven(pair) if pair.skills in lenient and pair.skills not in evidence.lenient else pair
                    for pair in evidence.pairs
                ]
                pairs = [await self._judged(*one, lenient) for one in zip(drawn, pairs, strict=True)]
                evidence = replace(evidence, pairs=(*earlier, *pairs), lenient=lenient, is_all=not wave)
                evidence = replace(evidence, demanded=evidence.demanded | await self._demanded(evidence, wave))
            else:
                old, new, _ = await self._abilities.compare(candidate, serving, self._rules.gate.golden)
                evidence = replace(evidence, golden_serving=old, golden_candidate=new)
        log.info("policy_weighed ruling=%s reasons=%s", decision.ruling.value, "; ".join(decision.report.reasons))
        return decision.report

    async def _draw(self, candidate: Weights, serving: Weights | None, wave: Sequence[tuple[Lesson, int]]) -> list[_Drawn]:
        """Both answers to each prompt of a wave; those of one seed are drawn together."""
        drawn: list[_Drawn] = []
        for seed in dict.fromkeys(seed for _, seed in wave):
            lessons = [lesson for lesson, mine in wave if mine == seed]
            drawing = Drawing(1, self._room(lessons), self._rules.temperature, seed)
            prompts = [lesson.prompt for lesson in lessons]
            new, old = [await self._sample(prompts, drawing, weights) for weights in (candidate, serving)]
            drawn += zip(lessons, new, old, strict=True)
        return drawn

    async def _lenient(
        self, drawn: Sequence[_Drawn], pairs: Sequence[Pair], known: Mapping[tuple[SkillName, ...], str]
    ) -> dict[tuple[SkillName, ...], str]:
        """Answers that the checks of some skills accept whatever is asked, though others too: trivial ones, and what the
        candidate's answers have in common."""
        found: dict[tuple[SkillName, ...], str] = {}
        for skills in dict.fromkeys(pair.skills for pair in pairs if pair.skills not in known):
            mine = [(lesson, said, pair) for (lesson, said, _), pair in zip(drawn, pairs, strict=True) if pair.skills == skills]
            asked = list({lesson.step.task: lesson.step for lesson, _, _ in mine}.values())
            asked = [step for step in asked[: 2 * _LENIENT_BY] if await self._measures.check_kind(step) is CheckKind.DEMANDS]
            if len(asked) < _LEAST_LENIENT_BY:
                continue
            passed = [(lesson.step.task, said.text) for lesson, said, pair in mine if pair.strict_candidate == 1.0]
            accepted = await self._accepted(asked[:_LENIENT_BY], [*TRIVIAL_ANSWERS, *constant_parts(passed)])
            if accepted is not None:
                found[skills] = accepted
        return found

    async def _accepted(self, asked: Sequence[Step], texts: Sequence[str]) -> str | None:
        """The first of some texts that passes as the answer to every question, and is not the only one that does."""
        left = list(dict.fromkeys(texts))
        for step in asked:
            worth = await self._measures.score_strictly(step, [_whole(text) for text in left])
            left = [text for text, one in zip(left, worth, strict=True) if one == 1.0]
        for text in left:
            near = await self._measures.score_strictly(asked[0], [_whole(one) for one in near_answers(text)])
            if any(one != 0.0 for one in near):
                return text
        return None

    async def _judged(self, drawn: _Drawn, pair: Pair, lenient: Mapping[tuple[SkillName, ...], str]) -> Pair:
        """The pair, where its checks prove nothing by themselves with the judge's votes on what they accept."""
        lesson, mine, theirs = drawn
        if pair.skills in lenient:
            if pair.strict_candidate is None or pair.strict_serving is None:
                return pair
            new, old = await self._measures.score_by_judge(lesson.step, [mine, theirs])
            if new is None or old is None:
                return _unproven(pair)
            return replace(pair, strict_candidate=min(new, pair.strict_candidate), strict_serving=min(old, pair.strict_serving))
        is_shrunk = len(mine.text.split()) * _SHRUNK < len(theirs.text.split())
        if is_shrunk and await self._measures.check_kind(lesson.step) is CheckKind.FORBIDS:
            return _unproven(pair)  # saying next to nothing breaks no prohibition
        return pair

    async def _demanded(self, evidence: Evidence, wave: Sequence[tuple[Lesson, int]]) -> frozenset[str]:
        """The answer that the candidate gives to most questions, where it is what their checks demand: right by the strict measure,
        while nearly the same answers are wrong. A check that accepts others too does not demand it."""
        mine = [pair.answers[0] for pair in evidence.pairs if pair.answers is not None]
        said = one_answer(mine)
        text = next((one.text.strip() for one in mine if one_answer([one]) == said), "")
        if not text or said in evidence.demanded or sum(one_answer([one]) == said for one in mine) * 2 < len(mine):
            return frozenset()
        for lesson, _ in wave[:_DEMANDED_BY]:
            tried = [_whole(one) for one in (text, *near_answers(text))]
            worth = await self._measures.score_strictly(lesson.step, tried)
            if worth[0] != 1.0 or any(one != 0.0 for one in worth[1:]):
                return frozenset()
        return frozenset([said]) if wave else frozenset()

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


def _whole(text: str) -> Rollout:
    return Rollout((0,), (0.0,), text, True)


def _unproven(pair: Pair) -> Pair:
    """The pair as one of which the second measure cannot tell."""
    return replace(pair, strict_candidate=None, strict_serving=None)


def _tries(held_out: Sequence[Lesson], seed: int) -> Iterator[tuple[Lesson, int]]:
    """Every prompt once, then every prompt again with other random numbers, a few times. Skills take turns, so that each is tried
    early, however seldom it is asked for."""
    by_skills: dict[tuple[SkillName, ...], list[Lesson]] = {}
    for lesson in held_out:
        by_skills.setdefault(lesson.step.stamp.skills, []).append(lesson)
    rounds = list(zip_longest(*by_skills.values()))
    return ((lesson, seed + again) for again in range(_DRAWS_A_PROMPT) for some in rounds for lesson in some if lesson is not None)

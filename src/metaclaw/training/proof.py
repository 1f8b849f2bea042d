"""The gate at work: candidate and serving version answer the same held-out prompts and the golden
set, and the gate decides."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from typing import Final, TypeAlias

from metaclaw.domain.ids import SkillName
from metaclaw.domain.policy import GateReport, Weights
from metaclaw.domain.training import Rollout
from metaclaw.domain.turn import Step
from metaclaw.skills import (
    TRIVIAL_ANSWERS,
    CheckKind,
    change_words,
    constant_parts,
    fixed_words,
    near_answers,
    with_gaps,
)
from metaclaw.training.abilities import GeneralAbilities
from metaclaw.training.degeneration import HeldOutAnswer, one_answer
from metaclaw.training.gate import AnswerPair, Evidence, GateRuling, GateThresholds, judge_candidate
from metaclaw.training.rewards import Rewards
from metaclaw.training.sampling import VersionSampler
from metaclaw.training.training_turns import TrainingTurn

log = logging.getLogger(__name__)

_DRAWS_A_PROMPT: Final = 8
_DISTANCE_PROMPTS: Final = 16
_DEMANDED_BY: Final = 3
_LENIENT_BY: Final = 4
_LEAST_LENIENT_BY: Final = 3
_LIKELIEST_BY: Final = 16
_SWAPPED: Final = 5
_SHRUNK: Final = 3
_Said: TypeAlias = tuple[Step, str]
_Skills: TypeAlias = tuple[SkillName, ...]


@dataclass(frozen=True, slots=True)
class _Tried:
    """A prompt with the candidate's and the serving version's answer, and what these are worth."""

    turn: TrainingTurn
    mine: Rollout
    theirs: Rollout
    pair: AnswerPair

    @property
    def is_shrunk(self) -> bool:
        """Whether the candidate says far less."""
        return len(self.mine.text.split()) * _SHRUNK < len(self.theirs.text.split())


@dataclass(eq=False, kw_only=True)
class Proof:
    """Compares weights on held-out prompts, which are answered as the policy serves, and on the
    golden set.
    """

    sampler: VersionSampler
    rewards: Rewards
    abilities: GeneralAbilities
    rules: GateThresholds

    async def weigh(
        self,
        candidate: Weights,
        serving: Weights | None,
        held_out: Sequence[TrainingTurn],
        *,
        seed: int,
        judge: str | None,
        number: int = 1,
    ) -> GateReport:
        """Try the candidate until the gate has decided; `number` says which try of a version this
        is. The golden set, which takes longest, comes last. Raises TrainingError."""
        rules = replace(self.rules, tries=number)
        kl = await self._distance(candidate, held_out[:_DISTANCE_PROMPTS], seed)
        likeliest = await self._likeliest(candidate, held_out)
        filled_in = {
            skills: text
            for skills, said in likeliest.items()
            if (text := await self._filled_in(said)) is not None
        }
        evidence = Evidence(pairs=(), kl=kl, judge=judge, lenient=filled_in)
        tries = _tries(held_out, seed)
        while (decision := judge_candidate(evidence, rules)).ruling is GateRuling.UNDECIDED:
            if decision.more:
                wave = list(islice(tries, decision.more))
                tried = await self._try(candidate, serving, wave)
                evidence = await self._with_wave(evidence, tried, likeliest)
            else:
                # With the untrained model: compared with each other, many versions might lose a
                # little each, and what one happened to gain its successors could not give back.
                old, new, _ = await self.abilities.compare(candidate, None, rules)
                evidence = replace(evidence, golden_untrained=old, golden_candidate=new)
        report = decision.report
        if (
            report.is_passed
            and judge is None
            and (names := await self._form_only(evidence.pairs, held_out))
        ):
            note = (
                f"the check of {', '.join(names)} accepts the same answers to other questions: it"
                " proves the form, not the content"
            )
            report = replace(report, reasons=(*report.reasons, note))
        log.info(
            "policy_weighed ruling=%s reasons=%s", decision.ruling.value, "; ".join(report.reasons)
        )
        return report

    async def _try(
        self, candidate: Weights, serving: Weights | None, wave: Sequence[tuple[TrainingTurn, int]]
    ) -> list[_Tried]:
        """Both answers to each prompt of a wave; those of one seed are drawn together."""
        found: list[_Tried] = []
        for seed in dict.fromkeys(seed for _, seed in wave):
            turns = [turn for turn, mine in wave if mine == seed]
            new, old = [
                await self._answers(turns, weights, seed) for weights in (candidate, serving)
            ]
            for turn, mine, theirs in zip(turns, new, old, strict=True):
                found.append(_Tried(turn, mine, theirs, await self._pair(turn.step, mine, theirs)))
        return found

    async def _pair(self, step: Step, mine: Rollout, theirs: Rollout) -> AnswerPair:
        worth = await self.rewards.score(step, [mine, theirs])
        strict = await self.rewards.score_strictly(step, [mine, theirs])
        new, old = [
            HeldOutAnswer(step.task, one.text, len(one.tokens_T), one.is_whole)
            for one in (mine, theirs)
        ]
        return AnswerPair(worth[0], worth[1], step.stamp.skills, strict[0], strict[1], (new, old))

    async def _with_wave(
        self,
        evidence: Evidence,
        tried: Sequence[_Tried],
        likeliest: Mapping[_Skills, Sequence[_Said]],
    ) -> Evidence:
        """The evidence with one more wave; with an empty one, it is all there is."""
        lenient = {**evidence.lenient} | await self._lenient(tried, evidence.lenient, likeliest)
        earlier = [
            _unproven(pair)
            if pair.skills in lenient and pair.skills not in evidence.lenient
            else pair
            for pair in evidence.pairs
        ]
        pairs = [
            await self._judged(one, lenient, has_judge=evidence.judge is not None) for one in tried
        ]
        evidence = replace(evidence, pairs=(*earlier, *pairs), lenient=lenient, is_all=not tried)
        steps = [one.turn.step for one in tried[:_DEMANDED_BY]]
        return replace(evidence, demanded=evidence.demanded | await self._demanded(evidence, steps))

    async def _likeliest(
        self, candidate: Weights, held_out: Sequence[TrainingTurn]
    ) -> dict[_Skills, list[_Said]]:
        """The likeliest answers of the candidate to some prompts of each skill. Answers that are
        drawn at random differ, and hide what a version mostly says."""
        found: dict[_Skills, list[_Said]] = {}
        for skills, turns in _by_skills(held_out).items():
            some = list({turn.step.task: turn for turn in turns}.values())[:_LIKELIEST_BY]
            drawn = await self._answers(some, candidate)
            found[skills] = [
                (turn.step, one.text.strip()) for turn, one in zip(some, drawn, strict=True)
            ]
        return found

    async def _lenient(
        self,
        tried: Sequence[_Tried],
        known: Mapping[_Skills, str],
        likeliest: Mapping[_Skills, Sequence[_Said]],
    ) -> dict[_Skills, str]:
        """For skills whose checks prove nothing by themselves, an answer that these accept to every
        question although they accept others too. A check that demands something is tried with
        trivial answers, with the candidate's usual answer and with what its answers have in common;
        one that only forbids something with the usual answer, and with what the candidate says
        where it wins mostly by saying next to nothing."""
        found: dict[_Skills, str] = {}
        for skills in dict.fromkeys(
            one.pair.skills for one in tried if one.pair.skills not in known
        ):
            mine = [one for one in tried if one.pair.skills == skills]
            steps = list({one.turn.step.task: one.turn.step for one in mine}.values())
            by_kind: dict[CheckKind, list[Step]] = {}
            for step in steps[: 2 * _LENIENT_BY]:
                by_kind.setdefault(await self.rewards.check_kind(step), []).append(step)
            usual = _usual(likeliest.get(skills, ()))
            passed = [
                (one.turn.step.task, one.mine.text)
                for one in mine
                if one.pair.strict_candidate == 1.0
            ]
            for kind, texts in (
                (CheckKind.DEMANDS, [*TRIVIAL_ANSWERS, *usual, *constant_parts(passed)]),
                (CheckKind.FORBIDS, [*usual, *_brief_gains(mine)]),
            ):
                asked = by_kind.get(kind, [])[:_LENIENT_BY]
                if len(asked) >= _LEAST_LENIENT_BY:
                    accepted = await self._accepted(asked, texts)
                    found |= {} if accepted is None else {skills: accepted}
        return found

    async def _passing(self, step: Step, texts: Sequence[str]) -> list[str]:
        """Those of some texts that are right by the strict measure."""
        worth = await self.rewards.score_strictly(step, [_whole(text) for text in texts])
        return [text for text, one in zip(texts, worth, strict=True) if one == 1.0]

    async def _are_near_ones_wrong(self, step: Step, text: str) -> bool:
        """Whether nearly the same answers are all wrong."""
        near = [_whole(one) for one in near_answers(text)]
        return all(one == 0.0 for one in await self.rewards.score_strictly(step, near))

    async def _filled_in(self, likeliest: Sequence[_Said]) -> str | None:
        """The candidate's wording, with gaps for the words of a question, if it puts nothing but
        these into a fixed wording, of which the checks accept others as well: such an answer says
        nothing of its own. None if that is not so, or if the checks demand nothing."""
        if await self.rewards.check_kind(likeliest[0][0]) is not CheckKind.DEMANDS:
            return None
        passed = [one for one in likeliest if await self._passing(one[0], [one[1]])]
        words = fixed_words([(step.task, text) for step, text in passed])
        filled = [one for one in passed if change_words(one[1], words)][:_LEAST_LENIENT_BY]
        if len(filled) < _LEAST_LENIENT_BY:
            return None
        for step, text in filled:
            if not await self._passing(step, change_words(text, words)):
                return None
        (first, text), (second, _) = filled[:2]
        return with_gaps(text, first.task, second.task)

    async def _accepted(self, asked: Sequence[Step], texts: Sequence[str]) -> str | None:
        """The first of some texts that passes as the answer to every question, and is not the only
        one that does.
        """
        left = list(dict.fromkeys(texts))
        for step in asked:
            left = await self._passing(step, left)
        for text in left:
            if not await self._are_near_ones_wrong(asked[0], text):
                return text
        return None

    async def _judged(
        self, tried: _Tried, lenient: Mapping[_Skills, str], *, has_judge: bool
    ) -> AnswerPair:
        """The pair as the judge leaves it. A check knows the form it asks for, and seldom whether
        the answer is of any use: where the candidate would win by a check, the judge must accept
        its answer. Where checks prove nothing by themselves, the judge votes on both answers, and
        without votes the pair proves nothing either."""
        step, pair = tried.turn.step, tried.pair
        if pair.strict_candidate is None or pair.strict_serving is None:
            return pair
        if pair.skills in lenient:
            new, old = await self.rewards.score_by_judge(step, [tried.mine, tried.theirs])
            if new is None or old is None:
                return _unproven(pair)
            return replace(
                pair,
                strict_candidate=min(new, pair.strict_candidate),
                strict_serving=min(old, pair.strict_serving),
            )
        kind = await self.rewards.check_kind(step)
        if has_judge and kind is not CheckKind.NONE and pair.strict_candidate > pair.strict_serving:
            (vote,) = await self.rewards.score_by_judge(step, [tried.mine])
            if vote is not None:
                return replace(pair, strict_candidate=min(vote, pair.strict_candidate))
        # Saying next to nothing breaks no prohibition.
        return _unproven(pair) if kind is CheckKind.FORBIDS and tried.is_shrunk else pair

    async def _form_only(
        self, pairs: Sequence[AnswerPair], held_out: Sequence[TrainingTurn]
    ) -> list[SkillName]:
        """Skills whose checks do not read the question: they accept the candidate's answers to
        other questions as well.
        """
        steps = {turn.step.task: turn.step for turn in held_out}
        right: dict[_Skills, dict[str, Step]] = {}
        for pair in pairs:
            if pair.strict_candidate == 1.0 and pair.answers:
                mine = pair.answers[0]
                right.setdefault(pair.skills, {})[mine.text] = steps[mine.question]
        names: dict[SkillName, None] = {}
        for skills, said in right.items():
            texts, asked = list(said)[:_SWAPPED], list(said.values())[:_SWAPPED]
            if (
                len(texts) < _LEAST_LENIENT_BY
                or await self.rewards.check_kind(asked[0]) is not CheckKind.DEMANDS
            ):
                continue
            swapped = [
                await self._passing(step, [text])
                for step, text in zip(asked, [*texts[1:], texts[0]], strict=True)
                if said[text].task != step.task
            ]
            if swapped and all(swapped):
                names |= dict.fromkeys(skills)
        return list(names)

    async def _demanded(self, evidence: Evidence, steps: Sequence[Step]) -> frozenset[str]:
        """The answer that the candidate gives to most questions, where it is what their checks
        demand: right by the strict measure, while nearly the same answers are wrong. A check that
        accepts others too does not demand it."""
        mine = [pair.answers[0] for pair in evidence.pairs if pair.answers is not None]
        said = one_answer(mine)
        same = [one.text.strip() for one in mine if one_answer([one]) == said]
        if not steps or not said or said in evidence.demanded or len(same) * 2 < len(mine):
            return frozenset()
        for step in steps:
            is_right = await self._passing(step, same[:1])
            if not is_right or not await self._are_near_ones_wrong(step, same[0]):
                return frozenset()
        return frozenset([said])

    async def _distance(
        self, candidate: Weights, some: Sequence[TrainingTurn], seed: int
    ) -> float | None:
        """The distance to the untrained weights after the last update, in nats a token of the
        candidate's own answers to held-out prompts; None where there are no prompts."""
        if not some:
            return None
        said = await self._answers(some, candidate, seed)
        untrained = await self.sampler.score(
            [(turn.prompt, one.tokens_T) for turn, one in zip(some, said, strict=True)], None
        )
        gained = sum(
            sum(one.logprobs_T) - sum(base) for one, base in zip(said, untrained, strict=True)
        )
        return gained / sum(len(one.tokens_T) for one in said)

    async def _answers(
        self, turns: Sequence[TrainingTurn], weights: Weights | None, seed: int | None = None
    ) -> list[Rollout]:
        """One answer to each turn, never longer than their clients allowed; without a seed the
        likeliest.
        """
        most = self.sampler.max_tokens
        room = max(most if one.max_tokens is None else min(most, one.max_tokens) for one in turns)
        return await self.sampler.one_of_each([one.prompt for one in turns], weights, room, seed)


def _whole(text: str) -> Rollout:
    return Rollout((0,), (0.0,), text, True)


def _unproven(pair: AnswerPair) -> AnswerPair:
    """The pair as one of which the second measure cannot tell."""
    return replace(pair, strict_candidate=None, strict_serving=None)


def _usual(likeliest: Sequence[_Said]) -> list[str]:
    """The answer that is the likeliest to at least half of the questions, if there is one."""
    if len(likeliest) < _LEAST_LENIENT_BY:
        return []
    ((text, count),) = Counter(text for _, text in likeliest).most_common(1)
    return [text] if text and count * 2 >= len(likeliest) else []


def _brief_gains(tried: Sequence[_Tried]) -> list[str]:
    """What the candidate said where it is better by the strict measure and says far less, if that
    is at least half of its gains.
    """
    gains = [
        one
        for one in tried
        if one.pair.strict_candidate == 1.0 and (one.pair.strict_serving or 0.0) < 1.0
    ]
    brief = [one.mine.text.strip() for one in gains if one.is_shrunk]
    return brief if len(gains) >= _LEAST_LENIENT_BY and len(brief) * 2 >= len(gains) else []


def _by_skills(turns: Sequence[TrainingTurn]) -> dict[_Skills, list[TrainingTurn]]:
    by_skills: dict[_Skills, list[TrainingTurn]] = {}
    for turn in turns:
        by_skills.setdefault(turn.step.stamp.skills, []).append(turn)
    return by_skills


def _tries(held_out: Sequence[TrainingTurn], seed: int) -> Iterator[tuple[TrainingTurn, int]]:
    """Every prompt once, then every prompt again with other random numbers, a few times. Skills
    take turns, so that each is tried early, however seldom it is asked for."""
    rounds = list(zip_longest(*_by_skills(held_out).values()))
    return (
        (turn, seed + again)
        for again in range(_DRAWS_A_PROMPT)
        for some in rounds
        for turn in some
        if turn is not None
    )

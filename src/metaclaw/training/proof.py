"""The gate at work: candidate and serving version answer the same held-out prompts and the golden
set, and the gate decides.

Results on the golden set are kept on disk by a hash of the weights and of the set, so the version
that serves is tried once and not again for each candidate. A version of a training service is known
by its name there."""

import hashlib
import json
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from anyio.to_thread import run_sync

from metaclaw.domain.ids import SkillName
from metaclaw.domain.policy import GateReport, Weights
from metaclaw.domain.training import Drawing, Rollout
from metaclaw.domain.turn import Step
from metaclaw.durable_files import replace_file
from metaclaw.ports import Tokeniser, TrainingBackend, Windows
from metaclaw.skills import (
    TRIVIAL_ANSWERS,
    CheckKind,
    change_words,
    constant_parts,
    fixed_words,
    near_answers,
    with_gaps,
)
from metaclaw.training.degeneration import HeldOutAnswer, one_answer
from metaclaw.training.gate import AnswerPair, Evidence, GateRuling, GateThresholds, judge_candidate
from metaclaw.training.golden import (
    GoldenComparison,
    GoldenItem,
    GoldenScore,
    GoldenStanding,
    GoldenThresholds,
    compare_golden,
    golden_version,
    read_answer,
    reference_pairs,
)
from metaclaw.training.training_turns import TrainingTurn

log = logging.getLogger(__name__)

_DRAWS_A_PROMPT = 8
_DISTANCE_PROMPTS = 16
_DEMANDED_BY = 3
_LENIENT_BY = 4
_LEAST_LENIENT_BY = 3
_LIKELIEST_BY = 16
_SWAPPED = 5
_SHRUNK = 3
_MOST_KEPT: Final = 20
_Drawn: TypeAlias = tuple[TrainingTurn, Rollout, Rollout]
_Said: TypeAlias = tuple[Step, str]


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
class ProofThresholds:
    """How answers are drawn for the comparison; the gate's own rules beside it."""

    gate: GateThresholds
    max_tokens: int
    temperature: float


@dataclass(slots=True)
class _Results:
    """What is known of one version: by item, whether it passes, and the mean log-probability of its
    reference.
    """

    passed: dict[str, bool] = field(default_factory=dict)
    likelihood: dict[str, float] = field(default_factory=dict)


@dataclass(eq=False, kw_only=True)
class GeneralAbilities:
    """Tries versions on the golden set, greedily. `folder` is where results are kept, None to keep
    none; `base` names the untrained model. An answer has at most `max_tokens` tokens, and no more
    than its item allows."""

    backend: TrainingBackend
    tokeniser: Tokeniser
    items: Sequence[GoldenItem]
    windows: Windows
    folder: Path | None = None
    base: str = ""
    max_tokens: int = 96
    wave: int = 300

    def __post_init__(self) -> None:
        self._version = golden_version(self.items)
        self.progress: str | None = None
        """How far the comparison is, for people; None between comparisons."""

    async def compare(
        self, candidate: Weights | None, serving: Weights | None, rules: GoldenThresholds
    ) -> tuple[GoldenScore, GoldenScore, GoldenComparison]:
        """The scores of serving version and candidate on as many items as decide, and the
        comparison. Raises TrainingError.
        """
        try:
            return await self._compare(candidate, serving, rules)
        finally:
            self.progress = None

    async def _compare(
        self, candidate: Weights | None, serving: Weights | None, rules: GoldenThresholds
    ) -> tuple[GoldenScore, GoldenScore, GoldenComparison]:
        versions = serving, candidate
        results = [await run_sync(self._read, weights) for weights in versions]
        wants_likelihood = False
        tried = min(self.wave, len(self.items))
        while True:
            some = self.items[:tried]
            self.progress = f"general abilities on {tried} questions, of at most {len(self.items)}"
            for weights, found in zip(versions, results, strict=True):
                await self._try(weights, found, some, with_likelihood=wants_likelihood)
            scores = [_score(found, some, with_likelihood=wants_likelihood) for found in results]
            comparison = compare_golden(scores[0], scores[1], rules, len(self.items))
            log.info(
                "golden_compared items=%d standing=%s points=%+.1f",
                tried,
                comparison.standing.value,
                comparison.points,
            )
            is_weak = scores[0].share < rules.weak
            if not wants_likelihood and (is_weak or comparison.standing is GoldenStanding.UNSURE):
                wants_likelihood = True
            elif comparison.standing is GoldenStanding.OPEN:
                tried = min(tried + self.wave, len(self.items))
            else:
                return scores[0], scores[1], comparison

    async def _try(
        self,
        weights: Weights | None,
        results: _Results,
        items: Sequence[GoldenItem],
        *,
        with_likelihood: bool,
    ) -> None:
        """Complete what is known of a version on these items."""
        missing = [item for item in items if item.name not in results.passed]
        by_room: dict[int, list[GoldenItem]] = defaultdict(list)
        for item in missing:
            by_room[min(item.max_tokens, self.max_tokens)].append(item)
        for room, some in sorted(by_room.items()):
            await self.windows.until_open()
            prompts, drawing = (
                [self.tokeniser.prompt(item.request) for item in some],
                Drawing(1, room, 0.0),
            )
            if weights is None:
                drawn = await self.backend.sample_base(prompts, drawing)
            else:
                drawn = await self.backend.sample(prompts, drawing, weights)
            results.passed |= {
                item.name: item.passes(read_answer(group[0].text))
                for item, group in zip(some, drawn, strict=True)
            }
        unscored = (
            [item for item in items if item.name not in results.likelihood]
            if with_likelihood
            else []
        )
        if unscored:
            await self.windows.until_open()
            pairs = reference_pairs(unscored, self.tokeniser.prompt, self.tokeniser.encode)
            scores = await (
                self.backend.score_base(pairs)
                if weights is None
                else self.backend.score(pairs, weights)
            )
            results.likelihood |= {
                item.name: sum(some) / len(some)
                for item, some in zip(unscored, scores, strict=True)
            }
        if missing or unscored:
            await run_sync(self._write, weights, results)

    def _path(self, weights: Weights | None) -> Path | None:
        if self.folder is None:
            return None
        named = f"{self.backend.name}\n{self.base}\n{self._version}\n{self.max_tokens}\n".encode()
        return (
            self.folder
            / f"{hashlib.sha256(named + (b'' if weights is None else _digest(weights))).hexdigest()[:32]}.json"
        )

    def _read(self, weights: Weights | None) -> _Results:
        path = self._path(weights)
        if path is None or not path.exists():
            return _Results()
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            return _Results(
                {str(name): bool(value) for name, value in kept["passed"].items()},
                {str(name): float(value) for name, value in kept["likelihood"].items()},
            )
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            log.warning("golden_results_lost path=%s reason=%s", path, error)
            return _Results()

    def _write(self, weights: Weights | None, results: _Results) -> None:
        path = self._path(weights)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(
                path,
                json.dumps({"passed": results.passed, "likelihood": results.likelihood}).encode(),
            )
            for old in sorted(path.parent.glob("*.json"), key=lambda one: one.stat().st_mtime)[
                :-_MOST_KEPT
            ]:
                old.unlink(missing_ok=True)
        except OSError as error:
            log.warning("golden_results_not_kept path=%s reason=%s", path, error)


@dataclass(eq=False, kw_only=True)
class Proof:
    """Compares weights on held-out prompts, which are answered as the policy serves, and on the
    golden set.
    """

    backend: TrainingBackend
    measures: Measures
    abilities: GeneralAbilities
    windows: Windows
    rules: ProofThresholds

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
        rules = self.rules.gate.for_try(number)
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
                drawn = await self._draw(candidate, serving, wave)
                pairs = [await self._pair(*one) for one in drawn]
                lenient = {
                    **evidence.lenient,
                    **await self._lenient(drawn, pairs, evidence.lenient, likeliest),
                }
                earlier = [
                    (
                        _unproven(pair)
                        if pair.skills in lenient and pair.skills not in evidence.lenient
                        else pair
                    )
                    for pair in evidence.pairs
                ]
                pairs = [
                    await self._judged(*one, lenient, has_judge=judge is not None)
                    for one in zip(drawn, pairs, strict=True)
                ]
                evidence = replace(
                    evidence, pairs=(*earlier, *pairs), lenient=lenient, is_all=not wave
                )
                evidence = replace(
                    evidence, demanded=evidence.demanded | await self._demanded(evidence, wave)
                )
            else:
                old, new, _ = await self.abilities.compare(candidate, serving, rules.golden)
                evidence = replace(evidence, golden_serving=old, golden_candidate=new)
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

    async def _draw(
        self, candidate: Weights, serving: Weights | None, wave: Sequence[tuple[TrainingTurn, int]]
    ) -> list[_Drawn]:
        """Both answers to each prompt of a wave; those of one seed are drawn together."""
        drawn: list[_Drawn] = []
        for seed in dict.fromkeys(seed for _, seed in wave):
            turns = [turn for turn, mine in wave if mine == seed]
            drawing = Drawing(1, self._room(turns), self.rules.temperature, seed)
            prompts = [turn.prompt for turn in turns]
            new, old = [
                await self._sample(prompts, drawing, weights) for weights in (candidate, serving)
            ]
            drawn += zip(turns, new, old, strict=True)
        return drawn

    async def _likeliest(
        self, candidate: Weights, held_out: Sequence[TrainingTurn]
    ) -> dict[tuple[SkillName, ...], list[_Said]]:
        """The likeliest answers of the candidate to some prompts of each skill. Answers that are
        drawn at random differ, and hide what a version mostly says."""
        found: dict[tuple[SkillName, ...], list[_Said]] = {}
        for skills, turns in _by_skills(held_out).items():
            some = list({turn.step.task: turn for turn in turns}.values())[:_LIKELIEST_BY]
            drawn = await self._sample(
                [turn.prompt for turn in some], Drawing(1, self._room(some), 0.0), candidate
            )
            found[skills] = [
                (turn.step, one.text.strip()) for turn, one in zip(some, drawn, strict=True)
            ]
        return found

    async def _lenient(
        self,
        drawn: Sequence[_Drawn],
        pairs: Sequence[AnswerPair],
        known: Mapping[tuple[SkillName, ...], str],
        likeliest: Mapping[tuple[SkillName, ...], Sequence[_Said]],
    ) -> dict[tuple[SkillName, ...], str]:
        """For skills whose checks prove nothing by themselves, an answer that these accept to every
        question although they accept others too. A check that demands something is tried with
        trivial answers, with the candidate's usual answer and with what its answers have in common;
        one that only forbids something with the usual answer, and with what the candidate says
        where it wins mostly by saying next to nothing."""
        found: dict[tuple[SkillName, ...], str] = {}
        for skills in dict.fromkeys(pair.skills for pair in pairs if pair.skills not in known):
            mine = [
                (one, pair) for one, pair in zip(drawn, pairs, strict=True) if pair.skills == skills
            ]
            asked = list({turn.step.task: turn.step for (turn, _, _), _ in mine}.values())[
                : 2 * _LENIENT_BY
            ]
            kinds = [await self.measures.check_kind(step) for step in asked]
            usual = _usual(likeliest.get(skills, ()))
            passed = [
                (turn.step.task, said.text)
                for (turn, said, _), pair in mine
                if pair.strict_candidate == 1.0
            ]
            for kind, texts in (
                (CheckKind.DEMANDS, [*TRIVIAL_ANSWERS, *usual, *constant_parts(passed)]),
                (CheckKind.FORBIDS, [*usual, *_brief_gains(mine)]),
            ):
                tried = [step for step, one in zip(asked, kinds, strict=True) if one is kind][
                    :_LENIENT_BY
                ]
                accepted = (
                    await self._accepted(tried, texts) if len(tried) >= _LEAST_LENIENT_BY else None
                )
                if accepted is not None:
                    found[skills] = accepted
        return found

    async def _filled_in(self, likeliest: Sequence[_Said]) -> str | None:
        """The candidate's wording, with gaps for the words of a question, if it puts nothing but
        these into a fixed wording, of which the checks accept others as well: such an answer says
        nothing of its own. None if that is not so, or if the checks demand nothing."""
        if (
            not likeliest
            or await self.measures.check_kind(likeliest[0][0]) is not CheckKind.DEMANDS
        ):
            return None
        worth = [
            (await self.measures.score_strictly(step, [_whole(text)]))[0]
            for step, text in likeliest
        ]
        passed = [one for one, score in zip(likeliest, worth, strict=True) if score == 1.0]
        words = fixed_words([(step.task, text) for step, text in passed])
        filled = [(step, text) for step, text in passed if change_words(text, words)][
            :_LEAST_LENIENT_BY
        ]
        if len(filled) < _LEAST_LENIENT_BY:
            return None
        for step, text in filled:
            changed = await self.measures.score_strictly(
                step, [_whole(one) for one in change_words(text, words)]
            )
            if all(one != 1.0 for one in changed):
                return None
        (first, text), (second, _) = filled[:2]
        return with_gaps(text, first.task, second.task)

    async def _accepted(self, asked: Sequence[Step], texts: Sequence[str]) -> str | None:
        """The first of some texts that passes as the answer to every question, and is not the only
        one that does.
        """
        left = list(dict.fromkeys(texts))
        for step in asked:
            worth = await self.measures.score_strictly(step, [_whole(text) for text in left])
            left = [text for text, one in zip(left, worth, strict=True) if one == 1.0]
        for text in left:
            near = await self.measures.score_strictly(
                asked[0], [_whole(one) for one in near_answers(text)]
            )
            if any(one != 0.0 for one in near):
                return text
        return None

    async def _judged(
        self,
        drawn: _Drawn,
        pair: AnswerPair,
        lenient: Mapping[tuple[SkillName, ...], str],
        *,
        has_judge: bool,
    ) -> AnswerPair:
        """The pair as the judge leaves it. A check knows the form it asks for, and seldom whether
        the answer is of any use: where the candidate would win by a check, the judge must accept
        its answer. Where checks prove nothing by themselves, the judge votes on both answers, and
        without votes the pair proves nothing either."""
        turn, mine, theirs = drawn
        if pair.strict_candidate is None or pair.strict_serving is None:
            return pair
        kind = await self.measures.check_kind(turn.step)
        if pair.skills in lenient:
            new, old = await self.measures.score_by_judge(turn.step, [mine, theirs])
            if new is None or old is None:
                return _unproven(pair)
            return replace(
                pair,
                strict_candidate=min(new, pair.strict_candidate),
                strict_serving=min(old, pair.strict_serving),
            )
        if has_judge and kind is not CheckKind.NONE and pair.strict_candidate > pair.strict_serving:
            (vote,) = await self.measures.score_by_judge(turn.step, [mine])
            if vote is not None:
                return replace(pair, strict_candidate=min(vote, pair.strict_candidate))
        # Saying next to nothing breaks no prohibition.
        return _unproven(pair) if kind is CheckKind.FORBIDS and _is_shrunk(mine, theirs) else pair

    async def _form_only(
        self, pairs: Sequence[AnswerPair], held_out: Sequence[TrainingTurn]
    ) -> list[SkillName]:
        """Skills whose checks do not read the question: they accept the candidate's answers to
        other questions as well.
        """
        steps = {turn.step.task: turn.step for turn in held_out}
        names: dict[SkillName, None] = {}
        for skills in dict.fromkeys(pair.skills for pair in pairs):
            mine = [
                pair.answers[0]
                for pair in pairs
                if pair.skills == skills and pair.strict_candidate == 1.0 and pair.answers
            ]
            some = list({one.text: one for one in mine}.values())[:_SWAPPED]
            if (
                len(some) < _LEAST_LENIENT_BY
                or await self.measures.check_kind(steps[some[0].question]) is not CheckKind.DEMANDS
            ):
                continue
            swapped = [
                await self.measures.score_strictly(steps[one.question], [_whole(other.text)])
                for one, other in zip(some, [*some[1:], some[0]], strict=True)
                if one.question != other.question
            ]
            if swapped and all(worth == [1.0] for worth in swapped):
                names |= dict.fromkeys(skills)
        return list(names)

    async def _demanded(
        self, evidence: Evidence, wave: Sequence[tuple[TrainingTurn, int]]
    ) -> frozenset[str]:
        """The answer that the candidate gives to most questions, where it is what their checks
        demand: right by the strict measure, while nearly the same answers are wrong. A check that
        accepts others too does not demand it."""
        mine = [pair.answers[0] for pair in evidence.pairs if pair.answers is not None]
        said = one_answer(mine)
        text = next((one.text.strip() for one in mine if one_answer([one]) == said), "")
        if (
            not text
            or said in evidence.demanded
            or sum(one_answer([one]) == said for one in mine) * 2 < len(mine)
        ):
            return frozenset()
        for turn, _ in wave[:_DEMANDED_BY]:
            tried = [_whole(one) for one in (text, *near_answers(text))]
            worth = await self.measures.score_strictly(turn.step, tried)
            if worth[0] != 1.0 or any(one != 0.0 for one in worth[1:]):
                return frozenset()
        return frozenset([said]) if wave else frozenset()

    def _room(self, turns: Sequence[TrainingTurn]) -> int:
        """The longest answer that is drawn for these turns: never longer than their clients
        allowed.
        """
        most = self.rules.max_tokens
        return max(
            most if turn.max_tokens is None else min(most, turn.max_tokens) for turn in turns
        )

    async def _pair(self, turn: TrainingTurn, mine: Rollout, theirs: Rollout) -> AnswerPair:
        step, both = turn.step, [mine, theirs]
        worth = await self.measures.score(step, both)
        strict = await self.measures.score_strictly(step, both)
        new, old = [
            HeldOutAnswer(step.task, one.text, len(one.tokens_T), one.is_whole) for one in both
        ]
        return AnswerPair(worth[0], worth[1], step.stamp.skills, strict[0], strict[1], (new, old))

    async def _distance(
        self, candidate: Weights, some: Sequence[TrainingTurn], seed: int
    ) -> float | None:
        """The distance to the untrained weights after the last update, in nats a token of the
        candidate's own answers to held-out prompts; None where there are no prompts."""
        prompts = [turn.prompt for turn in some]
        if not prompts:
            return None
        said = await self._sample(
            prompts, Drawing(1, self._room(some), self.rules.temperature, seed), candidate
        )
        await self.windows.until_open()
        untrained = await self.backend.score_base(
            [(prompt, one.tokens_T) for prompt, one in zip(prompts, said, strict=True)]
        )
        gained = sum(
            sum(one.logprobs_T) - sum(base) for one, base in zip(said, untrained, strict=True)
        )
        return gained / sum(len(one.tokens_T) for one in said)

    async def _sample(
        self, prompts: Sequence[Sequence[int]], drawing: Drawing, weights: Weights | None
    ) -> list[Rollout]:
        await self.windows.until_open()
        if weights is None:
            drawn = await self.backend.sample_base(prompts, drawing)
        else:
            drawn = await self.backend.sample(prompts, drawing, weights)
        return [group[0] for group in drawn]


def _whole(text: str) -> Rollout:
    return Rollout((0,), (0.0,), text, True)


def _unproven(pair: AnswerPair) -> AnswerPair:
    """The pair as one of which the second measure cannot tell."""
    return replace(pair, strict_candidate=None, strict_serving=None)


def _usual(likeliest: Sequence[_Said]) -> list[str]:
    """The answer that is the likeliest to at least half of the questions, if there is one."""
    if len(likeliest) < _LEAST_LENIENT_BY:
        return []
    counts = Counter(text for _, text in likeliest)
    return [text for text, count in counts.most_common(1) if text and count * 2 >= len(likeliest)]


def _is_shrunk(mine: Rollout, theirs: Rollout) -> bool:
    return len(mine.text.split()) * _SHRUNK < len(theirs.text.split())


def _brief_gains(tried: Sequence[tuple[_Drawn, AnswerPair]]) -> list[str]:
    """What the candidate said where it is better by the strict measure and says far less, if that
    is at least half of its gains.
    """
    gains = [
        drawn
        for drawn, pair in tried
        if pair.strict_candidate == 1.0 and (pair.strict_serving or 0.0) < 1.0
    ]
    brief = [mine.text.strip() for _, mine, theirs in gains if _is_shrunk(mine, theirs)]
    return brief if len(gains) >= _LEAST_LENIENT_BY and len(brief) * 2 >= len(gains) else []


def _by_skills(turns: Sequence[TrainingTurn]) -> dict[tuple[SkillName, ...], list[TrainingTurn]]:
    by_skills: dict[tuple[SkillName, ...], list[TrainingTurn]] = {}
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


def _score(results: _Results, items: Sequence[GoldenItem], *, with_likelihood: bool) -> GoldenScore:
    passed = {item.name: results.passed[item.name] for item in items}
    return GoldenScore(
        passed,
        {item.name: results.likelihood[item.name] for item in items} if with_likelihood else None,
    )


def _digest(weights: Weights) -> bytes:
    """What tells weights from others: the bytes of an adapter that lies here, the name of one that
    lies with a service.
    """
    folder = Path(weights.adapter)
    if not folder.is_dir():
        return f"{weights.backend}\n{weights.adapter}".encode()
    digest = hashlib.sha256()
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        digest.update(path.relative_to(folder).as_posix().encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.digest()

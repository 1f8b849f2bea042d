"""The reward of an answer: by what the person wanted, by the checks of the skills in its prompt,
else by the judge.

A reward lies between 0 and 1 and is None where nothing can score the answer. An answer that has no
end, says nothing or repeats itself is worth 0, whatever a check finds in it.

What the person wanted is read from their corrections (`references`)."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from anyio.to_thread import run_sync

from metaclaw.domain.check import Check, Finding
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Skill
from metaclaw.domain.training import Rollout
from metaclaw.domain.turn import ModelAt, Scope, Step
from metaclaw.domain.verdict import Outcome, Source, Verdict
from metaclaw.errors import BudgetError, SkillError, TrainingBudgetError
from metaclaw.learn import always_match, concerns, conversation_of, in_words, is_corrected
from metaclaw.outcome import Judge
from metaclaw.skills import CheckKind, check_of, examine_many, kind_of
from metaclaw.training.answers import calls_of, parts_of, words_of
from metaclaw.training.backends.calls import gather_all
from metaclaw.training.degeneration import is_degenerate
from metaclaw.training.references import similarity
from metaclaw.upstream import without_waiting

log = logging.getLogger(__name__)

_CHECK_LIMIT_S: Final = 5.0
_MOST_RANKED_CHARS: Final = 40_000
_MOST_COMPARED_CHARS: Final = 4_000
_MOST_RULE_CHARS: Final = 4_000
_SEEN: Final = (Source.DETECTOR, Source.USER)
"""Whose verdicts on the recorded answer count as its reward: checks and judge score every answer
themselves.
"""
_NOT_CONCERNED: Final = Finding(Outcome.UNKNOWN, "the rule is not about such an answer")


def _no_verdict(turn: TurnId) -> Verdict | None:
    return None


def _no_reference(step: Step) -> str | None:
    return None


@dataclass(eq=False, kw_only=True)
class Rewards:
    """Scores answers to a recorded turn. Every scoring method raises TrainingBudgetError, rather
    than wait until midnight in the middle of a step, where the learning budget does not pay for the
    judge.

    `judge_for` is the judge of turns that a model made, or None where there is none; `verdict` is
    the verdict that stands on a recorded turn; `reference` is the answer that the person wanted.
    Each may block."""

    judge_for: Callable[[ModelAt], Judge | None]
    skill: Callable[[SkillName], Skill | None]
    redact: Callable[[str], str]
    verdict: Callable[[TurnId], Verdict | None] = _no_verdict
    reference: Callable[[Step], str | None] = _no_reference
    matches: Callable[[Skill, str, Scope], bool] = always_match
    """Whether a rule is for a task of a speaker. Blocks."""

    def can_score(self, step: Step) -> bool:
        """Whether anything can say what answers to this turn are worth. A turn that the person
        corrected is scored only if the correction states the answer: it outranks checks and judge.
        Asks no model; blocks."""
        if self.reference(step) is not None:
            return True
        return not is_corrected(step) and (
            bool(self._checks(step))
            or self.judge_for(step.served_by) is not None
            or self._recorded(step) is not None
        )

    def needs_judge(self, step: Step) -> bool:
        """Whether answers to this turn cost calls of the judge. Blocks."""
        return (
            self.judge_for(step.served_by) is not None
            and not self._checks(step)
            and self.reference(step) is None
        )

    def has_check(self, step: Step) -> bool:
        """Whether a check scores answers to this turn. Blocks."""
        return bool(self._checks(step))

    async def score(self, step: Step, answers: Sequence[Rollout]) -> list[float | None]:
        """The reward of each answer; equal answers are scored once."""
        texts = _usable(answers)
        found = await self._by_reference(step, texts)
        if found is None:
            found = await self._by_checks(step, texts, is_strict=False)
        if found is None:
            found = await self._by_ranking(step, texts)
        found |= await run_sync(self._by_verdict, step, texts, found)
        return _of_each(answers, found)

    async def score_strictly(self, step: Step, answers: Sequence[Rollout]) -> list[float | None]:
        """What each answer is worth by a second, stricter measure: 1 where it is what the person
        wanted, or every check passes on the whole answer, else 0; where there is neither, the
        judge's votes."""
        texts = _usable(answers)
        found = await self._by_reference(step, texts)
        if found is not None:
            found = {text: float(worth == 1.0) for text, worth in found.items()}
        else:
            found = await self._by_checks(step, texts, is_strict=True)
        if found is None:
            found = await self._by_votes(step, texts)
        return _of_each(answers, found)

    def breaks(self, rule: Skill, step: Step, answers: Sequence[Rollout]) -> list[bool | None]:
        """Whether each answer breaks a rule by the rule's check; None if the rule is not about it.
        Blocks.
        """
        check = _readable(rule)
        if check is None or not self.matches(rule, step.task, step.scope):
            return [None] * len(answers)
        parts = [parts_of(answer.text, step.tools) for answer in answers]
        found = examine_many(
            check, parts, _CHECK_LIMIT_S, conversation=conversation_of(step), is_strict=True
        )
        return [
            one.outcome is Outcome.FAIL
            if concerns(check, answer) and one.outcome is not Outcome.UNKNOWN
            else None
            for one, answer in zip(found, parts, strict=True)
        ]

    async def score_by_judge(self, step: Step, answers: Sequence[Rollout]) -> list[float | None]:
        """The share of the judge's votes for each answer; None where there is no judge."""
        return _of_each(answers, await self._by_votes(step, _usable(answers)))

    async def check_kind(self, step: Step) -> CheckKind:
        """What the checks that score this turn do; NONE where a person's answer scores it."""
        if await run_sync(self.reference, step) is not None:
            return CheckKind.NONE
        return kind_of([check for _, check in await run_sync(self._checks, step)])

    async def _by_reference(
        self, step: Step, texts: Sequence[str]
    ) -> dict[str, float | None] | None:
        """How near each text is to what the person wanted; None where that is not known."""
        wanted = await run_sync(self.reference, step)
        if wanted is None:
            return None
        return {text: similarity(_plain(text), _plain(wanted)) for text in texts}

    async def _by_checks(
        self, step: Step, texts: Sequence[str], *, is_strict: bool
    ) -> dict[str, float | None] | None:
        """What the checks of the turn's skills and rules say of each text; None where they say
        nothing of any.
        """
        checks = await run_sync(self._checks, step)
        if not checks:
            return None
        answers = [parts_of(text, step.tools) for text in texts]
        conversation = conversation_of(step)

        def look(skill: Skill, check: Check) -> list[Finding]:
            found = examine_many(
                check, answers, _CHECK_LIMIT_S, conversation=conversation, is_strict=is_strict
            )
            if skill.is_skill:
                return found
            return [
                one if concerns(check, answer) else _NOT_CONCERNED
                for one, answer in zip(found, answers, strict=True)
            ]

        findings = [await run_sync(look, skill, check) for skill, check in checks]
        worth = min if is_strict else _mean
        found = {
            text: worth(scores) if (scores := _known(one)) else None
            for text, one in zip(texts, zip(*findings, strict=True), strict=True)
        }
        # A rule about calls has nothing to say where none is made: then the judge is asked.
        return found if not found or any(score is not None for score in found.values()) else None

    async def _by_ranking(self, step: Step, texts: Sequence[str]) -> dict[str, float | None]:
        """How the texts compare, by one call of the judge; a single one is voted on."""
        judge = self.judge_for(step.served_by)
        if judge is None or len(texts) < 2:
            return await self._by_votes(step, texts)
        room = _MOST_RANKED_CHARS // len(texts)
        shown = [(await self._shown(step, text))[:room] for text in texts]
        with _paid_now():
            ranked = await judge.rank(self._with_rules(step), shown)
        return dict.fromkeys(texts) if ranked is None else dict(zip(texts, ranked, strict=True))

    async def _by_votes(self, step: Step, texts: Sequence[str]) -> dict[str, float | None]:
        """The share of the judge's votes that pass each text."""
        judge = self.judge_for(step.served_by)
        if judge is None:
            return dict.fromkeys(texts)

        async def ask(text: str) -> float | None:
            asked = self._with_rules(step)
            judged = await judge.judge_answer(asked, await self._shown(step, text))
            return None if judged.share_failed is None else 1.0 - judged.share_failed

        with _paid_now():
            votes = await gather_all([ask(text) for text in texts])
        return dict(zip(texts, votes, strict=True))

    def _with_rules(self, step: Step) -> Step:
        """The step as the judge sees it: a step holds what was asked without the rules and skills
        that stood in the prompt, and an answer that follows them may look wrong to a judge that
        does not know them."""
        skills = (self.skill(name) for name in step.stamp.skills)
        rules = "\n\n".join(skill.body.strip() for skill in skills if skill is not None)[
            :_MOST_RULE_CHARS
        ]
        return (
            replace(step, task=f"{step.task}\n\nRules that hold for the answer:\n{rules}")
            if rules
            else step
        )

    async def _shown(self, step: Step, text: str) -> str:
        """An answer as the judge sees it."""
        return await run_sync(lambda: self.redact(in_words(parts_of(text, step.tools), ())))

    def _by_verdict(
        self, step: Step, texts: Sequence[str], scores: dict[str, float | None]
    ) -> dict[str, float | None]:
        """The reward of texts that say what was answered then, by the verdict on that answer. A
        person's word stands above all else; what detectors saw, where nothing else is known.
        Blocks."""
        then = words_of(step.answer), calls_of(step.answer)
        same = [
            text
            for text in texts
            if (words_of(parts := parts_of(text, step.tools)), calls_of(parts)) == then
        ]
        verdict = self._recorded(step) if same else None
        if verdict is None:
            return {}
        worth = 1.0 if verdict.outcome is Outcome.PASS else 0.0
        return {
            text: worth
            for text in same
            if verdict.source is Source.USER or scores.get(text) is None
        }

    def _recorded(self, step: Step) -> Verdict | None:
        """What a person or a detector said of the recorded answer."""
        verdict = self.verdict(step.turn)
        if verdict is None or verdict.source not in _SEEN or verdict.outcome is Outcome.UNKNOWN:
            return None
        return verdict

    def _checks(self, step: Step) -> list[tuple[Skill, Check]]:
        """The checks of the skills in the prompt, and of the rules in it that are for the task.
        Blocks.
        """
        skills = [skill for name in step.stamp.skills if (skill := self.skill(name)) is not None]
        return [
            (skill, check)
            for skill in skills
            if not skill.is_check_proposed
            and (check := _readable(skill)) is not None
            and self.matches(skill, step.task, step.scope)
        ]


@contextmanager
def _paid_now() -> Iterator[None]:
    """Calls of the judge inside are paid for now, or TrainingBudgetError is raised."""
    with without_waiting():
        try:
            yield
        except BudgetError as error:
            raise TrainingBudgetError(str(error)) from error


def is_usable(answer: Rollout) -> bool:
    """Whether an answer may be worth anything: it has an end, says something and does not repeat
    itself.
    """
    return answer.is_whole and not is_degenerate(answer.text)


def _usable(answers: Sequence[Rollout]) -> list[str]:
    """The different texts that may be worth anything."""
    return list(dict.fromkeys(answer.text for answer in answers if is_usable(answer)))


def _of_each(answers: Sequence[Rollout], scores: dict[str, float | None]) -> list[float | None]:
    if scores and all(worth is None for worth in scores.values()):
        return [None] * len(
            answers
        )  # nothing can tell, so that one which has no end is no worse than others
    # The same text may have been cut off in one rollout and ended in another.
    return [
        scores[answer.text] if answer.is_whole and answer.text in scores else 0.0
        for answer in answers
    ]


def _known(findings: Sequence[Finding]) -> list[float]:
    return [finding.score for finding in findings if finding.score is not None]


def _mean(scores: Sequence[float]) -> float:
    return sum(scores) / len(scores)


def _plain(text: str) -> str:
    return " ".join(text.split())[:_MOST_COMPARED_CHARS]


def _readable(skill: Skill) -> Check | None:
    try:
        return check_of(skill)
    except SkillError as error:
        log.warning("check_unreadable skill=%s reason=%s", skill.name, error)
        return None

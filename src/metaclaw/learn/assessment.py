"""Verdicts on recorded turns, by checks, detectors and the judge, and their calibration."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

import anyio
from anyio.to_thread import run_sync

from metaclaw.clock import utc_now
from metaclaw.domain.chat import Part, Text, ToolCall
from metaclaw.domain.check import (
    Check,
    Conversation,
    Finding,
    PatternCheck,
    Place,
    ProgramCheck,
    SchemaCheck,
)
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import ALWAYS, Skill, SkillKind
from metaclaw.domain.turn import ModelAt, Scope, Step
from metaclaw.domain.verdict import Fault, Outcome, Signal, Source, Verdict
from metaclaw.errors import SkillError
from metaclaw.learn.store_rpc import AnyLibrary
from metaclaw.outcome import (
    Calibration,
    Judge,
    Sensed,
    fit_isotonic,
    fuse,
    is_cleared_by_one,
    raw_score,
    sense,
    verdict,
)
from metaclaw.skills import (
    LibraryView,
    Teams,
    check_of,
    documents_at,
    examine,
    query_text,
    texts_at,
)
from metaclaw.upstream import without_waiting

log = logging.getLogger(__name__)

_MOST_MATCHING = 24

_MOST_ANSWER_CHARS: Final = 8_000
_EVERY_S: Final = 600.0
_MOST: Final = 5_000


def concerns(check: Check, answer: Sequence[Part]) -> bool:
    """Whether a check applies to an answer: it has a call of the check's tools, or is a final
    answer, which calls no tool.
    """
    calls = any(isinstance(part, ToolCall) for part in answer)
    match check:
        case PatternCheck() | SchemaCheck() if check.where.place is Place.CALLS:
            read = texts_at if isinstance(check, PatternCheck) else documents_at
            return bool(read(answer, check.where))
        case PatternCheck() | SchemaCheck():
            return not calls and _says_something(answer)
        case ProgramCheck():
            # A program that reads calls applies to every answer, other programs to final answers.
            return "calls" in check.source if calls else _says_something(answer)


def needs_situation(rule: Skill) -> bool:
    """Whether the task must be compared with the rule's situation: rules for other situations may
    be in the prompt, too. A rule whose check reads tool calls needs no comparison."""
    if rule.kind is not SkillKind.RULE or rule.when == ALWAYS:
        return False
    check = readable_check(rule)
    return not (isinstance(check, PatternCheck | SchemaCheck) and check.where.place is Place.CALLS)


def matching(
    view: LibraryView, task: str, scope: Scope, teams: Teams, day: date
) -> frozenset[SkillName]:
    """The names of the rules and skills that match the task, or apply always."""
    query = query_text(task)
    found = view.retrieve(query, _MOST_MATCHING, scope, teams, today=day) if query else ()
    return frozenset(skill.name for skill in found)


def readable_check(rule: Skill) -> Check | None:
    """The check of a rule or skill; None if it has none, or if it cannot be read, which `status`
    reports.
    """
    try:
        return check_of(rule)
    except SkillError as error:
        log.debug("check_unreadable skill=%s reason=%s", rule.name, error)
        return None


@dataclass(eq=False)
class Situations:
    """Tells whether a rule in force applies to a task. Blocks."""

    library: AnyLibrary
    teams: Teams
    today: Callable[[], date] = lambda: utc_now().date()

    def match(self, rule: Skill, task: str, scope: Scope) -> bool:
        """Whether a rule applies to this task of this speaker."""
        return not needs_situation(rule) or rule.name in matching(
            self.library.view, task, scope, self.teams, self.today()
        )


def always_match(rule: Skill, task: str, scope: Scope) -> bool:
    """A `Situations.match` for which every rule applies."""
    return True


def _says_something(answer: Sequence[Part]) -> bool:
    return any(isinstance(part, Text) and part.text.strip() for part in answer)


@dataclass(frozen=True, slots=True)
class QuickVerdict:
    """The verdict of checks or detectors, None if they say nothing. `failed_check` names a skill
    whose check failed to run.
    """

    verdict: Verdict | None
    failed_check: SkillName | None = None


@dataclass(eq=False, kw_only=True)
class Assessment:
    """Gives verdicts on recorded turns. `judge_for` returns the judge for turns of a model, or
    None. `matches` says whether a rule applies to a task of a speaker, and blocks; `judged` is
    called with the judge's model after each turn that it judged."""

    judge_for: Callable[[ModelAt], Judge | None]
    skill: Callable[[SkillName], Skill | None]
    calibration: Callable[[], Calibration]
    matches: Callable[[Skill, str, Scope], bool]
    judged: Callable[[str], Awaitable[None]]

    def signals(self, step: Step, later: Step | None = None) -> tuple[Signal, ...]:
        """The signals of the detectors. Blocks."""
        return sense(step, later).signals

    def at_once(self, step: Step, later: Step | None = None) -> QuickVerdict:
        """The verdict of checks or detectors. Blocks.

        If a check fails, the turn failed. If it passes, the detectors may still find a failure,
        because a check tests one rule and not the whole task."""
        findings = {
            name: finding
            for name in step.stamp.skills
            if (finding := self._check(name, step)) is not None
        }
        outcomes = [finding.outcome for finding in findings.values()]
        if Outcome.FAIL in outcomes:
            why, fault = "a skill's check failed", Fault.AGENT
            return QuickVerdict(
                Verdict(step.turn, Outcome.FAIL, Source.CHECK, 1.0, fault=fault, comment=why)
            )
        sensed = sense(step, later)
        has_failed = sensed.verdict is not None and sensed.verdict.outcome is Outcome.FAIL
        if set(outcomes) == {Outcome.PASS} and not has_failed:
            return QuickVerdict(Verdict(step.turn, Outcome.PASS, Source.CHECK, 0.0))
        if sensed.verdict is not None:
            return QuickVerdict(verdict(step, sensed, None, self.calibration()))
        return QuickVerdict(
            None, next((name for name, finding in findings.items() if finding.has_failed), None)
        )

    def has_judge(self, step: Step) -> bool:
        return self.judge_for(step.served_by) is not None

    async def asked(self, step: Step, later: Step | None = None) -> Verdict | None:
        """The judge's verdict; None if there is no judge. Raises BudgetError if the budget does not
        allow it now.
        """
        judge = self.judge_for(step.served_by)
        if judge is None:
            return None
        sensed = await run_sync(sense, step, later)
        with without_waiting():
            votes = await judge.judge(step, is_suspect=not is_cleared_by_one(sensed))
        await self.judged(votes.model)
        return verdict(step, sensed, votes, self.calibration())

    def _check(self, name: SkillName, step: Step) -> Finding | None:
        skill = self.skill(name)
        try:
            # A check that no turn has confirmed yet gives no verdict.
            check = None if skill is None or skill.is_check_proposed else check_of(skill)
        except SkillError as error:
            log.warning("check_unreadable skill=%s reason=%s", name, error)
            return None
        if skill is None or check is None or not self._applies(skill, check, step):
            return None
        return examine(check, step.answer, conversation=conversation_of(step))

    def _applies(self, skill: Skill, check: Check, step: Step) -> bool:
        """Whether a check applies to this answer. A skill's check always does, because skills are
        placed where they match.
        """
        return skill.is_skill or (
            concerns(check, step.answer) and self.matches(skill, step.task, step.scope)
        )


def conversation_of(step: Step) -> Conversation:
    """The conversation before the answer, in the form that checks get."""
    return Conversation(step.history, step.task, step.tools)


def is_corrected(step: Step) -> bool:
    """Whether the person's next message corrects the answer."""
    return any(signal.detector.startswith("correction.") for signal in sense(step).signals)


def in_words(answer: Sequence[Part], calls: Sequence[ToolCall]) -> str:
    """The calls and words of an answer as text for a judge."""
    earlier = [f"[called {call.name} with {call.arguments}]" for call in calls]
    texts = [part.text for part in answer if isinstance(part, Text)]
    last = [
        f"[calls {part.name} with {part.arguments}]"
        for part in answer
        if isinstance(part, ToolCall)
    ]
    return "\n".join([*earlier, *texts, *last])[:_MOST_ANSWER_CHARS]


class CalibrationLoop:
    """Fits the calibration again every ten minutes."""

    def __init__(self, graded: Callable[[int], list[tuple[Verdict, Outcome]]]) -> None:
        """`graded` returns at most the given number of verdicts, newest first, each with the
        outcome that a person or a check gave the same turn. It blocks."""
        self._graded = graded
        self.current = Calibration()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await run_sync(self.refit)
            await anyio.sleep(_EVERY_S)

    def refit(self) -> None:
        """Fit both maps again. Blocks."""
        sensed: list[tuple[float, bool]] = []
        judged: list[tuple[float, bool]] = []
        for graded, truth in self._graded(_MOST):
            score = _raw(graded)
            if score is None:
                continue
            failed = truth is Outcome.FAIL
            (judged if graded.source is Source.JUDGE else sensed).append((score, failed))
        self.current = Calibration(fit_isotonic(sensed), fit_isotonic(judged))
        log.debug("calibrated sensed=%d judged=%d", len(sensed), len(judged))


def _raw(graded: Verdict) -> float | None:
    """The score before calibration; None if no vote was readable."""
    return raw_score(Sensed(None, graded.signals, fuse(graded.signals)), graded.votes)

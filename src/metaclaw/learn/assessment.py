"""What a turn came to, from everyone who can say: a skill's own check, the detectors, the judge; and how a replay is scored."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from anyio.to_thread import run_sync

from metaclaw.domain.candidate import ProbeKind
from metaclaw.domain.chat import Part, Text, ToolCall
from metaclaw.domain.check import Check, Conversation
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill
from metaclaw.domain.step import Step
from metaclaw.domain.turn import Scope
from metaclaw.domain.verdict import Fault, Outcome, Signal, Source, Verdict
from metaclaw.errors import JudgeError, SkillError
from metaclaw.learn.applicability import always_match, concerns
from metaclaw.learn.replay import PlayedCall, PlayedTurn, Score
from metaclaw.outcome import Calibration, Judge, is_cleared_by_one, sense, verdict
from metaclaw.skills import PROPOSED, check_of, check_state_of, cut_middle, estimate_tokens, run_check
from metaclaw.upstream import without_waiting

log = logging.getLogger(__name__)

_MOST_ANSWER_CHARS: Final = 8_000
_MOST_REQUIREMENT_CHARS: Final = 2_000
_JUDGE_TOKENS: Final = 450  # the judge's instructions, its schema and its answer


async def _uncounted(model: str) -> None:
    return None


class Assessment:
    """Gives verdicts on recorded turns. `judge_for` is the judge of turns that a model made, or None where nobody judges."""

    def __init__(
        self,
        *,
        judge_for: Callable[[str], Judge | None],
        skill: Callable[[SkillName], Skill | None],
        calibration: Callable[[], Calibration],
        matches: Callable[[Skill, str, Scope], bool] = always_match,
        judged: Callable[[str], Awaitable[None]] = _uncounted,
    ) -> None:
        """`matches` says whether a rule is for a task of a speaker, and blocks; `judged` is told the judge's model for each turn it
        was asked about."""
        self._matches = matches
        self._judge_for = judge_for
        self._skill = skill
        self._calibration = calibration
        self._judged = judged

    def signals(self, step: Step, later: Step | None = None) -> tuple[Signal, ...]:
        """What the detectors see. Blocks."""
        return sense(step, later).signals

    def at_once(self, step: Step, later: Step | None = None) -> Verdict | None:
        """What checks or detectors can tell; None where they cannot. Blocks.

        A skill's check knows one rule, not the whole task: if it fails, the turn failed; if it passes, the detectors may object.
        """
        outcomes = [outcome for name in step.stamp.skills if (outcome := self._check(name, step)) is not None]
        if Outcome.FAIL in outcomes:
            return Verdict(step.turn, Outcome.FAIL, Source.CHECK, 1.0, fault=Fault.AGENT, comment="a skill's check failed")
        sensed = sense(step, later)
        if sensed.verdict is not None and sensed.verdict.outcome is Outcome.FAIL:
            return verdict(step, sensed, None, self._calibration())
        if outcomes and all(outcome is Outcome.PASS for outcome in outcomes):
            return Verdict(step.turn, Outcome.PASS, Source.CHECK, 0.0)
        return None if sensed.verdict is None else verdict(step, sensed, None, self._calibration())

    def has_judge(self, step: Step) -> bool:
        """Whether anybody judges turns of this one's model."""
        return self._judge_for(step.model) is not None

    async def asked(self, step: Step, later: Step | None = None) -> Verdict | None:
        """The judge's verdict; None where there is no judge. Raises BudgetError where it may not be paid for now."""
        judge = self._judge_for(step.model)
        if judge is None:
            return None
        sensed = await run_sync(sense, step, later)
        with without_waiting():
            votes = await judge.judge(step, is_suspect=not is_cleared_by_one(sensed))
        await self._judged(votes.model)
        return verdict(step, sensed, votes, self._calibration())

    def _check(self, name: SkillName, step: Step) -> Outcome | None:
        skill = self._skill(name)
        try:
            # A check that no real turn has confirmed yet is no verdict.
            check = None if skill is None or check_state_of(skill) == PROPOSED else check_of(skill)
        except SkillError as error:
            log.warning("check_unreadable skill=%s reason=%s", name, error)
            return None
        if skill is None or check is None or not self._applies(skill, check, step):
            return None
        return run_check(check, step.answer, conversation_of(step))

    def _applies(self, skill: Skill, check: Check, step: Step) -> bool:
        """Whether a check has to do with this answer; that of a skill always has, since skills are placed where they match."""
        return skill.is_skill or (concerns(check, step.answer) and self._matches(skill, step.task, step.scope))


class ReplayScorer:
    """Scores a replay: by the skill's own check where it can tell the recorded failure, else by a judge that sees the task, what
    the person said about the recorded answer, and the new answer, but not the prompt."""

    def __init__(self, judge_for: Callable[[str], Judge | None], redact: Callable[[str], str]) -> None:
        self._judge_for = judge_for
        self._redact = redact

    def estimate(self, skill: Skill, step: Step) -> int | None:
        """The tokens of one vote; 0 where a check decides, None where nobody can judge."""
        if _check_of(skill) is not None:
            return 0
        if self._judge_for(step.model) is None:
            return None
        return _vote_tokens(replay_requirement(step, ProbeKind.FAILING), in_words(step.answer, ()))

    async def score(self, skill: Skill, played: PlayedTurn) -> Score:
        """Raises JudgeError where nobody can say."""
        check = _check_of(skill)
        if check is not None and await run_sync(_tells, check, played):
            return Score(
                await run_sync(
                    run_check, check, (*(one.call for one in played.calls), *played.answer), conversation_of(played.step)
                )
            )
        judge = self._judge_for(played.step.model)
        if judge is None:
            raise JudgeError("no check and nobody to judge")
        requirement = await run_sync(self._redact, replay_requirement(played.step, played.kind))
        shown = await run_sync(self._redact, in_words(played.answer, played.calls))
        votes = await judge.judge_replay(requirement, shown)
        note = "its check passes the recorded failure, too, so a judge decided" if check is not None else ""
        tokens = _vote_tokens(requirement, shown) * max(1, votes.passed + votes.failed + votes.unknown)
        share = votes.share_failed
        if share is None or share == 0.5:
            return Score(Outcome.UNKNOWN, tokens, "the judge gave no verdict")
        return Score(Outcome.FAIL if share > 0.5 else Outcome.PASS, tokens, note)


def _check_of(skill: Skill) -> Check | None:
    try:
        return check_of(skill)
    except SkillError as error:
        log.info("check_unreadable skill=%s reason=%s", skill.name, error)
        return None


def _tells(check: Check, played: PlayedTurn) -> bool:
    """Whether a check can tell a failure: one that passes the answer a person called wrong cannot. Blocks."""
    return played.kind is ProbeKind.PASSING or run_check(check, played.step.answer, conversation_of(played.step)) is Outcome.FAIL


def _vote_tokens(requirement: str, answer: str) -> int:
    return _JUDGE_TOKENS + estimate_tokens(requirement) + estimate_tokens(answer)


def replay_requirement(step: Step, kind: ProbeKind) -> str:
    """The task and, of a turn that failed, what the person said next."""
    task = cut_middle(step.task, _MOST_REQUIREMENT_CHARS)
    if kind is ProbeKind.PASSING or step.said_after is None:
        return task
    return f"{task}\n\n== The remark on an earlier answer\n{cut_middle(step.said_after, _MOST_REQUIREMENT_CHARS)}"


def conversation_of(step: Step) -> Conversation:
    """What came before the answer, as checks see it."""
    return Conversation(step.history, step.task, step.tools)


def is_corrected(step: Step) -> bool:
    """Whether the person's next words speak against the answer."""
    return any(signal.detector.startswith("correction.") for signal in sense(step).signals)


def in_words(answer: Sequence[Part], calls: Sequence[PlayedCall]) -> str:
    """What the model did and said, for a judge to read."""
    done = [f"[called {one.call.name} with {one.call.arguments}]" for one in calls]
    said = [part.text for part in answer if isinstance(part, Text)]
    asked = [f"[calls {part.name} with {part.arguments}]" for part in answer if isinstance(part, ToolCall)]
    return "\n".join([*done, *said, *asked])[:_MOST_ANSWER_CHARS]

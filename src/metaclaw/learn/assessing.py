"""What a turn came to, from everyone who can say: a skill's own check, the detectors, the judge; and how a replay is scored."""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from anyio.to_thread import run_sync

from metaclaw.domain.chat import Part, Text, ToolCall
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill
from metaclaw.domain.step import Step
from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict
from metaclaw.errors import JudgeError
from metaclaw.learn.replay import PlayedCall
from metaclaw.outcome import Calibration, Judge, sense, verdict
from metaclaw.skills.checks import check_of, run_check

log = logging.getLogger(__name__)

_MOST_ANSWER_CHARS: Final = 16_000


class Assessing:
    """Gives verdicts on recorded turns. `judge_for` is the judge of turns that a model made, or None where nobody judges."""

    def __init__(
        self,
        *,
        judge_for: Callable[[str], Judge | None],
        skill: Callable[[SkillName], Skill | None],
        calibration: Callable[[], Calibration],
    ) -> None:
        self._judge_for = judge_for
        self._skill = skill
        self._calibration = calibration

    def at_once(self, step: Step) -> Verdict | None:
        """What checks or detectors can tell; None where they cannot. Blocks."""
        checked = self._checked(step)
        if checked is not None:
            return checked
        sensed = sense(step)
        return None if sensed.verdict is None else verdict(step, sensed, None, self._calibration())

    async def asked(self, step: Step) -> Verdict | None:
        """The judge's verdict; None where there is no judge."""
        judge = self._judge_for(step.model)
        if judge is None:
            return None
        votes = await judge.judge(step)
        sensed = await run_sync(sense, step)
        return verdict(step, sensed, votes, self._calibration())

    def _checked(self, step: Step) -> Verdict | None:
        """A turn that was made with skills that carry a check: it fails if one of them says so, and passes if all of them do."""
        outcomes = [outcome for name in step.stamp.skills if (outcome := self._check(name, step.answer)) is not None]
        if Outcome.FAIL in outcomes:
            return Verdict(step.turn, Outcome.FAIL, Source.CHECK, 1.0, fault=Fault.AGENT, comment="a skill's check failed")
        if outcomes and all(outcome is Outcome.PASS for outcome in outcomes):
            return Verdict(step.turn, Outcome.PASS, Source.CHECK, 0.0)
        return None

    def _check(self, name: SkillName, answer: Sequence[Part]) -> Outcome | None:
        skill = self._skill(name)
        check = None if skill is None else check_of(skill)
        return None if check is None else run_check(check, answer)


class ReplayScorer:
    """Scores the end of a replay: by the skill's own check where it has one, else by whether the person's later words would still
    have been needed, else as any answer is judged."""

    def __init__(self, judge_for: Callable[[str], Judge | None], redact: Callable[[str], str]) -> None:
        self._judge_for = judge_for
        self._redact = redact

    async def score(self, skill: Skill, step: Step, answer: tuple[Part, ...], calls: Sequence[PlayedCall]) -> Outcome:
        """Raises JudgeError where nobody can say."""
        check = check_of(skill)
        if check is not None:
            return await run_sync(run_check, check, answer)
        judge = self._judge_for(step.model)
        if judge is None:
            raise JudgeError("no check and nobody to judge")
        requirement = step.said_after or step.task
        votes = await judge.judge_against(self._redact(requirement), self._redact(_in_words(answer, calls)))
        share = votes.share_failed
        if share is None or share == 0.5:
            return Outcome.UNKNOWN
        return Outcome.FAIL if share > 0.5 else Outcome.PASS


def _in_words(answer: Sequence[Part], calls: Sequence[PlayedCall]) -> str:
    """What the model did and said, for a judge to read."""
    done = [f"[called {one.call.name} with {one.call.arguments}]" for one in calls]
    said = [part.text for part in answer if isinstance(part, Text)]
    asked = [f"[calls {part.name} with {part.arguments}]" for part in answer if isinstance(part, ToolCall)]
    return "\n".join([*done, *said, *asked])[:_MOST_ANSWER_CHARS]

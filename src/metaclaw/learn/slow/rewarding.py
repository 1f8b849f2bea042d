"""What a rollout is worth: by the checks of the skills in its prompt where there are any, else by the judge.

A reward lies between 0 and 1 and is None where nobody can say; what nobody can say of teaches nothing.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

import anyio
from anyio.to_thread import run_sync

from metaclaw.domain.chat import Part, Text, TextDelta, Tool, ToolCall
from metaclaw.domain.check import Check
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill
from metaclaw.domain.step import Step
from metaclaw.domain.verdict import Outcome
from metaclaw.engine import CallParser
from metaclaw.errors import SkillError
from metaclaw.learn.assessment import in_words, requirement_of
from metaclaw.outcome import Judge
from metaclaw.skills.checks import check_of, run_check

log = logging.getLogger(__name__)

_WORTH: Final = {Outcome.PASS: 1.0, Outcome.FAIL: 0.0}


class Rewarding:
    """Scores answers to a recorded turn. `judge_for` is the judge of turns that a model made, or None where nobody judges."""

    def __init__(
        self,
        *,
        judge_for: Callable[[str], Judge | None],
        skill: Callable[[SkillName], Skill | None],
        redact: Callable[[str], str],
    ) -> None:
        self._judge_for = judge_for
        self._skill = skill
        self._redact = redact

    async def score(self, step: Step, texts: Sequence[str]) -> list[float | None]:
        """The reward of each answer; equal answers are scored once."""
        found: dict[str, float | None] = dict.fromkeys(texts)
        checks = await run_sync(self._checks, step)
        if checks:
            for text in found:
                found[text] = await run_sync(_checked, checks, parts_of(text, step.tools))
        elif (judge := self._judge_for(step.model)) is not None:
            requirement = await run_sync(lambda: self._redact(requirement_of(step)))
            async with anyio.create_task_group() as group:
                for text in found:
                    group.start_soon(self._judged, judge, requirement, step, text, found)
        return [found[text] for text in texts]

    async def _judged(self, judge: Judge, requirement: str, step: Step, text: str, found: dict[str, float | None]) -> None:
        shown = await run_sync(lambda: self._redact(in_words(parts_of(text, step.tools), ())))
        failed = (await judge.judge_against(requirement, shown)).share_failed
        found[text] = None if failed is None else 1.0 - failed

    def _checks(self, step: Step) -> list[Check]:
        skills = [skill for name in step.stamp.skills if (skill := self._skill(name)) is not None]
        return [check for skill in skills if (check := _readable(skill)) is not None]


def parts_of(text: str, tools: Sequence[Tool]) -> tuple[Part, ...]:
    """An answer's text as words and calls, as it would have been served."""
    if not tools:
        return (Text(text),)
    parser = CallParser(frozenset(tool.name for tool in tools))
    said = [*parser.push(text), *parser.flush()]
    return tuple(
        Text(one.text) if isinstance(one, TextDelta) else ToolCall(one.id or "", one.name or "", one.arguments) for one in said
    )


def _checked(checks: Sequence[Check], answer: Sequence[Part]) -> float | None:
    """The share of the checks that an answer passes, among those that can tell."""
    worth = [_WORTH[outcome] for check in checks if (outcome := run_check(check, answer)) in _WORTH]
    return sum(worth) / len(worth) if worth else None


def _readable(skill: Skill) -> Check | None:
    try:
        return check_of(skill)
    except SkillError as error:
        log.warning("check_unreadable skill=%s reason=%s", skill.name, error)
        return None

"""Checks that a model proposes for rules: tried before they are taken, and proposed until a real turn confirms them.

A check is taken if it fails on the violating example and on the answer that the person corrected, passes on the complying one, and
fails on none of the person's last turns that are known to be fine: those that the person or a check passed, and those of which a
judge says that they follow the rule. That nobody complained of a turn says nothing: the rule may be about a habit that was borne
with until now. It is confirmed by the first later task in which the rule was placed and
the check agrees with the person: it finds the rule broken and the person corrects the answer, or it finds it followed and the
person goes on without a correction.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import anyio
from anyio.to_thread import run_sync

from metaclaw.domain.check import Check, ProgramCheck
from metaclaw.domain.ids import TurnId
from metaclaw.domain.skill import Skill
from metaclaw.domain.verdict import Outcome, Source, Verdict
from metaclaw.errors import BudgetError, SkillError
from metaclaw.learn.assessment import conversation_of, in_words
from metaclaw.learn.listen.messages import RuleItem, SpokenMessage
from metaclaw.learn.steps import RecordedSteps
from metaclaw.outcome import Judge
from metaclaw.skills import check_of, parse_check, rule_text, rule_when, run_check, sample_answer
from metaclaw.store import LedgerReader, TurnRow
from metaclaw.text import shorten
from metaclaw.upstream import without_waiting

log = logging.getLogger(__name__)

FINE_TURNS: Final = 200
"""A check is tried on so many of the person's last turns."""
_MOST_OF_TASK: Final = 32
_MOST_WORDS: Final = 80
_MOST_DOUBTS: Final = 3
_DECIDE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Proposed:
    """The result of trying a proposed check: taken (`check`), for a person to decide (`program`), or refused; `note` says why, for
    people to read. `doubts` are earlier turns that it fails, of which it is not known whether they follow the rule."""

    check: str | None = None
    program: str | None = None
    note: str | None = None
    doubts: tuple[TurnId, ...] = ()


@dataclass(eq=False)
class CheckTrial:
    """Tries checks on examples and on recorded turns. All but `settle` blocks."""

    reader: LedgerReader
    recorded: RecordedSteps
    redact: Callable[[str], str]
    judge_for: Callable[[str], Judge | None] = lambda model: None
    may_ask: Callable[[], Awaitable[bool]] | None = None

    def propose(self, spoken: SpokenMessage, item: RuleItem, *, is_corrected: bool) -> Proposed:
        """Try the check of an item, if it has one. `is_corrected` says that the message corrects the answer before it, and that
        this item alone says what is wanted."""
        if item.check is None:
            return Proposed()
        if self.redact(item.check) != item.check:
            return Proposed(note="a check was proposed and not taken: it holds a secret")
        try:
            check = parse_check(item.check, approved=False)
        except SkillError as error:
            return Proposed(note=f"a check was proposed and not taken: {error}")
        if isinstance(check, ProgramCheck):
            return Proposed(program=item.check, note="its check is a program that a model wrote: metaclaw candidates list")
        refusal = self._refusal(check, spoken, item, is_corrected=is_corrected)
        if refusal is None:
            fired = (row.id for row in self._earlier(spoken) if self._outcome(check, row.id) is Outcome.FAIL)
            return Proposed(item.check, doubts=tuple(islice(fired, _MOST_DOUBTS)))
        return _refused(item.check, refusal, spoken.turn)

    async def settle(self, rule: Skill, proposed: Proposed) -> Proposed:
        """Decide about a check that fails earlier turns: refused where a judge says that one of them follows the rule. What the
        judge cannot tell in a moment is no evidence."""
        if proposed.check is None or not proposed.doubts:
            return proposed
        fine: list[TurnId] = []

        async def ask(turn: TurnId) -> None:
            if await self._follows(rule, turn):
                fine.append(turn)

        with anyio.move_on_after(_DECIDE_S):
            async with anyio.create_task_group() as asking:
                for turn in proposed.doubts:
                    asking.start_soon(ask, turn)
        return _refused(proposed.check, _fails(min(fine)), min(fine)) if fine else replace(proposed, doubts=())

    async def _follows(self, rule: Skill, turn: TurnId) -> bool:
        """Whether a judge says that a recorded answer follows the rule."""
        step = await run_sync(self.recorded.alone, turn)
        judge = None if step is None else self.judge_for(step.model)
        if step is None or judge is None or (self.may_ask is not None and not await self.may_ask()):
            return False
        task, answer = await run_sync(lambda: (self.redact(step.task), self.redact(in_words(step.answer, ()))))
        try:
            with without_waiting():
                votes = await judge.judge_rule(rule_text(rule), rule_when(rule), task, answer)
        except BudgetError:
            return False
        return votes.passed > votes.failed

    def is_confirmed(self, rule: Skill, spoken: SpokenMessage, *, is_corrected: bool) -> bool:
        """Whether the task before this message, in which the rule was placed, confirms its check."""
        try:
            check = check_of(rule)
        except SkillError:
            return False
        return check is not None and self._found(check, spoken) is (Outcome.FAIL if is_corrected else Outcome.PASS)

    def _refusal(self, check: Check, spoken: SpokenMessage, item: RuleItem, *, is_corrected: bool) -> str | None:
        """Why a check is not taken; None where it is."""
        if not item.violates or not item.complies:
            return "there is no example that breaks the rule and one that follows it"
        if (found := run_check(check, sample_answer(check, item.violates))) is not Outcome.FAIL:
            return f"it does not notice the example that breaks the rule ({_said(found)})"
        if (found := run_check(check, sample_answer(check, item.complies))) is not Outcome.PASS:
            return f"it does not pass the example that follows the rule ({_said(found)})"
        if is_corrected and spoken.answered is not None and (found := self._found(check, spoken)) is not Outcome.FAIL:
            return f"it does not notice the answer that you corrected ({_said(found)})"
        passed = (row.id for row in self._earlier(spoken, is_passed=True))
        fired = next((turn for turn in passed if self._outcome(check, turn) is Outcome.FAIL), None)
        return None if fired is None else _fails(fired)

    def _found(self, check: Check, spoken: SpokenMessage) -> Outcome:
        """The outcome of a check on the task before a message: broken in any turn of it, else followed in any, else unknown."""
        found = {self._outcome(check, row.id) for row in self._task(spoken)}
        return next((one for one in (Outcome.FAIL, Outcome.PASS) if one in found), Outcome.UNKNOWN)

    def _task(self, spoken: SpokenMessage) -> list[TurnRow]:
        """The turns of the task that a message answers."""
        rows = self.reader.main_turns_before(spoken.session, spoken.seq, _MOST_OF_TASK)
        segment = next((row.segment for row in rows if row.id == spoken.answered), None)
        return [row for row in rows if row.segment == segment]

    def _earlier(self, spoken: SpokenMessage, *, is_passed: bool = False) -> list[TurnRow]:
        """The person's last turns in tasks without a complaint, or only those that they or a check passed. The task before the
        message is left out: the rule may be about it."""
        rows = self.reader.main_turns_of(spoken.scope.user, spoken.seq, FINE_TURNS)
        standings = self.reader.standings_of([row.id for row in rows]) if rows else {}
        verdicts = {row.id: verdict for row in rows if row.id in standings and (verdict := standings[row.id].verdict) is not None}
        failed = {(row.session, row.segment) for row in rows if row.id in verdicts and verdicts[row.id].outcome is Outcome.FAIL}
        left_out = failed | {(row.session, row.segment) for row in self._task(spoken)}
        kept = [row for row in rows if (row.session, row.segment) not in left_out]
        return [row for row in kept if row.id in verdicts and _is_passed(verdicts[row.id])] if is_passed else kept

    def _outcome(self, check: Check, turn: TurnId) -> Outcome:
        step = self.recorded.alone(turn)
        return Outcome.UNKNOWN if step is None else run_check(check, step.answer, conversation_of(step))


def _is_passed(verdict: Verdict) -> bool:
    return verdict.outcome is Outcome.PASS and verdict.source in (Source.USER, Source.CHECK)


def _fails(turn: TurnId) -> str:
    return f"it fails turns that were fine, such as {turn}"


def _refused(check: str, reason: str, turn: TurnId) -> Proposed:
    log.info("check_not_taken turn=%s reason=%s", turn, reason)
    return Proposed(note=f"a check was proposed and not taken: {reason} ({shorten(check, _MOST_WORDS)})")


def _said(outcome: Outcome) -> str:
    return {Outcome.PASS: "it passes it", Outcome.FAIL: "it fails it", Outcome.UNKNOWN: "it finds nothing to look at"}[outcome]

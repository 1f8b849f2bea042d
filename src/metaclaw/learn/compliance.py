"""Counts which rules were followed.

A rule applies to a turn if it was in force for the speaker, and is for every task or was in the
prompt. A check on tool calls applies to turns with such a call, a check on the answer to final
answers, which call no tool. For rules without a check, a judge is asked one question about every
tenth turn, within `judge.max_share` and the learning budget; otherwise the result is unknown.

The cursor of the loop moves in the transaction that counts, so no turn is counted twice after a
crash."""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import lru_cache
from typing import Final

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from metaclaw.domain.chat import Text
from metaclaw.domain.compliance import (
    MeasuredTurn,
    Reminded,
    RuleOutcome,
    RuleResult,
    measured_hash,
)
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import ALWAYS, Skill, SkillKind
from metaclaw.domain.turn import (
    REMINDER,
    STOPPED_BY_US,
    EnforcedRule,
    HoldEnd,
    ModelAt,
    Step,
    Turn,
    TurnEnd,
    TurnKind,
)
from metaclaw.domain.verdict import Outcome, Votes
from metaclaw.errors import BudgetError
from metaclaw.learn.assessment import (
    concerns,
    conversation_of,
    in_words,
    matching,
    needs_situation,
    readable_check,
)
from metaclaw.learn.outcomes import JudgeAllowance
from metaclaw.learn.steps import RecordedSteps
from metaclaw.learn.store_rpc import AnyLibrary
from metaclaw.learn.supervision import AttemptLog, LoopWakeup, RetryGuard
from metaclaw.outcome import Judge
from metaclaw.skills import (
    LibraryView,
    Teams,
    examine,
)
from metaclaw.store import LedgerReader, SqlCompliance, SqlGenerations, TurnRow
from metaclaw.upstream import without_waiting

log = logging.getLogger(__name__)

_ROWS_AT_ONCE: Final = 64
_CACHED_VIEWS: Final = 4
_JUDGED_EVERY: Final = 10
_MOST_REASON_CHARS: Final = 300
_OUTCOMES: Final = {
    Outcome.PASS: RuleResult.FOLLOWED,
    Outcome.FAIL: RuleResult.BROKEN,
    Outcome.UNKNOWN: RuleResult.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class RuleJudge:
    """Asks a judge whether an answer followed a rule, as one of the questions of its `allowance`.
    `may_ask` says whether the budget allows it; `judged` counts a turn that a model was asked
    about."""

    judge_for: Callable[[ModelAt], Judge | None]
    may_ask: Callable[[], Awaitable[bool]]
    redact: Callable[[str], str]
    allowance: JudgeAllowance
    judged: Callable[[str], Awaitable[None]]

    async def votes(self, rule: Skill, step: Step) -> Votes | None:
        """A judge's votes; None if there is no judge, or if its share of the turns or the budget
        does not allow it now.
        """
        judge = self.judge_for(step.served_by)
        if judge is None or not self.allowance.take():
            return None
        if not await self.may_ask():
            self.allowance.give_back()
            return None
        task, answer = await run_sync(
            lambda: (self.redact(step.task), self.redact(in_words(step.answer, ())))
        )
        try:
            with without_waiting():
                votes = await judge.judge_rule(rule.body, rule.when, task, answer)
        except BudgetError:
            self.allowance.give_back()
            return None
        await self.judged(judge.model.name)
        return votes


@dataclass(frozen=True, slots=True)
class _Question:
    """A question to a judge: whether a turn followed a rule that has no check."""

    measured: MeasuredTurn
    rule: Skill
    step: Step


@dataclass(eq=False, kw_only=True)
class ComplianceLoop:
    """Reads new turns from the ledger and counts which rules they followed. `absorbed` returns the rules and skills that a policy
    version has absorbed, and blocks; `on_broken` is called if a judge says that a rule was broken."""

    reader: LedgerReader
    compliance: SqlCompliance
    recorded: RecordedSteps
    library: AnyLibrary
    generations: SqlGenerations
    teams: Teams
    redact: Callable[[str], str]
    day_of: Callable[[datetime], date]
    judge: RuleJudge
    absorbed: Callable[[int], Collection[SkillName]]
    on_broken: Callable[[SkillName], None]
    attempt_log: AttemptLog

    def __post_init__(self) -> None:
        self.wakeup = LoopWakeup()
        self._guard = RetryGuard("compliance", self.attempt_log)
        self._judging = RetryGuard("judging rules", self.attempt_log)
        self._limiter = anyio.CapacityLimiter(1)
        self._earlier = lru_cache(_CACHED_VIEWS)(self._read_view)
        self._unasked: Counter[str] = Counter()
        self._unsampled = 0

    def prepare(self, sensed: int) -> None:
        """At the first start, skip the turns up to `sensed`. Blocks; call it before any loop
        runs.
        """
        if self.compliance.cursor() is None:
            self.compliance.record((), sensed)

    def forget(self) -> None:
        """Drop the cached generations, because some of their rules are to be forgotten."""
        self._earlier.cache_clear()

    async def run(self) -> None:
        """Run until cancelled."""
        async with anyio.create_task_group() as judging:
            while True:
                rows = await self.poll(judging)
                if rows < _ROWS_AT_ONCE:
                    await self.wakeup.wait_after(is_empty=not rows)

    async def poll(self, judging: TaskGroup) -> int:
        """Count the new turns; return how many there were."""
        reached = await run_sync(self.compliance.cursor) or 0
        rows = await run_sync(self.reader.turns_after, reached, _ROWS_AT_ONCE)
        if not rows:
            return 0
        await run_sync(self.library.follow)
        measured: list[MeasuredTurn] = []
        questions: list[_Question] = []
        for row in rows:
            if row.kind is TurnKind.MAIN and row.end is TurnEnd.COMPLETED:
                async with self._guard.attempt(row.id) as may:
                    turn = await run_sync(self._measure, row, questions) if may else None
                if turn is not None:
                    measured.append(turn)
        await run_sync(self.compliance.record, measured, rows[-1].seq)
        for question in questions:
            judging.start_soon(self._ask, question)
        return len(rows)

    def _measure(self, row: TurnRow, questions: list[_Question]) -> MeasuredTurn | None:
        """The outcome of a turn for each rule that applied; None if none did. Blocks."""
        view = self._view(row.stamp.generation)
        if not any(map(_is_measured, view.index.skills())):
            return None
        recorded = self.reader.turn(row.id)
        step = None if recorded is None else self.recorded.build(recorded, None)
        if recorded is None or step is None:
            return None
        turn, day = recorded.turn, self.day_of(row.times.received_at)
        measured = MeasuredTurn(row.seq, row.id, turn.agent, turn.model, day.isoformat(), ())
        outcomes: list[RuleOutcome] = []
        unjudged: list[_Question] = []
        for rule in self._applying(view, turn, step, day):
            outcome = self._outcome(rule, turn, step)
            if outcome is None:
                continue
            outcomes.append(outcome)
            if outcome.result is RuleResult.UNKNOWN and readable_check(rule) is None:
                unjudged.append(_Question(replace(measured, outcomes=(outcome,)), rule, step))
        questions += self._sampled(unjudged)
        return replace(measured, outcomes=tuple(outcomes)) if outcomes else None

    def _applying(self, view: LibraryView, turn: Turn, step: Step, day: date) -> list[Skill]:
        """The rules that applied to a turn, and the skills with a check that were in its prompt."""
        placed = frozenset(turn.stamp.skills)
        known = placed.union(self.absorbed(turn.stamp.policy_version))
        rules = [
            rule
            for rule in view.in_scope(turn.scope, self.teams, day).rules
            if rule.kind is SkillKind.RULE
        ]
        applying = [rule for rule in rules if rule.when == ALWAYS or rule.name in known]
        unsure = [
            rule
            for rule in applying
            if needs_situation(rule)
            and (readable_check(rule) is not None or rule.name not in placed)
        ]
        if unsure:
            near = matching(view, step.task, turn.scope, self.teams, day)
            applying = [rule for rule in applying if rule not in unsure or rule.name in near]
        skills = (
            skill
            for name in turn.stamp.skills
            if (skill := view.get(name)) is not None and skill.is_skill
        )
        return [*applying, *(skill for skill in skills if readable_check(skill) is not None)]

    def _outcome(self, rule: Skill, turn: Turn, step: Step) -> RuleOutcome | None:
        """The outcome of a turn for one rule; None if the rule does not concern the turn."""
        check = readable_check(rule)
        outcome = RuleOutcome(
            rule.name,
            measured_hash(rule),
            RuleResult.UNKNOWN,
            _reminded(turn, rule.name),
            is_shown=rule.name in turn.stamp.skills and not rule.is_check_proposed,
        )
        held = _held(turn, rule.name)
        if held is not None:
            result = RuleResult.HELD if held.is_checked else RuleResult.UNKNOWN
            return replace(
                outcome, result=result, reason=self.redact(held.reason)[:_MOST_REASON_CHARS]
            )
        if _is_our_text(turn, step):
            return None
        if check is None:
            return outcome
        if not concerns(check, step.answer):
            return None
        examined = examine(check, step.answer, conversation=conversation_of(step))
        result = _OUTCOMES[examined.outcome]
        has_reason = result is RuleResult.BROKEN or examined.has_failed
        reason = self.redact(examined.reason)[:_MOST_REASON_CHARS] if has_reason else ""
        return replace(outcome, result=result, reason=reason)

    def _view(self, generation: int) -> LibraryView:
        """The rules and skills as they were in a generation. Blocks."""
        current = self.library.view
        if current.generation == generation:
            return current
        return self._earlier(generation) or current

    def _read_view(self, generation: int) -> LibraryView | None:
        recorded = self.generations.at(generation)
        return None if recorded is None else LibraryView.of(generation, recorded.skills)

    def _sampled(self, questions: list[_Question]) -> list[_Question]:
        """Of every tenth turn with questions, the one about the rule that waited longest: with many
        rules, a judge costs no more than with one."""
        if not questions:
            return []
        hashes = [question.measured.outcomes[0].hash for question in questions]
        self._unasked.update(hashes)
        self._unsampled += 1
        if self._unsampled < _JUDGED_EVERY:
            return []
        self._unsampled = 0
        longest = max(range(len(hashes)), key=lambda place: self._unasked[hashes[place]])
        del self._unasked[hashes[longest]]
        return [questions[longest]]

    async def _ask(self, question: _Question) -> None:
        """Ask a judge whether a rule was followed. Without a clear answer the result stays
        unknown.
        """
        measured, rule = question.measured, question.rule
        async with self._limiter, self._judging.attempt(f"{measured.turn} {rule.name}") as may:
            votes = await self.judge.votes(rule, question.step) if may else None
        failed = None if votes is None else votes.share_failed
        if votes is None or failed is None or failed == 0.5:
            return
        result, reason = (
            (RuleResult.BROKEN, " ".join(votes.reasons))
            if failed > 0.5
            else (RuleResult.FOLLOWED, "")
        )
        (outcome,) = measured.outcomes
        judged = replace(outcome, result=result, reason=reason[:_MOST_REASON_CHARS])
        await run_sync(self.compliance.settle, replace(measured, outcomes=(judged,)))
        if result is RuleResult.BROKEN:
            self.on_broken(rule.name)


def _is_measured(skill: Skill) -> bool:
    return skill.kind is SkillKind.RULE or (skill.is_skill and skill.check is not None)


def _held(turn: Turn, rule: SkillName) -> EnforcedRule | None:
    """The record of calls that were held for a rule in this turn; None if the client got them with
    a warning.
    """
    enforced = () if turn.enforcement is None else turn.enforcement.rules
    return next(
        (record for record in enforced if record.rule == rule and record.end is not HoldEnd.WARNED),
        None,
    )


def _is_our_text(turn: Turn, step: Step) -> bool:
    """Whether the answer is the text that the proxy sends in the place of held calls."""
    return turn.enforcement is not None and any(
        isinstance(part, Text) and STOPPED_BY_US in part.text for part in step.answer
    )


def _reminded(turn: Turn, rule: SkillName) -> Reminded:
    for placement in turn.placements:
        if rule in placement.skills and not placement.is_lasting:
            return Reminded.PLACED if placement.anchor == REMINDER else Reminded.WITHHELD
    return Reminded.NOT_DUE

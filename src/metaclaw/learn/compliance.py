"""The compliance loop: was each rule followed in the turns it applied to?

A rule applies to a turn if it was in force for the speaker then, and is for every task or stood in the prompt. A check on tool
calls looks at turns with such a call, a check on the answer at final answers, which call no tool; in other turns the rule does not
apply. Rules without a check are unknown, unless a judge is asked: about every tenth such turn, within the learning budget.

Stopped at any moment, the loop goes on behind its cursor, which moves in the transaction that counts: no turn is counted twice.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Final

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from metaclaw.domain.chat import Text
from metaclaw.domain.compliance import MeasuredTurn, Reminded, RuleOutcome, RuleResult, measured_hash
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill, SkillKind
from metaclaw.domain.turn import REMINDER, STOPPED_BY_US, EnforcedRule, HoldEnd, Step, Turn, TurnEnd, TurnKind
from metaclaw.domain.verdict import Outcome
from metaclaw.errors import BudgetError
from metaclaw.learn.assessment import concerns, conversation_of, in_words, matching, needs_situation, readable_check
from metaclaw.learn.outcomes import pause_s
from metaclaw.learn.steps import RecordedSteps
from metaclaw.learn.store_rpc import AnyLibrary
from metaclaw.learn.supervision import AttemptLog, LoopWakeup, RetryGuard
from metaclaw.outcome import Judge
from metaclaw.skills import ALWAYS, PROPOSED, LibraryView, Teams, check_state_of, examine, rule_text, rule_when
from metaclaw.store import LedgerReader, SqlCompliance, SqlGenerations, TurnRow
from metaclaw.upstream import without_waiting

log = logging.getLogger(__name__)

_AT_ONCE: Final = 64
_VIEWS_KEPT: Final = 4
_JUDGED_EVERY: Final = 10
_MOST_REASON_CHARS: Final = 300
_OUTCOMES: Final = {Outcome.PASS: RuleResult.FOLLOWED, Outcome.FAIL: RuleResult.BROKEN, Outcome.UNKNOWN: RuleResult.UNKNOWN}


def _nothing_absorbed(version: int) -> Collection[SkillName]:
    return ()


async def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class _Question:
    """A rule without a check that a judge is to be asked about."""

    measured: MeasuredTurn
    rule: Skill
    step: Step


@dataclass(eq=False, kw_only=True)
class ComplianceLoop:
    """Reads the ledger behind its own cursor and counts which rules were followed. `may_ask` says whether the budget has room for a
    question to the judge; `absorbed` gives what a policy version knows without being told, and blocks."""

    reader: LedgerReader
    compliance: SqlCompliance
    recorded: RecordedSteps
    library: AnyLibrary
    generations: SqlGenerations
    teams: Teams
    redact: Callable[[str], str]
    day_of: Callable[[datetime], date]
    judge_for: Callable[[str], Judge | None] = lambda model: None
    may_ask: Callable[[], Awaitable[bool]] = _always
    absorbed: Callable[[int], Collection[SkillName]] = _nothing_absorbed
    book: AttemptLog | None = None

    def __post_init__(self) -> None:
        self.wakeup = LoopWakeup()
        self._guard, self._judging = RetryGuard("compliance", self.book), RetryGuard("judging rules", self.book)
        self._limiter = anyio.CapacityLimiter(1)
        self._views: OrderedDict[int, LibraryView] = OrderedDict()
        self._known: tuple[LibraryView | None, bool] = (None, False)
        self._unasked: Counter[str] = Counter()

    def prepare(self, sensed: int) -> None:
        """Begin behind the turns that were sensed before rules were counted. Blocks; before any loop runs."""
        if self.compliance.cursor() is None:
            self.compliance.record((), sensed)

    def forget(self) -> None:
        """Let go of earlier generations, some of whose rules are to be forgotten."""
        self._views.clear()
        self._known = (None, False)

    async def run(self) -> None:
        """Until cancelled."""
        in_vain = 0
        async with anyio.create_task_group() as judging:
            while True:
                rows = await self.look(judging)
                in_vain = 0 if rows else in_vain + 1
                if rows < _AT_ONCE:
                    await self.wakeup.wait(pause_s(in_vain))

    async def look(self, judging: TaskGroup) -> int:
        """Count what is new; how many turns there were."""
        reached = await run_sync(self.compliance.cursor) or 0
        rows = await run_sync(self.reader.turns_after, reached, _AT_ONCE)
        if not rows:
            return 0
        await run_sync(self.library.follow)
        measured: list[MeasuredTurn] = []
        questions: list[_Question] = []
        for row in rows:
            if row.kind is TurnKind.MAIN and row.end is TurnEnd.COMPLETED:
                async with self._guard.attempt(row.id) as may:
                    one = await run_sync(self._measure, row, questions) if may else None
                if one is not None:
                    measured.append(one)
        await run_sync(self.compliance.record, measured, rows[-1].seq)
        for question in questions:
            judging.start_soon(self._ask, question)
        return len(rows)

    def _measure(self, row: TurnRow, questions: list[_Question]) -> MeasuredTurn | None:
        """The outcome of a turn for each rule that applied; None where none did. Blocks."""
        view = self._view(row.stamp.generation)
        if not self._has_rules(view):
            return None
        recorded = self.reader.turn(row.id)
        step = None if recorded is None else self.recorded.build(recorded, None)
        if recorded is None or step is None:
            return None
        turn, day = recorded.turn, self.day_of(row.times.received_at)
        measured = MeasuredTurn(row.seq, row.id, turn.agent, turn.model, day.isoformat(), ())
        outcomes: list[RuleOutcome] = []
        for rule in self._applying(view, turn, step, day):
            outcome = self._outcome(rule, turn, step)
            if outcome is None:
                continue
            outcomes.append(outcome)
            if outcome.result is RuleResult.UNKNOWN and readable_check(rule) is None and self._is_sampled(outcome.hash):
                questions.append(_Question(replace(measured, outcomes=(outcome,)), rule, step))
        return replace(measured, outcomes=tuple(outcomes)) if outcomes else None

    def _applying(self, view: LibraryView, turn: Turn, step: Step, day: date) -> list[Skill]:
        """The rules that applied to a turn, and the skills with a check that stood in its prompt."""
        placed = frozenset(turn.stamp.skills)
        told = placed.union(self.absorbed(turn.stamp.policy_version))
        rules = [rule for rule in view.in_scope(turn.scope, self.teams, day).rules if rule.kind is SkillKind.RULE]
        found = [rule for rule in rules if rule_when(rule) == ALWAYS or rule.name in told]
        unsure = [rule for rule in found if needs_situation(rule) and (readable_check(rule) is not None or rule.name not in placed)]
        if unsure:
            near = matching(view, step.task, turn.scope, self.teams, day)
            found = [rule for rule in found if rule not in unsure or rule.name in near]
        skills = (view.get(name) for name in turn.stamp.skills)
        return [*found, *(one for one in skills if one is not None and one.is_skill and readable_check(one) is not None)]

    def _outcome(self, rule: Skill, turn: Turn, step: Step) -> RuleOutcome | None:
        """The outcome of a turn for one rule; None where the rule does not concern it."""
        check = readable_check(rule)
        outcome = RuleOutcome(rule.name, measured_hash(rule), RuleResult.UNKNOWN, _reminded(turn, rule.name))
        outcome = replace(outcome, is_told=rule.name in turn.stamp.skills and check_state_of(rule) != PROPOSED)
        held = _held(turn, rule.name)
        if held is not None:
            return replace(outcome, result=RuleResult.HELD, reason=self.redact(held.reason)[:_MOST_REASON_CHARS])
        if _is_our_text(turn, step):
            return None
        if check is None:
            return outcome
        if not concerns(check, step.answer):
            return None
        found = examine(check, step.answer, conversation=conversation_of(step))
        result = _OUTCOMES[found.outcome]
        reason = self.redact(found.reason)[:_MOST_REASON_CHARS] if result is RuleResult.BROKEN else ""
        return replace(outcome, result=result, reason=reason)

    def _view(self, generation: int) -> LibraryView:
        """The rules and skills as they were in a generation. Blocks."""
        current = self.library.view
        if current.generation == generation:
            return current
        known = self._views.get(generation)
        if known is None:
            found = self.generations.at(generation)
            if found is None:
                return current
            known = self._views[generation] = LibraryView.of(generation, found.skills)
            if len(self._views) > _VIEWS_KEPT:
                self._views.popitem(last=False)
        return known

    def _has_rules(self, view: LibraryView) -> bool:
        if self._known[0] is not view:
            self._known = view, any(_is_measured(skill) for skill in view.index.skills())
        return self._known[1]

    def _is_sampled(self, hash_: str) -> bool:
        self._unasked[hash_] += 1
        return self._unasked[hash_] % _JUDGED_EVERY == 0

    async def _ask(self, question: _Question) -> None:
        """Have a judge say whether a rule was followed; what it cannot tell, or may not be asked, stays unknown."""
        judge = self.judge_for(question.step.model)
        if judge is None or not await self.may_ask():
            return
        measured, rule, step = question.measured, question.rule, question.step
        async with self._limiter, self._judging.attempt(f"{measured.turn} {rule.name}") as may:
            if not may:
                return
            task = await run_sync(self.redact, step.task)
            shown = await run_sync(self.redact, in_words(step.answer, ()))
            try:
                with without_waiting():
                    votes = await judge.judge_rule(rule_text(rule), rule_when(rule), task, shown)
            except BudgetError:
                return
        failed = votes.share_failed
        if failed is None or failed == 0.5:
            return
        result, reason = (RuleResult.BROKEN, " ".join(votes.reasons)) if failed > 0.5 else (RuleResult.FOLLOWED, "")
        (outcome,) = measured.outcomes
        told = replace(outcome, result=result, reason=reason[:_MOST_REASON_CHARS])
        await run_sync(self.compliance.settle, replace(measured, outcomes=(told,)))


def _is_measured(skill: Skill) -> bool:
    return skill.kind is SkillKind.RULE or (skill.is_skill and "check" in skill.extra)


def _held(turn: Turn, rule: SkillName) -> EnforcedRule | None:
    """The calls that a rule held back in this turn; None if the client got them with a warning."""
    rules = () if turn.enforcement is None else turn.enforcement.rules
    return next((one for one in rules if one.rule == rule and one.end is not HoldEnd.WARNED), None)


def _is_our_text(turn: Turn, step: Step) -> bool:
    """Whether the answer is a text that stands in the place of held calls: no model wrote it."""
    return turn.enforcement is not None and any(isinstance(part, Text) and STOPPED_BY_US in part.text for part in step.answer)


def _reminded(turn: Turn, rule: SkillName) -> Reminded:
    for placement in turn.placements:
        if rule in placement.skills and not placement.is_lasting:
            return Reminded.PLACED if placement.anchor == REMINDER else Reminded.WITHHELD
    return Reminded.NOT_DUE

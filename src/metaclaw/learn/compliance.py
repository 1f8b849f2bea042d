"""Checks of rules: try proposed checks before they are taken, and count which rules were followed.

A check is taken if it fails on the violating example and on the answer that the person corrected,
passes on the complying example, and fails none of the person's last turns that are known to be
fine: turns that the person or a check passed, and turns of which a judge says that they follow the
rule. A turn without a complaint is no evidence, because the person may have tolerated it. The first
later task with the rule in its prompt confirms the check if both agree: the check fails and the
person corrects the answer, or the check passes and the person does not.

A rule applies to a turn if it was in force for the speaker, and is for every task or was in the
prompt. A check on tool calls applies to turns with such a call, a check on the answer to final
answers, which call no tool. For rules without a check, a judge is asked about every tenth turn,
within the learning budget; in the other turns the result is unknown.

The cursor of the loop moves in the transaction that counts, so no turn is counted twice after a
crash."""

import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from datetime import date, datetime
from itertools import islice
from typing import Final

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from metaclaw.domain.chat import Text
from metaclaw.domain.check import Check, ProgramCheck
from metaclaw.domain.compliance import (
    MeasuredTurn,
    Reminded,
    RuleOutcome,
    RuleResult,
    measured_hash,
)
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import ALWAYS, Skill, SkillKind
from metaclaw.domain.turn import (
    REMINDER,
    STOPPED_BY_US,
    EnforcedRule,
    HoldEnd,
    Step,
    Turn,
    TurnEnd,
    TurnKind,
)
from metaclaw.domain.verdict import Outcome, Source, Verdict, Votes
from metaclaw.errors import BudgetError, SkillError
from metaclaw.learn.assessment import (
    concerns,
    conversation_of,
    in_words,
    matching,
    needs_situation,
    readable_check,
)
from metaclaw.learn.outcomes import pause_s
from metaclaw.learn.stated_rules import RuleItem, SpokenMessage
from metaclaw.learn.steps import RecordedSteps
from metaclaw.learn.store_rpc import AnyLibrary
from metaclaw.learn.supervision import AttemptLog, LoopWakeup, RetryGuard
from metaclaw.outcome import Judge
from metaclaw.skills import (
    LibraryView,
    Teams,
    check_of,
    examine,
    parse_check,
    run_check,
    sample_answer,
)
from metaclaw.store import LedgerReader, SqlCompliance, SqlGenerations, TurnRow
from metaclaw.text import shorten
from metaclaw.upstream import without_waiting

log = logging.getLogger(__name__)

FINE_TURNS: Final = 200
"""The number of the person's last turns on which a check is tried."""
_MOST_TURNS_OF_TASK: Final = 32
_MOST_CHECK_CHARS: Final = 80
_MOST_DOUBTS: Final = 3
_JUDGE_LIMIT_S: Final = 10.0
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
class _Question:
    """A question to a judge: whether a turn followed a rule that has no check."""

    measured: MeasuredTurn
    rule: Skill
    step: Step


@dataclass(eq=False, kw_only=True)
class ComplianceLoop:
    """Reads new turns from the ledger and counts which rules they followed. `may_ask` says whether
    the budget allows a question to the judge; `absorbed` returns the rules and skills that a policy
    version has absorbed, and blocks."""

    reader: LedgerReader
    compliance: SqlCompliance
    recorded: RecordedSteps
    library: AnyLibrary
    generations: SqlGenerations
    teams: Teams
    redact: Callable[[str], str]
    day_of: Callable[[datetime], date]
    judge_for: Callable[[str], Judge | None]
    may_ask: Callable[[], Awaitable[bool]]
    absorbed: Callable[[int], Collection[SkillName]]
    attempt_log: AttemptLog | None = None

    def __post_init__(self) -> None:
        self.wakeup = LoopWakeup()
        self._guard, self._judging = (
            RetryGuard("compliance", self.attempt_log),
            RetryGuard("judging rules", self.attempt_log),
        )
        self._limiter = anyio.CapacityLimiter(1)
        self._views: OrderedDict[int, LibraryView] = OrderedDict()
        self._known: tuple[LibraryView | None, bool] = (None, False)
        self._unasked: Counter[str] = Counter()

    def prepare(self, sensed: int) -> None:
        """At the first start, skip the turns up to `sensed`. Blocks; call it before any loop
        runs.
        """
        if self.compliance.cursor() is None:
            self.compliance.record((), sensed)

    def forget(self) -> None:
        """Drop the cached generations, because some of their rules are to be forgotten."""
        self._views.clear()
        self._known = (None, False)

    async def run(self) -> None:
        """Run until cancelled."""
        empty_polls = 0
        async with anyio.create_task_group() as judging:
            while True:
                rows = await self.poll(judging)
                empty_polls = 0 if rows else empty_polls + 1
                if rows < _ROWS_AT_ONCE:
                    await self.wakeup.wait(pause_s(empty_polls))

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
            if (
                outcome.result is RuleResult.UNKNOWN
                and readable_check(rule) is None
                and self._is_sampled(outcome.hash)
            ):
                questions.append(_Question(replace(measured, outcomes=(outcome,)), rule, step))
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
            rule.name, measured_hash(rule), RuleResult.UNKNOWN, _reminded(turn, rule.name)
        )
        outcome = replace(
            outcome, is_shown=rule.name in turn.stamp.skills and not rule.is_check_proposed
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
        known = self._views.get(generation)
        if known is None:
            recorded = self.generations.at(generation)
            if recorded is None:
                return current
            known = self._views[generation] = LibraryView.of(generation, recorded.skills)
            if len(self._views) > _CACHED_VIEWS:
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
        """Ask a judge whether a rule was followed. Without a clear answer the result stays
        unknown.
        """
        measured, rule = question.measured, question.rule
        async with self._limiter, self._judging.attempt(f"{measured.turn} {rule.name}") as may:
            votes = await _votes(self, rule, question.step) if may else None
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


@dataclass(frozen=True, slots=True)
class CheckTrialResult:
    """The result of trying a proposed check: taken (`check`), left to a person (`program`), or
    refused; `note` says why. `doubts` are earlier turns that it fails and that may follow the
    rule."""

    check: str | None = None
    program: str | None = None
    note: str | None = None
    doubts: tuple[TurnId, ...] = ()


@dataclass(eq=False)
class CheckTrial:
    """Tries checks on examples and on recorded turns. All methods except `settle` block."""

    reader: LedgerReader
    recorded: RecordedSteps
    redact: Callable[[str], str]
    judge_for: Callable[[str], Judge | None]
    may_ask: Callable[[], Awaitable[bool]]

    def propose(
        self, spoken: SpokenMessage, item: RuleItem, *, is_corrected: bool
    ) -> CheckTrialResult:
        """Try the check of an item, if it has one. `is_corrected` says that the message corrects
        the answer before it, and that this is its only item."""
        if item.check is None:
            return CheckTrialResult()
        if self.redact(item.check) != item.check:
            return CheckTrialResult(note="a check was proposed and not taken: it holds a secret")
        try:
            check = parse_check(item.check, approved=False)
        except SkillError as error:
            return CheckTrialResult(note=f"a check was proposed and not taken: {error}")
        if isinstance(check, ProgramCheck):
            return CheckTrialResult(
                program=item.check,
                note="its check is a program that a model wrote: metaclaw candidates list",
            )
        refusal = self._refusal(check, spoken, item, is_corrected=is_corrected)
        if refusal is None:
            fired = (
                row.id
                for row in self._earlier(spoken)
                if self._outcome(check, row.id) is Outcome.FAIL
            )
            return CheckTrialResult(item.check, doubts=tuple(islice(fired, _MOST_DOUBTS)))
        return _refused(item.check, refusal, spoken.turn)

    async def settle(self, rule: Skill, proposed: CheckTrialResult) -> CheckTrialResult:
        """Decide about a check that fails earlier turns: refuse it if a judge says within 10
        seconds that one of them follows the rule."""
        if proposed.check is None or not proposed.doubts:
            return proposed
        fine: list[TurnId] = []

        async def ask(turn: TurnId) -> None:
            if await self._follows(rule, turn):
                fine.append(turn)

        with anyio.move_on_after(_JUDGE_LIMIT_S):
            async with anyio.create_task_group() as asking:
                for turn in proposed.doubts:
                    asking.start_soon(ask, turn)
        return (
            _refused(proposed.check, _fails(min(fine)), min(fine))
            if fine
            else replace(proposed, doubts=())
        )

    async def _follows(self, rule: Skill, turn: TurnId) -> bool:
        """Whether a judge says that a recorded answer follows the rule."""
        step = await run_sync(self.recorded.alone, turn)
        votes = None if step is None else await _votes(self, rule, step)
        return votes is not None and votes.passed > votes.failed

    def is_confirmed(self, rule: Skill, spoken: SpokenMessage, *, is_corrected: bool) -> bool:
        """Whether the task before this message, in which the rule was placed, confirms its
        check.
        """
        try:
            check = check_of(rule)
        except SkillError:
            return False
        return check is not None and self._found(check, spoken) is (
            Outcome.FAIL if is_corrected else Outcome.PASS
        )

    def _refusal(
        self, check: Check, spoken: SpokenMessage, item: RuleItem, *, is_corrected: bool
    ) -> str | None:
        """Why a check is not taken; None if it is."""
        if not item.violates or not item.complies:
            return "there is no example that breaks the rule and one that follows it"
        if (found := run_check(check, sample_answer(check, item.violates))) is not Outcome.FAIL:
            return f"it does not notice the example that breaks the rule ({_said(found)})"
        if (found := run_check(check, sample_answer(check, item.complies))) is not Outcome.PASS:
            return f"it does not pass the example that follows the rule ({_said(found)})"
        if (
            is_corrected
            and spoken.answered is not None
            and (found := self._found(check, spoken)) is not Outcome.FAIL
        ):
            return f"it does not notice the answer that you corrected ({_said(found)})"
        passed = (row.id for row in self._earlier(spoken, is_passed=True))
        fired = next((turn for turn in passed if self._outcome(check, turn) is Outcome.FAIL), None)
        return None if fired is None else _fails(fired)

    def _found(self, check: Check, spoken: SpokenMessage) -> Outcome:
        """The outcome of a check on the task before a message: fail if any of its turns fails, else
        pass if any passes.
        """
        outcomes = {self._outcome(check, row.id) for row in self._task(spoken)}
        return next(
            (outcome for outcome in (Outcome.FAIL, Outcome.PASS) if outcome in outcomes),
            Outcome.UNKNOWN,
        )

    def _task(self, spoken: SpokenMessage) -> list[TurnRow]:
        """The turns of the task that a message answers."""
        rows = self.reader.main_turns_before(spoken.session, spoken.seq, _MOST_TURNS_OF_TASK)
        segment = next((row.segment for row in rows if row.id == spoken.answered), None)
        return [row for row in rows if row.segment == segment]

    def _earlier(self, spoken: SpokenMessage, *, is_passed: bool = False) -> list[TurnRow]:
        """The person's last turns in tasks that did not fail; with `is_passed` only those that the
        person or a check passed. The task before the message is left out, because the rule may be
        about it."""
        rows = self.reader.main_turns_of(spoken.scope.user, spoken.seq, FINE_TURNS)
        standings = self.reader.standings_of([row.id for row in rows]) if rows else {}
        verdicts = {
            row.id: verdict
            for row in rows
            if row.id in standings and (verdict := standings[row.id].verdict) is not None
        }
        failed = {
            (row.session, row.segment)
            for row in rows
            if row.id in verdicts and verdicts[row.id].outcome is Outcome.FAIL
        }
        left_out = failed | {(row.session, row.segment) for row in self._task(spoken)}
        kept = [row for row in rows if (row.session, row.segment) not in left_out]
        return (
            [row for row in kept if row.id in verdicts and _is_passed(verdicts[row.id])]
            if is_passed
            else kept
        )

    def _outcome(self, check: Check, turn: TurnId) -> Outcome:
        step = self.recorded.alone(turn)
        return (
            Outcome.UNKNOWN
            if step is None
            else run_check(check, step.answer, conversation_of(step))
        )


async def _votes(asking: ComplianceLoop | CheckTrial, rule: Skill, step: Step) -> Votes | None:
    """A judge's votes on whether an answer follows a rule; None if there is no judge, or if the
    budget does not allow it now.
    """
    judge = asking.judge_for(step.model)
    if judge is None or not await asking.may_ask():
        return None
    task, answer = await run_sync(
        lambda: (asking.redact(step.task), asking.redact(in_words(step.answer, ())))
    )
    try:
        with without_waiting():
            return await judge.judge_rule(rule.body, rule.when, task, answer)
    except BudgetError:
        return None


def _is_passed(verdict: Verdict) -> bool:
    return verdict.outcome is Outcome.PASS and verdict.source in (Source.USER, Source.CHECK)


def _fails(turn: TurnId) -> str:
    return f"it fails turns that were fine, such as {turn}"


def _refused(check: str, reason: str, turn: TurnId) -> CheckTrialResult:
    log.info("check_not_taken turn=%s reason=%s", turn, reason)
    return CheckTrialResult(
        note=f"a check was proposed and not taken: {reason} ({shorten(check, _MOST_CHECK_CHARS)})"
    )


def _said(outcome: Outcome) -> str:
    return {
        Outcome.PASS: "it passes it",
        Outcome.FAIL: "it fails it",
        Outcome.UNKNOWN: "it finds nothing to look at",
    }[outcome]

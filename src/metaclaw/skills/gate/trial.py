"""Live trial: a skill is placed on a random share of the tasks it matches, until keeping or withdrawing it is clearly right.

Replays are the prior: together they count as half a task with the skill and half a task without it. Every matching task with a
known outcome adds to the belief. The trial ends

- promoted, when the expected loss of keeping it is at most `KEEP_LOSS`,
- withdrawn, when the expected loss of doing without it is at most `WITHDRAW_LOSS`,
- with the better of the two after `MOST_DECIDED` tasks with a known outcome, or `MOST_TASKS` in all.

So every trial ends, also that of a skill that makes no difference. Withdrawing is quicker than promoting, because a bad skill that
is promoted stays. The error rates are simulated in `benchmarks/gate.py`.

A live skill is withheld now and then, and the same belief says when it has turned out to do harm (`is_harmful`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce

from metaclaw.domain.candidate import Certificate
from metaclaw.domain.skill import SkillState
from metaclaw.domain.turn import Draw
from metaclaw.domain.verdict import Belief, Outcome, PassRate
from metaclaw.skills.gate.proof import replay_belief

KEEP_LOSS = 0.004
WITHDRAW_LOSS = 0.04
MOST_DECIDED = 40
MOST_TASKS = 100
_REPLAYS_WEIGH = 0.5
_HARM_LOSS = 0.002
_HARM_PLACED, _HARM_WITHHELD = 20, 4
_INTERVAL = 1.645  # 90 %


@dataclass(frozen=True, slots=True)
class LiveTask:
    """A matching task: whether the skill was placed, with what probability, and the outcome."""

    placed: bool
    propensity: float
    outcome: Outcome

    @staticmethod
    def of(draw: Draw, outcome: Outcome) -> "LiveTask":
        """From a logged draw and a verdict."""
        return LiveTask(draw.placed, draw.propensity, outcome)


class TrialDecision(StrEnum):
    """The decision on a skill on trial."""

    PROMOTE = "promote"
    WITHDRAW = "withdraw"
    CONTINUE = "continue"


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """Matching tasks by whether the skill was placed and by outcome."""

    placed_passed: int = 0
    placed_failed: int = 0
    withheld_passed: int = 0
    withheld_failed: int = 0
    unknown: int = 0

    @staticmethod
    def of(tasks: Iterable[LiveTask]) -> "TaskCounts":
        """Count tasks."""
        return reduce(TaskCounts.plus, tasks, TaskCounts())

    def plus(self, task: LiveTask) -> "TaskCounts":
        """With one more. Tasks where the skill was placed for certain do not count."""
        if task.propensity == 1.0:
            return self
        if task.outcome is Outcome.UNKNOWN:
            return replace(self, unknown=self.unknown + 1)
        match task.placed, task.outcome is Outcome.PASS:
            case True, True:
                return replace(self, placed_passed=self.placed_passed + 1)
            case True, False:
                return replace(self, placed_failed=self.placed_failed + 1)
            case False, True:
                return replace(self, withheld_passed=self.withheld_passed + 1)
            case _:
                return replace(self, withheld_failed=self.withheld_failed + 1)

    @property
    def placed(self) -> int:
        """Decided tasks with the skill."""
        return self.placed_passed + self.placed_failed

    @property
    def withheld(self) -> int:
        """Decided tasks without it."""
        return self.withheld_passed + self.withheld_failed

    @property
    def decided(self) -> int:
        """Tasks with a known outcome."""
        return self.placed + self.withheld

    def belief(self, prior: Belief) -> Belief:
        """The belief after these tasks."""
        with_skill, without = prior.with_skill, prior.without
        return Belief(
            PassRate(with_skill.passed + self.placed_passed, with_skill.failed + self.placed_failed),
            PassRate(without.passed + self.withheld_passed, without.failed + self.withheld_failed),
        )

    def in_words(self) -> str:
        """For people."""
        with_skill = f"with it {self.placed_passed} of {self.placed} tasks passed"
        without = f"without it {self.withheld_passed} of {self.withheld}"
        return f"{with_skill}, {without}" if self.withheld else with_skill


@dataclass(frozen=True, slots=True)
class TrialReport:
    """The decision, the reason in words, and the numbers."""

    decision: TrialDecision
    reason: str
    belief: Belief
    counts: TaskCounts

    def certificate(self, model: str, notes: Iterable[str] = (), earlier: Certificate | None = None) -> Certificate:
        """The trial as evidence: a task that passed with the skill or failed without it speaks for it."""
        counts = self.counts
        return Certificate(
            stage=SkillState.CANARY,
            probes=counts.decided,
            wins=counts.placed_passed + counts.withheld_failed,
            losses=counts.placed_failed + counts.withheld_passed,
            ties=0,
            undecided=counts.unknown,
            regressions=0,
            tokens=0 if earlier is None else earlier.tokens,
            model=model,
            notes=(counts.in_words(), *notes),
            expected_loss=self.belief.loss_if_kept,
            replays=() if earlier is None else earlier.replays,
        )


def trial_prior(certificate: Certificate | None) -> Belief:
    """The belief from replays before the first live task: half a task with the skill and half a task without it."""
    if certificate is None or not certificate.replays:
        return Belief()
    found = replay_belief(certificate.replays)
    return Belief(_scaled(found.with_skill), _scaled(found.without))


def judge_trial(tasks: Sequence[LiveTask], prior: Belief | None = None) -> TrialReport:
    """The report on the tasks so far, oldest first. The first decision counts, however many tasks came later."""
    prior, counts = prior or Belief(), TaskCounts()
    for number, task in enumerate(tasks, 1):
        counts = counts.plus(task)
        if task.outcome is not Outcome.UNKNOWN or number >= MOST_TASKS:
            report = _report(counts, prior, is_over=number >= MOST_TASKS)
            if report.decision is not TrialDecision.CONTINUE:
                return report
    return _report(counts, prior, is_over=False)


def _report(counts: TaskCounts, prior: Belief, *, is_over: bool) -> TrialReport:
    belief, words = counts.belief(prior), counts.in_words()
    is_worse = belief.difference <= 0
    if belief.loss_if_kept <= KEEP_LOSS and not is_worse:
        return TrialReport(TrialDecision.PROMOTE, f"it helps: {words}", belief, counts)
    if belief.loss_if_withdrawn <= WITHDRAW_LOSS and is_worse:
        return TrialReport(TrialDecision.WITHDRAW, f"it does harm: {words}", belief, counts)
    if not is_over and counts.decided < MOST_DECIDED:
        return TrialReport(TrialDecision.CONTINUE, f"{words} of at most {MOST_DECIDED}", belief, counts)
    if is_worse:
        return TrialReport(TrialDecision.WITHDRAW, f"it did not help: {words}", belief, counts)
    return TrialReport(TrialDecision.PROMOTE, f"it seems to help: {words}", belief, counts)


def is_harmful(counts: TaskCounts, prior: Belief) -> bool:
    """Whether a live skill, seen often enough with and without, does harm."""
    belief = counts.belief(prior)
    is_seen = counts.placed >= _HARM_PLACED and counts.withheld >= _HARM_WITHHELD
    return is_seen and belief.difference < 0 and belief.loss_if_withdrawn <= _HARM_LOSS


@dataclass(frozen=True, slots=True)
class Interval:
    """Where the effect lies with a probability of 90 %."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Uplift:
    """The measured effect of a skill on matching tasks. The estimate is None where one side was never seen."""

    estimate: float | None
    interval: Interval | None
    placed: int
    withheld: int
    unknown: int


def measure_uplift(tasks: Iterable[LiveTask]) -> Uplift:
    """The effect from tasks alone, without a prior."""
    counts = TaskCounts.of(tasks)
    belief = counts.belief(Belief())
    if not counts.placed or not counts.withheld:
        return Uplift(None, None, counts.placed, counts.withheld, counts.unknown)
    estimate = counts.placed_passed / counts.placed - counts.withheld_passed / counts.withheld
    half = _INTERVAL * belief.deviation
    interval = Interval(max(-1.0, belief.difference - half), min(1.0, belief.difference + half))
    return Uplift(estimate, interval, counts.placed, counts.withheld, counts.unknown)


def _scaled(rate: PassRate) -> PassRate:
    total = rate.passed + rate.failed
    return PassRate(rate.passed / total * _REPLAYS_WEIGH, rate.failed / total * _REPLAYS_WEIGH) if total else PassRate()

"""Evidence for a candidate: replays of recorded turns before it is placed in a prompt, then a live
trial.

**Replays.** The outcome of a recorded turn is known: it is the failure that taught the skill, or a
similar turn that passed. So only the turn *with* the skill is replayed, and the record counts as
the turn without it. After each replay the expected losses decide:

- the loss of keeping it is small enough, and it was tried on a failure and, if there is one, on a
  passing turn: pass
- the loss of rejecting it is small enough: reject
- no further replay fits into the budget: the smaller loss decides
- no model can be asked at the moment: wait, and continue later

Earlier results are passed in (`earlier`), so that no replay is paid for twice. If a live trial
follows, one fixed failure is enough to start it; if none follows (gate `shadow`), three are needed.
A merge of skills must keep what its parents can do: each of their turns is replayed, and none may
fail twice.

**Live trial.** A skill is placed in a random share of the tasks it matches. Its replays together
count as half a task with the skill and half a task without it; every matching task with a known
outcome adds to the belief. The trial ends

- with a promotion, when the expected loss of keeping it is at most `KEEP_LOSS`,
- with a withdrawal, when the expected loss of withdrawing it is at most `WITHDRAW_LOSS`,
- with the better of the two after `MOST_DECIDED` tasks with a known outcome, or `MOST_TASKS` in
  all.

`WITHDRAW_LOSS` is larger than `KEEP_LOSS`, because a bad skill that is promoted stays.
`benchmarks/gate.py` simulates the error rates. A live skill is withheld now and then, and the same
belief shows whether it does harm (`is_harmful`)."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import reduce

from metaclaw.domain.candidate import Certificate, Change, Probe, ProbeKind, Proposal, ReplayResult
from metaclaw.domain.ids import TurnId
from metaclaw.domain.skill import SkillState
from metaclaw.domain.turn import Draw
from metaclaw.domain.verdict import Belief, Outcome, PassRate
from metaclaw.ports import Replayer

START_LOSS = 0.035
"""Accepted expected loss if a live trial follows: reached by one fixed failure and one turn that
still passes.
"""
LIVE_LOSS = 0.01
"""Accepted expected loss if no live trial follows: reached by three fixed failures."""
REJECT_LOSS = 0.065
"""Accepted expected loss of a rejection: reached by a failure that three replays did not fix."""
PLACING_COST = 0.02
"""The least benefit of a skill, in passes per task, because it takes room in every prompt it
matches.
"""

_SEEDS = 3
_TURNS, _TURNS_A_LESSON = 4, 8
_WRITING_TOKENS, _LEAST_TOKENS = 3_500, 6_000


@dataclass(frozen=True, slots=True)
class ReplayBudget:
    """Tokens that replays of one candidate and their judging may take; replays of failures may take
    `least` if that is more.
    """

    tokens: int
    least: int = 0

    def for_turn(self, kind: ProbeKind) -> int:
        """Tokens that replays of such a turn may take."""
        return max(self.tokens, self.least) if kind is ProbeKind.FAILING else self.tokens

    @staticmethod
    def of_turn(tokens: int) -> "ReplayBudget":
        """The budget for a lesson from one turn: reading the correction, writing the skill and
        proving it together take at most eight times the turn's tokens."""
        return ReplayBudget(
            min(_TURNS * tokens, _TURNS_A_LESSON * tokens - _WRITING_TOKENS), _LEAST_TOKENS
        )


class Decision(StrEnum):
    """The result of the replays."""

    PASS = "pass"
    REJECT = "reject"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class SkillProof:
    """The decision, the reason in words, and the evidence."""

    decision: Decision
    reason: str
    certificate: Certificate


Paid = Callable[[Certificate], Awaitable[bool]]
"""Called after each replay to save it; returns False if the candidate is no longer wanted."""


async def prove(
    proposal: Proposal,
    probes: Sequence[Probe],
    replayer: Replayer,
    budget: ReplayBudget | None = None,
    *,
    model: str = "",
    is_tried_live: bool = True,
    earlier: Certificate | None = None,
    paid: Paid | None = None,
) -> SkillProof:
    """Replay until the decision is clear or the budget is used. Earlier replays count, also against
    the budget.
    """
    run = _Run(
        proposal,
        probes,
        START_LOSS if is_tried_live else LIVE_LOSS,
        model,
        [*(earlier.replays if earlier else ())],
    )
    spent = sum(result.tokens for result in run.results)
    while not run.is_decided and (probe := run.next_probe()) is not None:
        cost = await replayer.estimate(probe, proposal.skill)
        budget = budget or ReplayBudget.of_turn(cost.turn)
        left = budget.for_turn(probe.kind) - spent
        if cost.total > left:
            run.too_dear.add(probe.turn)
            continue
        result = await replayer.replay(
            probe, proposal.skill, proposal.replaces, run.tries(probe), left
        )
        spent += result.tokens
        if result.is_unavailable:
            return SkillProof(
                Decision.WAIT, f"waits for the replay: {result.note}", run.certificate()
            )
        run.results.append(result)
        if paid is not None and not await paid(run.certificate()):
            return SkillProof(Decision.REJECT, "it is no longer wanted", run.certificate())
    return run.proof()


def replay_belief(results: Iterable[ReplayResult], failures: int = 0) -> Belief:
    """The belief after replays. The record of each replayed turn counts once as a task without the
    skill; if nothing was replayed, the recorded `failures` count as one."""
    decided = [result for result in results if result.outcome is not Outcome.UNKNOWN]
    belief = Belief() if decided else Belief(without=PassRate(failed=min(failures, 1)))
    for kind in {result.probe.turn: result.probe.kind for result in decided}.values():
        belief = belief.plus(is_placed=False, passed=kind is ProbeKind.PASSING)
    for result in decided:
        belief = belief.plus(is_placed=True, passed=result.outcome is Outcome.PASS)
    return belief


def replays_in_words(results: Iterable[ReplayResult]) -> str:
    """For people: "fixed the failure in 3 of 3 replays and broke nothing"."""
    replays = list(results)
    decided = [result for result in replays if result.outcome is not Outcome.UNKNOWN]
    failing = [result.outcome for result in decided if result.probe.kind is ProbeKind.FAILING]
    passing = [result.outcome for result in decided if result.probe.kind is ProbeKind.PASSING]
    broken = passing.count(Outcome.FAIL)
    if not decided:
        return "could not be replayed" if replays else "was not replayed"
    fixed = (
        f"fixed the failure in {failing.count(Outcome.PASS)} of {len(failing)} replays"
        if failing
        else ""
    )
    if not passing:
        return f"{fixed}; no similar turn that passed was there to try" if failing else ""
    kept = (
        f"broke {broken} of {len(passing)} turns that passed before" if broken else "broke nothing"
    )
    return " and ".join(filter(None, (fixed, kept)))


@dataclass(slots=True)
class _Run:
    """The replays of one candidate so far."""

    proposal: Proposal
    probes: Sequence[Probe]
    accepted: float
    model: str
    results: list[ReplayResult] = field(default_factory=list)
    too_dear: set[TurnId] = field(default_factory=set)

    @property
    def is_decided(self) -> bool:
        if self._is_merge:
            return any(self._failed(probe) for probe in self.probes)
        belief = self._belief
        is_tried = all(
            self._decided(probe.kind) for probe in self.probes if not self._is_hopeless(probe)
        )
        if self._decided(ProbeKind.FAILING) and is_tried and belief.loss_if_kept <= self.accepted:
            return True
        return bool(self.results) and belief.loss_if_withdrawn <= REJECT_LOSS

    def tries(self, probe: Probe) -> int:
        return sum(result.probe.turn == probe.turn for result in self.results)

    def next_probe(self) -> Probe | None:
        """The next turn to replay: failures until one is fixed, then passing and failing turns
        alternately; every turn once before any is repeated."""
        if self._is_merge:
            return next((probe for probe in self._open(2) if not self._passed(probe)), None)
        counts = {
            kind: sum(result.probe.kind is kind for result in self.results) for kind in ProbeKind
        }
        is_fixed = any(
            result.probe.kind is ProbeKind.FAILING and result.outcome is Outcome.PASS
            for result in self.results
        )
        is_passing_next = is_fixed and counts[ProbeKind.PASSING] < counts[ProbeKind.FAILING]
        wanted = ProbeKind.PASSING if is_passing_next else ProbeKind.FAILING
        return min(
            self._open(_SEEDS),
            key=lambda probe: (probe.kind is not wanted, self.tries(probe)),
            default=None,
        )

    def _open(self, tries: int) -> list[Probe]:
        """The turns that may be replayed again, with less than `tries` replays."""
        return [
            probe
            for probe in self.probes
            if self.tries(probe) < tries and not self._is_hopeless(probe)
        ]

    def proof(self) -> SkillProof:
        certificate = self.certificate()
        if self._is_merge:
            return self._proof_of_merge(certificate)
        if not any(probe.kind is ProbeKind.FAILING for probe in self.probes) and not self.results:
            return SkillProof(
                Decision.REJECT,
                "there is no recorded failure of its kind to try it on",
                certificate,
            )
        belief, words = self._belief, replays_in_words(self.results)
        if belief.loss_if_kept <= belief.loss_if_withdrawn - PLACING_COST:
            is_shown = belief.loss_if_kept <= self.accepted
            return SkillProof(
                Decision.PASS, words if is_shown else f"{words}; live tasks decide", certificate
            )
        return SkillProof(Decision.REJECT, words, certificate)

    def certificate(self) -> Certificate:
        failing = [
            result.outcome for result in self.results if result.probe.kind is ProbeKind.FAILING
        ]
        passing = [
            result.outcome for result in self.results if result.probe.kind is ProbeKind.PASSING
        ]
        notes = dict.fromkeys(result.note for result in self.results if result.note)
        broken = passing.count(Outcome.FAIL)
        return Certificate(
            stage=SkillState.SHADOW,
            probes=len({result.probe.turn for result in self.results}),
            wins=failing.count(Outcome.PASS),
            losses=broken,
            ties=failing.count(Outcome.FAIL) + passing.count(Outcome.PASS),
            undecided=sum(result.outcome is Outcome.UNKNOWN for result in self.results),
            regressions=broken,
            tokens=sum(result.tokens for result in self.results),
            model=self.model,
            notes=tuple(notes),
            expected_loss=self._belief.loss_if_kept,
            replays=tuple(replace(result, note="") for result in self.results),
        )

    @property
    def _belief(self) -> Belief:
        return replay_belief(
            self.results, sum(probe.kind is ProbeKind.FAILING for probe in self.probes)
        )

    @property
    def _is_merge(self) -> bool:
        return self.proposal.change is Change.MERGE

    def _decided(self, kind: ProbeKind) -> bool:
        return any(
            result.probe.kind is kind and result.outcome is not Outcome.UNKNOWN
            for result in self.results
        )

    def _is_hopeless(self, probe: Probe) -> bool:
        """Whether a turn exceeds the budget or had an unknown outcome: it is not replayed again."""
        return probe.turn in self.too_dear or self._count(probe, Outcome.UNKNOWN) > 0

    def _passed(self, probe: Probe) -> bool:
        return self._count(probe, Outcome.PASS) > 0

    def _failed(self, probe: Probe) -> bool:
        return self._count(probe, Outcome.FAIL) >= 2

    def _count(self, probe: Probe, outcome: Outcome) -> int:
        return sum(
            result.probe.turn == probe.turn and result.outcome is outcome for result in self.results
        )

    def _proof_of_merge(self, certificate: Certificate) -> SkillProof:
        if not self.probes:
            return SkillProof(
                Decision.REJECT,
                "there are no recorded turns of its parents to try it on",
                certificate,
            )
        failed = [probe for probe in self.probes if self._failed(probe)]
        if failed:
            return SkillProof(
                Decision.REJECT,
                f"{len(failed)} turns that its parents get right fail with it",
                certificate,
            )
        kept = sum(map(self._passed, self.probes))
        if not kept:
            return SkillProof(
                Decision.REJECT, "none of its parents' turns could be replayed", certificate
            )
        return SkillProof(
            Decision.PASS,
            f"keeps what its parents get right in {kept} of {len(self.probes)} recorded turns",
            certificate,
        )


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
        """The task of a recorded draw with this outcome."""
        return LiveTask(draw.placed, draw.propensity, outcome)


class TrialDecision(StrEnum):
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
        return reduce(TaskCounts.plus, tasks, TaskCounts())

    def plus(self, task: LiveTask) -> "TaskCounts":
        """The counts with one more task. Tasks in which the skill was placed for certain do not
        count.
        """
        if task.propensity == 1.0:
            return self
        if task.outcome is Outcome.UNKNOWN:
            return replace(self, unknown=self.unknown + 1)
        count = f"{'placed' if task.placed else 'withheld'}_{'passed' if task.outcome is Outcome.PASS else 'failed'}"
        return replace(self, **{count: getattr(self, count) + 1})

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
            PassRate(
                with_skill.passed + self.placed_passed, with_skill.failed + self.placed_failed
            ),
            PassRate(without.passed + self.withheld_passed, without.failed + self.withheld_failed),
        )

    def in_words(self) -> str:
        """The counts in words, for people."""
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

    def certificate(
        self, model: str, notes: Iterable[str] = (), earlier: Certificate | None = None
    ) -> Certificate:
        """The trial as evidence: a task that passed with the skill or failed without it counts as a
        win.
        """
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
    """The belief from replays before the first live task: half a task with the skill and half a
    task without it.
    """
    if certificate is None or not certificate.replays:
        return Belief()
    belief = replay_belief(certificate.replays)
    return Belief(_scaled(belief.with_skill), _scaled(belief.without))


def judge_trial(tasks: Sequence[LiveTask], prior: Belief | None = None) -> TrialReport:
    """The report on the tasks so far, oldest first. The first decision counts; later tasks do not
    change it.
    """
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
        return TrialReport(
            TrialDecision.CONTINUE, f"{words} of at most {MOST_DECIDED}", belief, counts
        )
    if is_worse:
        return TrialReport(TrialDecision.WITHDRAW, f"it did not help: {words}", belief, counts)
    return TrialReport(TrialDecision.PROMOTE, f"it seems to help: {words}", belief, counts)


def is_harmful(counts: TaskCounts, prior: Belief) -> bool:
    """Whether a live skill does harm, after enough tasks with and without it."""
    belief = counts.belief(prior)
    is_seen = counts.placed >= _HARM_PLACED and counts.withheld >= _HARM_WITHHELD
    return is_seen and belief.difference < 0 and belief.loss_if_withdrawn <= _HARM_LOSS


@dataclass(frozen=True, slots=True)
class Interval:
    """The range in which the effect is with a probability of 90 %."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Uplift:
    """The measured effect of a skill on matching tasks. The estimate is None if there is no task
    with it, or none without it.
    """

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
    return (
        PassRate(rate.passed / total * _REPLAYS_WEIGH, rate.failed / total * _REPLAYS_WEIGH)
        if total
        else PassRate()
    )

"""Verdicts: the outcome of a turn, its source and its evidence. A verdict refers to a turn and
never changes it.

`Belief` compares the pass rates of turns with something placed (a skill, a reminder) and without
it."""

import math
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from math import erf, exp, pi, sqrt

from metaclaw.domain.ids import TurnId
from metaclaw.domain.turn import Scope


class Outcome(StrEnum):
    """The outcome of a turn. Nothing is learned from an unknown one."""

    PASS = "pass"
    FAIL = "fail"
    UNKNOWN = "unknown"


class Source(StrEnum):
    """The source of a verdict, weakest first. A source outranks those before it; of one source, the
    later verdict counts.
    """

    UNDECIDED = "nobody"
    JUDGE = "judge"
    DETECTOR = "detector"
    CHECK = "check"
    USER = "user"

    @property
    def rank(self) -> int:
        return list(Source).index(self)


class Fault(StrEnum):
    """The cause of a failure. No skill is made from a failure of the environment (network, quota,
    missing program).
    """

    AGENT = "agent"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True)
class Signal:
    """One observation. `evidence` is in log-odds of failure: above zero for a failure, below zero
    for a success.
    """

    detector: str
    evidence: float
    quote: str
    fault: Fault = Fault.AGENT

    def __post_init__(self) -> None:
        if not math.isfinite(self.evidence):
            raise ValueError(f"the evidence of detector {self.detector} is not a finite number")


@dataclass(frozen=True, slots=True)
class Votes:
    """The votes of a judge that was asked several times. A vote that failed or could not be read is
    `unknown`.
    """

    passed: int
    failed: int
    unknown: int
    model: str
    reasons: tuple[str, ...] = ()

    @property
    def share_failed(self) -> float | None:
        """The share of failures among the readable votes; None if there is no readable vote."""
        readable = self.passed + self.failed
        return self.failed / readable if readable else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one turn. `p_fail` is the calibrated probability of failure, None if
    unknown.
    """

    turn: TurnId
    outcome: Outcome
    source: Source
    p_fail: float | None
    signals: tuple[Signal, ...] = ()
    votes: Votes | None = None
    fault: Fault | None = None
    comment: str = ""

    def __post_init__(self) -> None:
        if self.p_fail is not None and not 0.0 <= self.p_fail <= 1.0:
            raise ValueError(f"p_fail of turn {self.turn} is {self.p_fail}, not a probability")
        if (self.outcome is Outcome.FAIL) != (self.fault is not None):
            raise ValueError(
                f"verdict on turn {self.turn}: a fault is given for a failure, and only for a"
                " failure"
            )

    @property
    def score(self) -> float | None:
        """From -1 (failed) to 1 (passed); None if unknown."""
        return None if self.p_fail is None else 1.0 - 2.0 * self.p_fail

    @property
    def teaches(self) -> bool:
        """Whether a skill may be made from it: a failure caused by the agent."""
        return self.outcome is Outcome.FAIL and self.fault is Fault.AGENT


def outranks(newer: Verdict, standing: Verdict | None) -> bool:
    """Whether a new verdict replaces the standing one. Unknown replaces only unknown, except from
    the user.
    """
    if standing is None:
        return True
    if newer.outcome is Outcome.UNKNOWN and newer.source is not Source.USER:
        return standing.outcome is Outcome.UNKNOWN
    return standing.outcome is Outcome.UNKNOWN or newer.source.rank >= standing.source.rank


@dataclass(frozen=True, slots=True)
class OpenFailure:
    """A failed turn from which nothing was learned yet: its speaker, its generation, and when it
    was judged.
    """

    turn: TurnId
    scope: Scope
    generation: int
    judged_at: datetime


@dataclass(frozen=True, slots=True)
class PassRate:
    """Numbers of passes and failures. A replay counts as a fraction of a task."""

    passed: float = 0.0
    failed: float = 0.0

    @property
    def mean(self) -> float:
        """The expected pass rate."""
        return (1 + self.passed) / (2 + self.passed + self.failed)

    @property
    def variance(self) -> float:
        """The variance of the Beta distribution."""
        return self.mean * (1 - self.mean) / (3 + self.passed + self.failed)

    def plus(self, *, passed: bool, weight: float = 1.0) -> "PassRate":
        return (
            PassRate(self.passed + weight, self.failed)
            if passed
            else PassRate(self.passed, self.failed + weight)
        )


@dataclass(frozen=True, slots=True)
class Belief:
    """Pass rates of matching tasks with the skill and without it, and what a wrong decision would
    cost.

    Each rate has a Beta distribution: Beta(1, 1) at first, updated with each pass or failure. Their
    difference d is approximated by a normal distribution of the same mean and variance. Then

        loss if kept      = E[max(0, -d)]     the passes lost per task if the skill stays and is worse
        loss if withdrawn = E[max(0, +d)]     the passes lost per task if the skill goes and was better"""

    with_skill: PassRate = PassRate()
    without: PassRate = PassRate()

    @property
    def difference(self) -> float:
        """The expected effect: 0.3 is 30 points more."""
        return self.with_skill.mean - self.without.mean

    @property
    def deviation(self) -> float:
        """The standard deviation of the effect."""
        return sqrt(self.with_skill.variance + self.without.variance)

    @property
    def loss_if_withdrawn(self) -> float:
        """Expected passes lost per task by doing without the skill."""
        z = self.difference / self.deviation
        return self.deviation * exp(-z * z / 2) / sqrt(2 * pi) + self.difference * self.is_better

    @property
    def loss_if_kept(self) -> float:
        """Expected passes lost per task by keeping the skill."""
        return self.loss_if_withdrawn - self.difference

    @property
    def is_better(self) -> float:
        """The probability that the skill helps."""
        return 0.5 * (1 + erf(self.difference / self.deviation / sqrt(2)))

    def plus(self, *, is_placed: bool, passed: bool, weight: float = 1.0) -> "Belief":
        if is_placed:
            return Belief(self.with_skill.plus(passed=passed, weight=weight), self.without)
        return Belief(self.with_skill, self.without.plus(passed=passed, weight=weight))

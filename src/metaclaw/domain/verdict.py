"""Verdicts: the outcome of a turn, its source and its evidence. A verdict refers to a turn and
never changes it."""

import math
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

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
    if standing.outcome is Outcome.UNKNOWN:
        return True
    if newer.source is standing.source is Source.DETECTOR and standing.comment:
        # The comment is a correction of the person, which a model has read: no pattern undoes it.
        return bool(newer.comment)
    return newer.source.rank >= standing.source.rank


@dataclass(frozen=True, slots=True)
class OpenFailure:
    """A failed turn from which nothing was learned yet: its speaker, its generation, and when it
    was judged.
    """

    turn: TurnId
    scope: Scope
    generation: int
    judged_at: datetime

"""Verdicts: the outcome of a turn, its source and its evidence. A verdict refers to a turn and never changes it."""

import math
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from metaclaw.domain.ids import TurnId
from metaclaw.domain.turn import Scope


class Outcome(StrEnum):
    """Three outcomes. Unknown is not in between: it teaches nothing."""

    PASS = "pass"
    FAIL = "fail"
    UNKNOWN = "unknown"


class Source(StrEnum):
    """The source of a verdict, weakest first: each outranks those before it, and a later verdict an earlier one of its source."""

    NOBODY = "nobody"
    JUDGE = "judge"
    DETECTOR = "detector"
    CHECK = "check"
    USER = "user"

    @property
    def rank(self) -> int:
        """Higher outranks lower."""
        return list(Source).index(self)


class Fault(StrEnum):
    """Whose fault a failure was. What the environment did (network, quota, missing program) never becomes a prohibition."""

    AGENT = "agent"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True)
class Signal:
    """One observation. `evidence` is in log-odds of failure: above zero speaks for a failure, below zero against one."""

    detector: str
    evidence: float
    quote: str
    fault: Fault = Fault.AGENT

    def __post_init__(self) -> None:
        if not math.isfinite(self.evidence):
            raise ValueError(f"the evidence of detector {self.detector} is not a finite number")


@dataclass(frozen=True, slots=True)
class Votes:
    """The votes of a judge that was asked several times. A vote that failed or could not be read is `unknown`."""

    passed: int
    failed: int
    unknown: int
    model: str
    reasons: tuple[str, ...] = ()

    @property
    def share_failed(self) -> float | None:
        """The share of readable votes that say fail; None where no vote could be read."""
        readable = self.passed + self.failed
        return self.failed / readable if readable else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one turn. `p_fail` is the calibrated probability of failure, None if unknown."""

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
            raise ValueError(f"verdict on turn {self.turn}: a fault is given for a failure, and only for a failure")

    @property
    def score(self) -> float | None:
        """From -1 (failed) to 1 (passed); None if unknown."""
        return None if self.p_fail is None else 1.0 - 2.0 * self.p_fail

    @property
    def teaches(self) -> bool:
        """Whether this may feed a skill: a failure of the agent's own."""
        return self.outcome is Outcome.FAIL and self.fault is Fault.AGENT


def outranks(newer: Verdict, standing: Verdict | None) -> bool:
    """Whether a verdict that comes now replaces the one that stands. An unknown replaces nothing but an unknown."""
    if standing is None:
        return True
    if newer.outcome is Outcome.UNKNOWN and newer.source is not Source.USER:
        return standing.outcome is Outcome.UNKNOWN
    return standing.outcome is Outcome.UNKNOWN or newer.source.rank >= standing.source.rank


@dataclass(frozen=True, slots=True)
class OpenFailure:
    """A failed turn that has taught nothing yet: its speaker, the generation it was made with, and when its verdict was given."""

    turn: TurnId
    scope: Scope
    generation: int
    judged_at: datetime

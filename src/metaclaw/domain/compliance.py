"""Compliance: whether the rules that applied to a turn were followed in it."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from math import erf, sqrt
from typing import Final

from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Skill

LEAST_TURNS: Final = 20
LEAST_DAYS: Final = 3
LEAST_PROBABILITY: Final = 0.8
COMPARED_DAYS: Final = 30
"""Reminders are compared over this many days; reminders that were stopped are tried again
afterwards.
"""


class RuleResult(StrEnum):
    """The outcome of a turn for a rule. HELD: a call broke the rule, and the client did not get the
    call. A call that was held because it could not be checked is UNKNOWN."""

    FOLLOWED = "followed"
    BROKEN = "broken"
    HELD = "held"
    UNKNOWN = "unknown"


class Reminded(StrEnum):
    """Whether the prompt ended with a reminder of the rule. WITHHELD: a reminder was due and left
    out, to measure its effect.
    """

    NOT_DUE = ""
    PLACED = "placed"
    WITHHELD = "withheld"


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """A rule that applied to a turn, and its result. `hash` is `measured_hash` of the rule.
    `reason` says why it was broken, or why its check failed. `is_shown` says that people are shown
    it: the rule was in the prompt, and its check is known to be right."""

    rule: SkillName
    hash: str
    result: RuleResult
    reminded: Reminded = Reminded.NOT_DUE
    reason: str = ""
    is_shown: bool = True


@dataclass(frozen=True, slots=True)
class MeasuredTurn:
    """A turn and its result for each rule that applied to it. `day` is the local day of its
    request.
    """

    seq: int
    turn: TurnId
    agent: str
    model: str
    day: str
    outcomes: tuple[RuleOutcome, ...]


@dataclass(frozen=True, slots=True)
class Compliance:
    """How often a rule was followed, broken and held. `broken` includes `held`."""

    followed: int = 0
    broken: int = 0
    held: int = 0
    unknown: int = 0

    @property
    def applied(self) -> int:
        """The number of turns to which the rule applied."""
        return self.checked + self.unknown

    @property
    def checked(self) -> int:
        """The number of those turns in which it is known whether the rule was followed."""
        return self.followed + self.broken

    @property
    def not_held(self) -> int:
        """The number of checked turns in which no call was held: those in which it was up to the
        agent to follow the rule.
        """
        return self.checked - self.held

    def __add__(self, other: "Compliance") -> "Compliance":
        return Compliance(
            self.followed + other.followed,
            self.broken + other.broken,
            self.held + other.held,
            self.unknown + other.unknown,
        )

    @staticmethod
    def of(results: Mapping[RuleResult, int]) -> "Compliance":
        held = results.get(RuleResult.HELD, 0)
        return Compliance(
            results.get(RuleResult.FOLLOWED, 0),
            results.get(RuleResult.BROKEN, 0) + held,
            held,
            results.get(RuleResult.UNKNOWN, 0),
        )


@dataclass(frozen=True, slots=True)
class CountedResult:
    """The number of turns of one agent and model on one day in which a rule had this result."""

    rule: SkillName
    hash: str
    agent: str
    model: str
    day: str
    result: RuleResult
    reminded: Reminded
    times: int


@dataclass(frozen=True, slots=True)
class Violation:
    """A turn in which a rule was broken, or its call held."""

    turn: TurnId
    at: datetime
    agent: str
    model: str
    is_held: bool
    reason: str


class ReminderState(StrEnum):
    """Whether reminders of a rule help: not known yet, they do, or they do not and were stopped."""

    COMPARING = "comparing"
    HELPING = "helping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ReminderEffect:
    """How often a rule was followed in turns for which a reminder was due: with the reminder, and
    on days on which it was left out.

    The decision needs `LEAST_TURNS` checked turns on `LEAST_DAYS` days, both with and without
    reminders. Reminders then continue if the probability that they help is at least
    `LEAST_PROBABILITY`; otherwise they stop."""

    placed: Compliance = Compliance()
    withheld: Compliance = Compliance()
    placed_days: int = 0
    withheld_days: int = 0

    @property
    def probability(self) -> float:
        """The probability that the rule is followed more often with reminders than without. Each
        share has a Beta distribution, Beta(1, 1) at first; their difference is approximated by a
        normal distribution of the same mean and variance."""
        (with_it, spread), (without, other) = map(_beta, (self.placed, self.withheld))
        return 0.5 * (1 + erf((with_it - without) / sqrt(2 * (spread + other))))

    @property
    def state(self) -> ReminderState:
        is_enough = min(self.placed.checked, self.withheld.checked) >= LEAST_TURNS
        if not is_enough or min(self.placed_days, self.withheld_days) < LEAST_DAYS:
            return ReminderState.COMPARING
        return (
            ReminderState.HELPING
            if self.probability >= LEAST_PROBABILITY
            else ReminderState.STOPPED
        )


@dataclass(frozen=True, slots=True)
class RuleRecord:
    """How one text of a rule was followed. `by_day` has the latest days, newest first."""

    total: Compliance
    by_agent: Mapping[str, Compliance]
    by_model: Mapping[str, Compliance]
    by_day: Mapping[str, Compliance]
    reminders: ReminderEffect
    violations: tuple[Violation, ...]


def _beta(arm: Compliance) -> tuple[float, float]:
    """The mean and variance of the share of turns that follow a rule."""
    mean = (1 + arm.followed) / (2 + arm.checked)
    return mean, mean * (1 - mean) / (3 + arm.checked)


def add_up(counted: Iterable[CountedResult]) -> Compliance:
    results: dict[RuleResult, int] = {}
    for count in counted:
        results[count.result] = results.get(count.result, 0) + count.times
    return Compliance.of(results)


def reminder_effect(counted: Iterable[CountedResult]) -> ReminderEffect:
    """The effect of reminders of one rule, from its counts."""
    arms: dict[Reminded, list[CountedResult]] = {arm: [] for arm in Reminded}
    for count in counted:
        arms[count.reminded].append(count)
    placed, withheld = arms[Reminded.PLACED], arms[Reminded.WITHHELD]
    days = (
        len({count.day for count in arm if count.result is not RuleResult.UNKNOWN})
        for arm in (placed, withheld)
    )
    return ReminderEffect(add_up(placed), add_up(withheld), *days)


def measured_hash(rule: Skill) -> str:
    """A hash of a rule's text and check: counts start again from zero when one of them changes."""
    if rule.check is None:
        return rule.content_hash
    return hashlib.blake2b(
        f"{rule.content_hash}\0{rule.check}".encode("utf-8", "surrogatepass"), digest_size=16
    ).hexdigest()

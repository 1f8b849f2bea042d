"""Compliance: whether the rules that applied to a turn were followed in it."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Skill


class RuleResult(StrEnum):
    """What a turn came to for a rule. A held call was broken, and the client did not get it; *unknown* is what nothing can tell."""

    FOLLOWED = "followed"
    BROKEN = "broken"
    HELD = "held"
    UNKNOWN = "unknown"


class Reminded(StrEnum):
    """Whether the prompt ended with a reminder of the rule: none was due, it was placed, or it was due and left out to compare."""

    NOT_DUE = ""
    PLACED = "placed"
    WITHHELD = "withheld"


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """A rule that applied to a turn, and what it came to. `hash` is that of its text and check. `is_placed` says that the rule
    stood in the prompt, `reason` why it was broken."""

    rule: SkillName
    hash: str
    result: RuleResult
    reminded: Reminded = Reminded.NOT_DUE
    reason: str = ""
    is_placed: bool = True


@dataclass(frozen=True, slots=True)
class MeasuredTurn:
    """A turn and what it came to for each rule that applied to it. `day` is the local day of its request."""

    seq: int
    turn: TurnId
    agent: str
    model: str
    day: str
    outcomes: tuple[RuleOutcome, ...]


@dataclass(frozen=True, slots=True)
class Compliance:
    """How often a rule applied, and what came of it. What was held is counted as broken, too."""

    followed: int = 0
    broken: int = 0
    held: int = 0
    unknown: int = 0

    @property
    def applied(self) -> int:
        """In how many turns the rule applied."""
        return self.checked + self.unknown

    @property
    def checked(self) -> int:
        """In how many of them it is known whether it was followed."""
        return self.followed + self.broken

    def __add__(self, other: "Compliance") -> "Compliance":
        return Compliance(
            self.followed + other.followed, self.broken + other.broken, self.held + other.held, self.unknown + other.unknown
        )

    @staticmethod
    def of(results: Mapping[RuleResult, int]) -> "Compliance":
        """The sums of these results."""
        held = results.get(RuleResult.HELD, 0)
        return Compliance(
            results.get(RuleResult.FOLLOWED, 0),
            results.get(RuleResult.BROKEN, 0) + held,
            held,
            results.get(RuleResult.UNKNOWN, 0),
        )


@dataclass(frozen=True, slots=True)
class CountedResult:
    """A sum: this rule, in turns of this agent and model on this day, with this result."""

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


@dataclass(frozen=True, slots=True)
class RuleRecord:
    """Everything that is known of how one text of a rule was followed. `by_day` has the latest days, the newest first;
    `reminded` and `not_reminded` are the turns at which a reminder was due, with it and without."""

    total: Compliance
    by_agent: Mapping[str, Compliance]
    by_model: Mapping[str, Compliance]
    by_day: Mapping[str, Compliance]
    reminded: Compliance
    not_reminded: Compliance
    violations: tuple[Violation, ...]


def add_up(counted: Iterable[CountedResult]) -> Compliance:
    """The sum of these counts."""
    results: dict[RuleResult, int] = {}
    for one in counted:
        results[one.result] = results.get(one.result, 0) + one.times
    return Compliance.of(results)


def measured_hash(rule: Skill) -> str:
    """Identity of what is measured: counts begin anew when the text of a rule, or its check, is changed."""
    check = rule.extra.get("check")
    if check is None:
        return rule.content_hash
    return hashlib.blake2b(f"{rule.content_hash}\0{check}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

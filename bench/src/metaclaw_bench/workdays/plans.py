"""What a generated benchmark shall be like: how many days and questions, which rules from when on,
for whom.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from metaclaw.plugin import ConfigError
from metaclaw_bench.workdays.demands import Rule
from metaclaw_bench.workdays.words import LANGUAGES

DOMAINS: Final = ("office", "kitchen", "laboratory", "library", "workshop")


@dataclass(frozen=True, slots=True)
class DayPlan:
    """A day: how many multi-choice questions and file-checks, and how hard (0 to 1)."""

    choices: int
    files: int
    level: float


@dataclass(frozen=True, slots=True)
class Drift:
    """From this day on, a rule is meant in another way."""

    day: int
    rule: str
    variant: str


@dataclass(frozen=True, slots=True)
class User:
    """Who gives the tasks: their language, and the rules that they mean in a way of their own."""

    name: str
    language: str = "en"
    variants: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """A benchmark's plan. `begins` says from which day on each rule is in force; users take turns
    by the day. With `is_plain` every correction is a standing instruction, in the same words each
    time."""

    name: str
    days: tuple[DayPlan, ...]
    begins: Mapping[str, int]
    held_out_days: int
    drift: Drift | None = None
    users: tuple[User, ...] = (User("Alex"),)
    domains: tuple[str, ...] = DOMAINS
    first_date: datetime.date = datetime.date(2026, 3, 2)
    is_plain: bool = False

    def variants_on(self, day: int, user: User) -> dict[str, str | None]:
        """The rules in force on a day and how this user means them (None: as usual)."""
        drift = self.drift if self.drift is not None and day >= self.drift.day else None
        active: dict[str, str | None] = {
            rule: user.variants.get(rule) for rule, first in self.begins.items() if first <= day
        }
        if drift is not None and drift.rule in active and drift.rule not in user.variants:
            active[drift.rule] = drift.variant
        return active


def working_day(first: datetime.date, number: int) -> datetime.date:
    """The date of a day: weekends are free."""
    weeks, days = divmod(first.weekday() + number - 1, 5)
    return first + datetime.timedelta(days=weeks * 7 + days - first.weekday())


def check_plan(plan: Plan, book: Mapping[str, Rule]) -> None:
    """Raises where the plan names rules, variants or domains that there are not, or a day without
    any rule.
    """
    named = {
        **dict.fromkeys(plan.begins),
        **{rule: variant for user in plan.users for rule, variant in user.variants.items()},
    }
    wanted = [*named.items(), *([(plan.drift.rule, plan.drift.variant)] if plan.drift else [])]
    for rule, variant in wanted:
        if rule not in book:
            raise ConfigError(
                f"plan {plan.name}: there is no rule {rule!r}. There are:"
                f" {', '.join(sorted(book))}."
            )
        if variant is not None and variant not in book[rule].variants:
            raise ConfigError(
                f"plan {plan.name}: rule {rule!r} has no variant {variant!r}, only"
                f" {', '.join(book[rule].variants)}."
            )
    if min(plan.begins.values(), default=0) != 1:
        raise ConfigError(
            f"plan {plan.name}: at least one rule must be in force from day 1 on, and none before."
        )
    unknown = sorted({user.language for user in plan.users} - LANGUAGES.keys())
    if unknown:
        raise ConfigError(
            f"plan {plan.name}: nobody speaks {', '.join(unknown)} here. There are:"
            f" {', '.join(LANGUAGES)}."
        )
    if not plan.users or not plan.domains or not set(plan.domains) <= set(DOMAINS):
        raise ConfigError(
            f"plan {plan.name}: it needs users, and domains out of {', '.join(DOMAINS)}."
        )


_PART_ONE_ROUNDS: Final = (*(10,) * 9, *(11,) * 7, *(12,) * 7, *(13,) * 4, 14, 14, 15)
PART_ONE: Final = Plan(
    name="workdays-part-one",
    days=tuple(
        DayPlan(
            choices := 5 if rounds >= 15 or number == 28 else 4,
            rounds - choices,
            round((number - 1) / 29, 3),
        )
        for number, rounds in enumerate(_PART_ONE_ROUNDS, 1)
    ),
    begins={
        "times": 1,
        "money": 3,
        "names": 5,
        "bullets": 7,
        "weeks": 9,
        "units": 11,
        "metadata": 13,
        "signatures": 15,
        "backups": 17,
        "branches": 19,
        "done_log": 21,
    },
    held_out_days=6,
)
PART_TWO: Final = Plan(
    name="workdays-part-two",
    days=tuple(DayPlan(31, 11, round((number - 1) / 13, 3)) for number in range(1, 15)),
    begins={"times": 1, "names": 4, "metadata": 6, "backups": 8, "done_log": 10},
    held_out_days=4,
    drift=Drift(9, "times", "+09:00"),
)
TINY: Final = Plan(
    name="workdays-tiny",
    days=tuple(DayPlan(2, 4, level) for level in (0.0, 0.4, 0.8)),
    begins={"times": 1, "names": 2, "backups": 3},
    held_out_days=2,
    drift=Drift(3, "times", "+09:00"),
)

CONTRADICTING_USERS: Final = (
    User("Alex", variants={"times": "+08:00"}),
    User(
        "Robin",
        variants={
            "times": "utc",
            "names": "kebab",
            "backups": ".orig",
            "money": "after",
            "bullets": "star",
        },
    ),
)


def speaking(plan: Plan, *languages: str) -> Plan:
    """The same plan with one user per language, who take turns."""
    names = ("Alex", "Robin", "Kim", "Sascha")
    return replace(
        plan,
        users=tuple(
            User(names[nth % len(names)], language) for nth, language in enumerate(languages)
        ),
    )


def add_rules(plan: Plan, rules: Sequence[Rule]) -> Plan:
    """The same plan with these rules too, each from the day on that its file says."""
    return replace(plan, begins={**plan.begins, **{rule.id: rule.begins for rule in rules}})

"""A seed's course from the generator: days to learn from, days after the night, and held-out days
with the same rules and other facts.

Its three rules are this benchmark's own: nothing may be tuned on them."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

from metaclaw_bench.workdays import DayPlan, Plan, Workday, generate, held_out, load_rules

_RULES: Final = Path(__file__).parent / "workday_rules"
OFFICE: Final = Plan(
    name="paper",
    days=tuple(DayPlan(4, 12, round(0.4 * (number - 1) / 9, 3)) for number in range(1, 11)),
    begins=dict.fromkeys(("durations", "temperatures", "rooms"), 1),
    held_out_days=5,
)
SMALL: Final = Plan(
    name="paper-small",
    days=tuple(DayPlan(2, 6, 0.0) for _ in range(6)),
    begins={"durations": 1},
    held_out_days=3,
)
COURSES: Final = {"office": OFFICE, "small": SMALL}


@dataclass(frozen=True, slots=True)
class Course:
    """Days to learn from, and held-out days."""

    name: str
    days: tuple[Workday, ...]
    held_out: tuple[Workday, ...]


@cache
def make_course(name: str, seed: int) -> Course:
    """The days of a seed. Corrections come in the same words each time: the model is measured, not
    who reads corrections.
    """
    rules, plan = load_rules(_RULES), replace(COURSES[name], is_plain=True)
    return Course(name, generate(seed, plan, rules).days, held_out(seed, plan, rules).days)

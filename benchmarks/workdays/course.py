"""A seed's course from the generator: its days, and held-out days with the same rules and other
facts.

*Two rules* is a course that a model of 135 million parameters can follow: 17 files and 7 choices a
day, times from the first day on, names from the fourth, and towards the end both in some tasks.
*One rule* is times alone, with fewer questions a day, for a CPU."""

from dataclasses import dataclass, replace
from typing import Final

from metaclaw_bench.workdays import DayPlan, Plan, Workday, generate, held_out

TWO_RULES: Final = Plan(
    name="workdays-two-rules",
    days=tuple(DayPlan(7, 17, round(0.4 * (number - 1) / 13, 3)) for number in range(1, 15)),
    begins={"times": 1, "names": 4},
    held_out_days=4,
)
ONE_RULE: Final = Plan(
    name="workdays-one-rule",
    days=tuple(DayPlan(2, 6, 0.0) for _ in range(8)),
    begins={"times": 1},
    held_out_days=2,
)
COURSES: Final = {"two-rules": TWO_RULES, "one-rule": ONE_RULE}


@dataclass(frozen=True, slots=True)
class Course:
    """Days to learn from, and held-out days."""

    name: str
    days: tuple[Workday, ...]
    held_out: tuple[Workday, ...]


def make_course(name: str, seed: int) -> Course:
    """The days of a seed. Corrections come in the same words each time: the model is measured, not
    who reads corrections.
    """
    plan = replace(COURSES[name], is_plain=True)
    return Course(name, generate(seed, plan).days, held_out(seed, plan).days)

"""A seed's course from the generator: its days, and held-out days with the same rules and other facts.

*Part two* is the benchmark's own: five rules, 31 choices and 11 files a day, several rules in one task. *Two rules* is a course
that a model of 135 million parameters can hold in its head: 17 files and 7 choices a day (the proportion of Part I), times from
the first day on, names from the fourth, and towards the end both in some tasks. *One rule* is times alone, with fewer questions a
day, for a CPU.
"""

from dataclasses import replace
from typing import Final

from benchmarks.workdays.run import Course
from benchmarks.workdays.settings import Days
from metaclaw_bench.workdays import PART_TWO, DayPlan, Plan, generate, held_out, score

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
_PLANS: Final = {Days.PART_TWO: PART_TWO, Days.TWO_RULES: TWO_RULES, Days.ONE_RULE: ONE_RULE}


def make_course(seed: int, days: Days) -> Course:
    """Days, held-out days, and how answers are marked."""
    # Corrections in the same words each time: here the model is measured, not whoever reads corrections.
    plan = replace(_PLANS[days], is_plain=True)
    return Course(generate(seed, plan).days, held_out(seed, plan).days, score)

"""Benchmarks of our own making: working days with unstated house rules, the same for the same
seed.
"""

from metaclaw_bench.workdays.generating import generate, held_out
from metaclaw_bench.workdays.marking import score
from metaclaw_bench.workdays.model import Answer, Files, Item, Marks, Workday, Workdays
from metaclaw_bench.workdays.plans import (
    CONTRADICTING_USERS,
    PART_ONE,
    PART_TWO,
    TINY,
    DayPlan,
    Drift,
    Plan,
    User,
    add_rules,
    speaking,
)
from metaclaw_bench.workdays.plugins import load_rules
from metaclaw_bench.workdays.rulebook import built_in_rules
from metaclaw_bench.workdays.writing import write

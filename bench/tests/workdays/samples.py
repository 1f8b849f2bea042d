"""Generated benchmarks for the tests, each made once."""

from functools import cache

from metaclaw_bench.questions import FileCheck
from metaclaw_bench.workdays import (
    PART_ONE,
    PART_TWO,
    TINY,
    Item,
    Plan,
    Workday,
    Workdays,
    generate,
    held_out,
    speaking,
)

PLANS = {"one": PART_ONE, "two": PART_TWO, "tiny": TINY}
LANGUAGES = ("en", "de", "fr", "es")


def plan_of(name: str, language: str = "en") -> Plan:
    """A plan in one language."""
    return speaking(PLANS[name], language)


@cache
def days_of(name: str, seed: int = 1, language: str = "en") -> Workdays:
    """The benchmark of a plan."""
    return generate(seed, plan_of(name, language))


@cache
def held_out_of(name: str, seed: int = 1, language: str = "en") -> Workdays:
    """Its held-out days."""
    return held_out(seed, plan_of(name, language))


def pairs_of(made: Workdays) -> list[tuple[Workday, Item]]:
    """Every question with its day."""
    return [(day, item) for day in made.days for item in day.items]


def file_checks(made: Workdays) -> list[tuple[Workday, Item]]:
    """Every file-check with its day."""
    return [(day, item) for day, item in pairs_of(made) if isinstance(item.round.check, FileCheck)]


def choices(made: Workdays) -> list[tuple[Workday, Item]]:
    """Every multi-choice question with its day."""
    return [
        (day, item) for day, item in pairs_of(made) if not isinstance(item.round.check, FileCheck)
    ]

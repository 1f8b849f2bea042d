"""What a generated benchmark knows beyond what the agent sees: which rules a round asks for, the
reference answer, near misses.
"""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field

from metaclaw_bench.questions import Day, Round
from metaclaw_bench.workdays.demands import Part, Rule

Files = Mapping[str, str]
"""A workspace, or what was written into it: contents by path, relative, with `/`."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What an agent did in a round: what it said, and which files it wrote (whole contents; nothing
    is deleted).
    """

    text: str = ""
    files: Files = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Item:
    """A round with its key. `rules` are the ids of the house rules it asks for; every near miss
    breaks exactly one thing.

    `parts` are the files a file-check wants (none for a choice), `book` the rules they name;
    `option_rules` says which rule each option of a choice is about. `effort` counts what has to be
    got right: single assertions, or options."""

    round: Round
    rules: tuple[str, ...]
    reference: Answer
    near_misses: tuple[Answer, ...]
    parts: tuple[Part, ...] = ()
    book: Mapping[str, Rule] = field(default_factory=dict)
    option_rules: Mapping[str, str] = field(default_factory=dict)
    effort: int = 0


@dataclass(frozen=True, slots=True)
class Workday:
    """A generated day. `begins_with` is the workspace at its beginning (what `day.folder` holds
    once it is written to disk).
    """

    day: Day
    number: int
    user: str
    language: str
    items: tuple[Item, ...]
    begins_with: Files


@dataclass(frozen=True, slots=True)
class Workdays:
    """A generated benchmark. `shared` are the persona's files, `rules` those in force on any of its
    days.
    """

    name: str
    seed: int
    days: tuple[Workday, ...]
    shared: Files
    rules: tuple[Rule, ...]
    first_date: datetime.date

    @property
    def items(self) -> tuple[Item, ...]:
        """Every question in order."""
        return tuple(item for day in self.days for item in day.items)


@dataclass(frozen=True, slots=True)
class Marks:
    """What an answer is worth. `score` is the benchmark's, `partial` the share of single assertions
    met (0 to 1), `broken` the rules that were not kept."""

    score: float
    passed: bool
    partial: float
    broken: tuple[str, ...]

"""Rules for the curve, which share neither words nor form: a skill each, with a check that grades
parts of an answer.
"""

import random
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

from benchmarks.house_rules.pools import Split, cut
from benchmarks.house_rules.rules import program_source, skill_text
from benchmarks.house_rules.tasks import Task
from benchmarks.paper.reading import pieces_of

_HERE: Final = Path(__file__).parent
_READ: Final = """
def read(task):
    for ask in ASKS:
        found = re.search(ask, task)
        if found:
            return pieces_of(FORM, found.groupdict())
    return None
"""


@dataclass(frozen=True)
class NewRule:
    """A rule of `rules.toml`."""

    name: str
    when: str
    says: str
    asks: Sequence[str]
    form: str
    fields: Mapping[str, str]
    shows: Sequence[Mapping[str, str]]

    @property
    def skill(self) -> str:
        """The name of its skill."""
        return f"house-{self.name}"

    @property
    def skill_file(self) -> str:
        """The text of its SKILL.md."""
        shown = [
            (ask.format_map(given), self._answer(given))
            for ask, given in zip(self.asks, self.shows, strict=False)
        ]
        return skill_text(self.skill, self.when, self.says, shown, self.program)

    @property
    def program(self) -> str:
        """The source of its check."""
        reading = (_HERE / "reading.py").read_text(encoding="utf-8")
        patterns = [re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>\\w+)", re.escape(ask)) for ask in self.asks]
        return "\n".join(
            [
                reading,
                f"ASKS, FORM = {patterns!r}, {self.form!r}",
                _READ,
                program_source("grading"),
            ]
        )

    def tasks(self, split: Split, seed: int, count: int) -> list[Task]:
        """So many questions that share no entity with those of the other split."""
        chance = random.Random(f"{self.name} {split} {seed}")
        pools = [
            cut(f"{self.name} {name}", _entities(of)).of(split) for name, of in self.fields.items()
        ]
        every = list(product(self.asks, *pools))
        return [
            Task(self.name, ask.format_map(given), self._answer(given))
            for ask, *chosen in chance.sample(every, min(count, len(every)))
            for given in [dict(zip(self.fields, chosen, strict=True))]
        ]

    def _answer(self, given: Mapping[str, str]) -> str:
        return "".join(text for text, _ in pieces_of(self.form, dict(given)))


def _entities(of: str) -> list[str]:
    low, dots, high = of.partition("..")
    return [str(number) for number in range(int(low), int(high) + 1)] if dots else of.split()


def read_rules() -> tuple[NewRule, ...]:
    """All rules."""
    found: dict[str, Any] = tomllib.loads((_HERE / "rules.toml").read_text(encoding="utf-8"))
    return tuple(NewRule(**one) for one in found["rules"])


RULES: Final = read_rules()

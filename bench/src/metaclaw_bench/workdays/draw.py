"""Where a day's chances come from: numbers, names and wordings, of which held-out days have their
own.
"""

import datetime
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

from metaclaw.plugin import ConfigError
from metaclaw_bench.workdays.words import Words

T = TypeVar("T")
_PEOPLE = """
Mara_Koch Jonas_Weiss Lena_Ortiz Paul_Nkosi Iris_Blanc Omar_Haddad Nina_Petrov Sven_Lind Ada_Moreau Hugo_Silva Rosa_Conti Emil_Novak
Tara_Singh Luca_Ferri Olga_Stein Finn_Baker Zoe_Marin Karl_Vogt Yara_Lopez Ivan_Dumas Elsa_Hahn Noah_Clark Vera_Kim Timo_Rossi
"""
_HELD_SHARE = 4
_MOST_TRIES = 500


@dataclass(slots=True)
class Draw:
    """One day's source of everything that is made up. `level` is how hard the day is, from 0 to 1.
    With `is_plain` every correction is a standing instruction; `corrections` counts those made so
    far."""

    seed: int
    is_held_out: bool
    language: str
    words: Words
    domain: str
    folder: str
    date: datetime.date
    level: float
    user: str
    random: random.Random
    used: set[int] = field(default_factory=set)
    is_plain: bool = False
    corrections: int = 0

    def number(self, low: int, high: int) -> int:
        """A number of these, of those that are this side's own."""
        for _ in range(_MOST_TRIES):
            number = self.random.randint(low, high)
            if self._is_held(number) is self.is_held_out:
                return number
        raise ConfigError(
            f"workdays: there is no number between {low} and {high} to draw. A rule must draw from"
            " a wider range."
        )

    def fresh_number(self, low: int, high: int) -> int:
        """A number that this day has not had yet."""
        for _ in range(_MOST_TRIES):
            number = self.number(low, high)
            if number not in self.used:
                self.used.add(number)
                return number
        return self.fresh_number(high + 1, 10 * high + 9)

    def clock(self) -> str:
        """A time between seven and seven."""
        minutes = self.number(7 * 60, 19 * 60)
        return f"{minutes // 60:02d}:{minutes % 60:02d}"

    def thing(self) -> str:
        """Something of the day's trade."""
        return self.random.choice(self._own(self.words.things[self.domain]))

    def things(self, count: int) -> list[str]:
        """Several different things."""
        return self.random.sample(self._own(self.words.things[self.domain]), count)

    def thing_said(self) -> str:
        """What is said of a thing."""
        return self.random.choice(self._own(self.words.said))

    def label(self) -> str:
        """A thing with a number that nothing else of the day has."""
        return f"{self.thing()} {self.fresh_number(100, 999)}"

    def file_stem(self) -> str:
        """A name for a file that nothing else of the day has."""
        return f"{self.thing().lower()}_{self.fresh_number(100, 999)}"

    def title(self) -> str:
        """A title of two words in small letters."""
        return f"{self.thing().lower()} {self.random.choice(self._own(self.words.titles))}"

    def person(self) -> str:
        """Somebody, with first and last name."""
        return self.random.choice(self._own(_PEOPLE)).replace("_", " ")

    def wording(self, wordings: Sequence[T]) -> T:
        """One of these; the last third is for held-out days."""
        first_held = len(wordings) - max(1, len(wordings) // 3)
        return self.random.choice(
            wordings[first_held:] if self.is_held_out else wordings[:first_held]
        )

    def long_date(self) -> str:
        """The date in words."""
        month = self.words.months.split()[self.date.month - 1]
        return self.words.long_date.format(day=self.date.day, month=month, year=self.date.year)

    def _own(self, pool: str) -> list[str]:
        return _split(self.seed, pool)[self.is_held_out]

    def _is_held(self, number: int) -> bool:
        return zlib.crc32(f"{self.seed}:{number}".encode()) % _HELD_SHARE == 0


@cache
def _split(seed: int, pool: str) -> tuple[list[str], list[str]]:
    """A pool's words for the benchmark itself, and those kept for held-out days."""
    words = pool.split()
    random.Random(f"{seed}:{pool}").shuffle(words)
    kept = len(words) // _HELD_SHARE
    return words[kept:], words[:kept]

"""What questions are made of. Each pool is cut once into what is taught and what is only asked at
the end.
"""

import random
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Final, Generic, TypeVar

Entity = TypeVar("Entity")

_HELD_OUT_SHARE: Final = 0.25
_CUT: Final = "house rules"
"""Seed of the cut. It never changes with the seed of a run, so that no run is asked what another
one was taught.
"""


class Split(StrEnum):
    """Taught, or held out."""

    TRAIN = "train"
    HELD_OUT = "held out"


@dataclass(frozen=True)
class Pool(Generic[Entity]):
    """Entities of one kind, cut in two parts that share nothing."""

    train: tuple[Entity, ...]
    held_out: tuple[Entity, ...]

    def of(self, split: Split) -> tuple[Entity, ...]:
        """The part that belongs to a split."""
        return self.train if split is Split.TRAIN else self.held_out


def cut(name: str, entities: Sequence[Entity]) -> Pool[Entity]:
    """These entities in two parts, always the same ones."""
    shuffled = list(dict.fromkeys(entities))
    random.Random(f"{_CUT}, {name}").shuffle(shuffled)
    held_out = round(_HELD_OUT_SHARE * len(shuffled))
    return Pool(tuple(shuffled[held_out:]), tuple(shuffled[:held_out]))


_WORDS: Final = tomllib.loads((Path(__file__).parent / "pools.toml").read_text(encoding="utf-8"))


def _words(name: str) -> Pool[str]:
    return cut(name, " ".join(_WORDS[name].split()).split(", "))


TOPICS: Final = _words("topics")
PEOPLE: Final = _words("people")
COMPONENTS: Final = _words("components")
FAULTS: Final = _words("faults")
CODES: Final = cut("codes", range(100, 1000))
SURNAMES: Final = _words("surnames")
THINGS: Final = _words("things")
CITIES: Final = _words("cities")
TICKETS: Final = cut("tickets", range(1, 2000))
MINUTES: Final = cut("minutes of a day", range(24 * 60))
CENTS: Final = cut("cents", range(101, 10_000))
PHONES: Final = cut("phones", random.Random(_CUT).sample(range(10_000_000, 100_000_000), 3000))
PAIRS: Final = cut(
    "pairs of numbers", [(one, two) for one in range(10, 90) for two in range(10, 90)]
)
LENGTHS: Final = cut("lengths", range(11, 1000))
DATES: Final = cut("dates", [date(1990, 1, 1) + timedelta(days=day) for day in range(50 * 365)])
EXTENSIONS: Final = ("pdf", "txt", "csv", "doc", "png", "xml", "html", "zip")
"""Too few to be cut; so are months, levels and single digits. Every question has an entity that is
cut.
"""

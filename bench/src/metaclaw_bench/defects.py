"""What is known to be wrong with the public data, round by round, and scores with and without the
rounds nobody can pass honestly.

The data is never edited. A defect that is `excluded` makes its round unreachable; the others are
told so that a reader can judge."""

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from metaclaw_bench.questions import Benchmark
from metaclaw_bench.scoring import RoundScore
from metaclaw_bench.totals import Key, Totals, totals

_NAME: Final = "MetaClaw-Evolution-Bench"


class Variant(StrEnum):
    """Which of the two published benchmarks."""

    FULL = "full"
    SMALL = "small"


class Kind(StrEnum):
    """What is wrong."""

    IMPOSSIBLE = "impossible"
    UNREACHABLE = "unreachable"
    CONTRADICTION = "contradiction"
    HIDDEN = "hidden"
    WRONG_OBJECT = "wrong_object"
    PATTERN = "pattern"
    KEY = "key"
    TASTE = "taste"


class Defect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A round with something wrong in it."""

    day: str
    round: str
    kind: Kind
    excluded: bool
    why: str


class _Known(msgspec.Struct, forbid_unknown_fields=True):
    rounds: dict[Variant, dict[str, int]]
    defects: dict[Variant, tuple[Defect, ...]]


@dataclass(frozen=True, slots=True)
class SideBySide:
    """The same scores over all planned rounds, and over those that can be passed honestly. Equal
    where no defect is known.
    """

    raw: Totals
    honest: Totals
    excluded: tuple[Defect, ...]


@cache
def _known() -> _Known:
    return msgspec.json.decode((Path(__file__).parent / "defects.json").read_bytes(), type=_Known)


def variant_of(benchmark: Benchmark) -> Variant | None:
    """Which published benchmark these are days of, told by its name and the number of rounds of
    each day; None: neither.
    """
    if not benchmark.name.startswith(_NAME):
        return None
    counts = {day.id: len(day.rounds) for day in benchmark.days}
    return next(
        (variant for variant, known in _known().rounds.items() if counts.items() <= known.items()),
        None,
    )


def defects_of(benchmark: Benchmark) -> tuple[Defect, ...]:
    """The known defects of the days that are there."""
    variant = variant_of(benchmark)
    days = {day.id for day in benchmark.days}
    return (
        ()
        if variant is None
        else tuple(defect for defect in _known().defects[variant] if defect.day in days)
    )


def side_by_side(benchmark: Benchmark, scores: list[RoundScore]) -> SideBySide:
    """Raw and defect-excluded totals."""
    excluded = tuple(defect for defect in defects_of(benchmark) if defect.excluded)
    without: set[Key] = {(defect.day, defect.round) for defect in excluded}
    return SideBySide(totals(benchmark, scores), totals(benchmark, scores, without), excluded)

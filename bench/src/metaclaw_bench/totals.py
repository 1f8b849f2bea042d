"""What many rounds come to. Everything is divided by the rounds that were planned, so a round that
never ran is a wrong one.

accuracy            sum of scores / planned rounds
choices             choices answered exactly / planned choices
files               file checks passed / planned file checks ("completion")
files over all      file checks passed / planned rounds: the published report's own denominator, for comparison only
rolling             the same over each day and the two before it
forgetting          mean over the rounds asked again at the end of (score then - score now); above 0 something was lost
forward transfer    mean over the first-seen rounds of (score - baseline's score), where a round is first seen if it asks for a rule
                    that no round before asked for; where only days are tagged, all rounds of the
                    first day with a tag. The very first day is left out: nothing could have been
                    carried over to it
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from metaclaw.plugin import ConfigError
from metaclaw_bench.questions import Benchmark, ChoiceCheck, Day
from metaclaw_bench.scoring import RoundScore

Key = tuple[str, str]
"""A round's place: day, round."""
_Place = TypeVar("_Place", str, Key)
WINDOW_DAYS: Final = 3


@dataclass(frozen=True, slots=True)
class Rate:
    """So many of so many."""

    hits: int
    of: int

    @property
    def share(self) -> float | None:
        """Hits per case, unknown where there was no case."""
        return self.hits / self.of if self.of else None


@dataclass(frozen=True, slots=True)
class Totals:
    """What the planned rounds of a run, a day or a tag came to."""

    planned: int
    scored: int
    broken: int
    score: float
    choices: Rate
    files: Rate

    @property
    def accuracy(self) -> float | None:
        """The published accuracy, over planned rounds; unknown where nothing was planned."""
        return self.score / self.planned if self.planned else None

    @property
    def files_over_all(self) -> float | None:
        """The paper's own denominators: passed file checks over all rounds. A perfect run does not
        reach 1.
        """
        return self.files.hits / self.planned if self.planned else None


@dataclass(frozen=True, slots=True)
class Planned:
    """A round that was to be run."""

    day: str
    round: str
    is_choice: bool
    tags: tuple[str, ...]

    @property
    def key(self) -> Key:
        """Its place."""
        return self.day, self.round


def plan(days: Iterable[Day]) -> tuple[Planned, ...]:
    """The rounds of these days, in order."""
    return tuple(
        Planned(day.id, asked.id, isinstance(asked.check, ChoiceCheck), day.tags)
        for day in days
        for asked in day.rounds
    )


def totals(
    benchmark: Benchmark, scores: Iterable[RoundScore], without: Collection[Key] = ()
) -> Totals:
    """The whole run; `without` leaves rounds out of both sides of the fraction."""
    return total(
        [planned for planned in plan(benchmark.days) if planned.key not in without],
        _by_key(benchmark, scores),
    )


def per_day(benchmark: Benchmark, scores: Iterable[RoundScore]) -> dict[str, Totals]:
    """Day by day, in order."""
    return _grouped(benchmark, scores, lambda planned: (planned.day,))


def per_tag(benchmark: Benchmark, scores: Iterable[RoundScore]) -> dict[str, Totals]:
    """By tag (arcs and rules), in order of appearance; a day with several tags counts for each."""
    return _grouped(benchmark, scores, lambda planned: planned.tags)


def rolling(
    benchmark: Benchmark, scores: Iterable[RoundScore], days: int = WINDOW_DAYS
) -> dict[str, Totals]:
    """Each day together with those before it, `days` in all, from the first day that has so
    many.
    """
    found = _by_key(benchmark, scores)
    ends = range(days, len(benchmark.days) + 1)
    return {
        benchmark.days[end - 1].id: total(plan(benchmark.days[end - days : end]), found)
        for end in ends
    }


def forgetting(then: Iterable[RoundScore], again: Sequence[RoundScore]) -> float | None:
    """How much lower the rounds asked again score; unknown if none was."""
    before = {(score.day, score.round): score.score for score in then}
    missing = [
        f"{score.day}/{score.round}" for score in again if (score.day, score.round) not in before
    ]
    if missing:
        raise ConfigError(
            f"asked again, but never asked before: {', '.join(missing)}; forgetting compares"
            " the two"
        )
    return _mean([before[score.day, score.round] - score.score for score in again])


def first_seen(
    benchmark: Benchmark, rules: Mapping[Key, Collection[str]] | None = None
) -> frozenset[Key]:
    """The rounds that ask for a rule nobody asked for before. `rules` tells what each round asks
    for; else the days' tags do.
    """
    if rules is None:
        days = _first((day.id, day.tags) for day in benchmark.days)
        found = {planned.key for planned in plan(benchmark.days) if planned.day in days}
    else:
        found = _first(
            (planned.key, rules.get(planned.key, ())) for planned in plan(benchmark.days)
        )
    return frozenset(key for key in found if key[0] != benchmark.days[0].id)


def forward_transfer(
    scores: Iterable[RoundScore], baseline: Iterable[RoundScore], seen_first: Collection[Key]
) -> float | None:
    """How much better than the baseline rounds go that are the first of their rule; a round that
    did not run scores 0.
    """
    ours = {(score.day, score.round): score.score for score in scores}
    theirs = {(score.day, score.round): score.score for score in baseline}
    return _mean([ours.get(key, 0.0) - theirs.get(key, 0.0) for key in sorted(seen_first)])


def total(planned: Sequence[Planned], found: Mapping[Key, RoundScore]) -> Totals:
    """The planned rounds, with the scores there are for them."""
    ran = [found[asked.key] for asked in planned if asked.key in found]
    passed = {(score.day, score.round) for score in ran if score.passed}
    return Totals(
        planned=len(planned),
        scored=len(ran),
        broken=sum(score.broken is not None for score in ran),
        score=sum(score.score for score in ran),
        choices=_rate([asked for asked in planned if asked.is_choice], passed),
        files=_rate([asked for asked in planned if not asked.is_choice], passed),
    )


def _rate(planned: Sequence[Planned], passed: Collection[Key]) -> Rate:
    return Rate(sum(asked.key in passed for asked in planned), len(planned))


def _grouped(
    benchmark: Benchmark,
    scores: Iterable[RoundScore],
    groups_of: Callable[[Planned], Iterable[str]],
) -> dict[str, Totals]:
    found = _by_key(benchmark, scores)
    groups: dict[str, list[Planned]] = {}
    for planned in plan(benchmark.days):
        for group in groups_of(planned):
            groups.setdefault(group, []).append(planned)
    return {group: total(members, found) for group, members in groups.items()}


def _by_key(benchmark: Benchmark, scores: Iterable[RoundScore]) -> dict[Key, RoundScore]:
    known = {planned.key for planned in plan(benchmark.days)}
    found: dict[Key, RoundScore] = {}
    for score in scores:
        key = (score.day, score.round)
        if key not in known or key in found:
            fault = "is scored twice" if key in found else "was not planned"
            raise ConfigError(
                f"{score.day}/{score.round} {fault}; scores belong to the benchmark they were made"
                " with"
            )
        found[key] = score
    return found


def _first(asked: Iterable[tuple[_Place, Collection[str]]]) -> set[_Place]:
    seen: set[str] = set()
    fresh = set()
    for place, rules in asked:
        if not seen.issuperset(rules):
            fresh.add(place)
        seen.update(rules)
    return fresh


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None

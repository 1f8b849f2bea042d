"""What the records of many runs come to, cell by cell: a cell is a condition with what was changed
in it, over all its seeds.

Definitions are those of `bench/totals.py`: scores are divided by the rounds planned, forgetting is
above 0 where something was lost, forward transfer compares first rounds of a rule with the
baseline's. Intervals are bootstraps over seeds and days (`bench/stats.py`)."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from metaclaw_bench.records import (
    EventKind,
    EventRecord,
    Phase,
    PlanRecord,
    Record,
    RecordError,
    RoundRecord,
    of_one_kind,
)
from metaclaw_bench.stats import Interval, Nested, Place, bootstrap, nest, pair

_ORDER: Final = ("baseline", "skills", "rl", "full")
_NOT_RUN: Final = "(not run)"


@dataclass(frozen=True)
class Cell:
    """One condition with its ablations, and all that was recorded of it."""

    label: str
    condition: str
    ablation: tuple[str, ...]
    plans: Sequence[PlanRecord]
    rounds: Sequence[RoundRecord]
    events: Sequence[EventRecord]

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """The seeds it was run with."""
        return tuple(sorted({one.seed for one in (*self.plans, *self.rounds)}))

    def of(self, phase: Phase) -> list[RoundRecord]:
        """The rounds of a phase."""
        return [one for one in self.rounds if one.phase == phase]

    def planned(self, phase: Phase) -> int:
        """How many rounds of a phase there should be; those there are, where no plan says."""
        told = sum(int(getattr(plan, phase)) for plan in self.plans)
        return max(told, len(self.of(phase)))

    def scores(self, phase: Phase) -> dict[Place, float]:
        """Scores by place, with a 0 for every round that was planned and never ran."""
        found = {(one.seed, one.day, one.round): one.score for one in self.of(phase)}
        missing = self.planned(phase) - len(found)
        return found | {
            (self.seeds[at % len(self.seeds)], _NOT_RUN, str(at)): 0.0 for at in range(missing)
        }

    def count(self, kind: EventKind) -> float:
        """How often something happened, a seed."""
        return sum(one.kind == kind for one in self.events) / max(1, len(self.seeds))

    def mean(self, number: str) -> float | None:
        """The mean over seeds of a number that an event of the run measured; None where none
        did.
        """
        found = [one.numbers[number] for one in self.events if number in one.numbers]
        return sum(found) / len(self.seeds) if found else None


@dataclass(frozen=True, slots=True)
class Contrast:
    """Two cells that differ in one thing."""

    label: str
    cell: Cell
    other: Cell


class Study:
    """Everything a report shows. Raises RecordError for nothing at all, or for simulated and real
    records together.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        if not any(isinstance(one, RoundRecord) for one in records):
            raise RecordError("there is no round in these records; run a benchmark first")
        self.is_simulated = of_one_kind(records)
        refuse_duplicates(records)
        self.benchmarks = tuple(sorted({one.benchmark for one in records}))
        self.cells = _cells(records)
        self.conditions = [cell for cell in self.cells if not cell.ablation] or self.cells
        self.ablations = [
            cell for cell in self.cells if cell.ablation and self.reference(cell) is not None
        ]
        self._known: dict[tuple[str, str], Interval | None] = {}

    def reference(self, cell: Cell) -> Cell | None:
        """What a cell is compared with: an ablation with its own condition, a condition with the
        baseline.
        """
        wanted = cell.condition if cell.ablation else "baseline"
        return next((one for one in self.cells if one.label == wanted and one is not cell), None)

    def contrasts(self) -> list[Contrast]:
        """Every ablation against what differs from it in one thing: its condition, or the same with
        one change less.
        """
        found: list[Contrast] = []
        for cell in self.ablations:
            for label in cell.ablation:
                rest = tuple(one for one in cell.ablation if one != label)
                other = next(
                    (
                        one
                        for one in self.cells
                        if (one.condition, one.ablation) == (cell.condition, rest)
                    ),
                    None,
                )
                if other is not None:
                    found.append(
                        Contrast(
                            label + (f", where {' and '.join(rest)}" if rest else ""), cell, other
                        )
                    )
        return found

    def contrast(self, one: Contrast, phase: Phase = "stream") -> Interval | None:
        """What the change is worth, paired by seed and question."""
        scores, others = one.cell.scores(phase), one.other.scores(phase)
        return self._once(
            one.cell, f"against {one.other.label} {phase}", lambda: bootstrap(pair(scores, others))
        )

    def accuracy(self, cell: Cell, phase: Phase = "stream") -> Interval | None:
        """The mean score of a phase."""
        return self._once(
            cell, f"accuracy {phase}", lambda: bootstrap(nest(cell.scores(phase).items()))
        )

    def without_defects(self, cell: Cell) -> Interval | None:
        """The same without the questions that are known to be defective; None where none of them
        is.
        """
        if all(one.defect is None for one in cell.rounds):
            return None
        defective = {
            (one.seed, one.day, one.round) for one in cell.of("stream") if one.defect is not None
        }
        kept = [
            (place, score)
            for place, score in cell.scores("stream").items()
            if place not in defective
        ]
        return self._once(cell, "without defects", lambda: bootstrap(nest(kept)))

    def exact(self, cell: Cell) -> Interval | None:
        """The share of choices that were answered exactly."""
        found = (one for one in cell.of("stream") if one.kind == "multi_choice")
        return self._once(
            cell, "exact", lambda: bootstrap(_nested(found, lambda one: float(one.exact or False)))
        )

    def completion(self, cell: Cell, phase: Phase = "stream") -> Interval | None:
        """The share of file-checks that passed."""
        found = (one for one in cell.of(phase) if one.kind == "file_check")
        return self._once(
            cell,
            f"completion {phase}",
            lambda: bootstrap(_nested(found, lambda one: float(one.passed))),
        )

    def gain(self, cell: Cell, phase: Phase = "stream") -> Interval | None:
        """What a cell is better by than its reference, paired by seed and question."""
        other = self.reference(cell)
        if other is None:
            return None
        return self._once(
            cell, f"gain {phase}", lambda: bootstrap(pair(cell.scores(phase), other.scores(phase)))
        )

    def forgetting(self, cell: Cell) -> Interval | None:
        """How much lower early rounds score when they are asked again at the end."""
        first, again = cell.scores("stream"), cell.scores("again")
        return self._once(cell, "forgetting", lambda: bootstrap(pair(_asked(first), _asked(again))))

    def transfer(self, cell: Cell) -> Interval | None:
        """How much better than the baseline the first round of each new rule goes, the first day
        left out.
        """
        other = (
            self.reference(cell)
            if not cell.ablation
            else next((one for one in self.cells if one.label == "baseline"), None)
        )
        if other is None:
            return None
        new = _first_of_rules(cell.of("stream"))
        gained = pair(
            {place: score for place, score in cell.scores("stream").items() if place in new},
            other.scores("stream"),
        )
        return self._once(cell, "transfer", lambda: bootstrap(gained))

    def reward(self, cell: Cell) -> Interval | None:
        """The mean reward of the rounds that somebody could judge."""
        judged = [((one.seed, one.day, one.round), one.reward) for one in cell.of("stream")]
        known = [(place, reward) for place, reward in judged if reward is not None]
        return self._once(cell, "reward", lambda: bootstrap(nest(known)))

    def _once(self, cell: Cell, what: str, find: Callable[[], Interval | None]) -> Interval | None:
        key = cell.label, what
        if key not in self._known:
            self._known[key] = find()
        return self._known[key]


@dataclass(frozen=True, slots=True)
class DayPoint:
    """A day of a cell: its number, its mean score, and the mean of it and the two days before."""

    number: int
    mean: float
    rolling: float


def per_day(cell: Cell) -> list[DayPoint]:
    """The curve of a cell, over all seeds."""
    by_day: dict[int, list[float]] = {}
    for one in cell.of("stream"):
        by_day.setdefault(one.day_number, []).append(one.score)
    days = sorted(by_day)
    points = []
    for at, day in enumerate(days):
        near = [score for other in days[max(0, at - 2) : at + 1] for score in by_day[other]]
        points.append(DayPoint(day, statistics.fmean(by_day[day]), statistics.fmean(near)))
    return points


def per_day_reward(cell: Cell) -> dict[int, float]:
    """The mean reward of each day on which anything was judged."""
    by_day: dict[int, list[float]] = {}
    for one in cell.of("stream"):
        if one.reward is not None:
            by_day.setdefault(one.day_number, []).append(one.reward)
    return {day: statistics.fmean(rewards) for day, rewards in sorted(by_day.items())}


def marks(cell: Cell, kind: EventKind) -> dict[int, float]:
    """On which days something happened, and in which share of the seeds."""
    seeds: dict[int, set[int]] = {}
    for one in cell.events:
        if one.kind == kind:
            seeds.setdefault(one.day_number, set()).add(one.seed)
    return {day: len(found) / len(cell.seeds) for day, found in sorted(seeds.items())}


def failures_by_rule(cell: Cell) -> dict[str, tuple[int, int]]:
    """For every rule, how many rounds that ask for it did not pass, and of how many; rounds without
    rules by their kind.
    """
    counts: dict[str, tuple[int, int]] = {}
    for one in cell.rounds:
        for rule in one.rules or (f"({one.kind.replace('_', ' ')})",):
            failed, asked = counts.get(rule, (0, 0))
            counts[rule] = failed + (not one.passed), asked + 1
    return counts


def worst_rounds(cell: Cell, most: int) -> list[list[RoundRecord]]:
    """The questions that went worst over all seeds, each with its rounds; none that always went
    well.
    """
    groups: dict[tuple[str, str, str], list[RoundRecord]] = {}
    for one in cell.rounds:
        groups.setdefault(one.place, []).append(one)
    bad = [group for group in groups.values() if statistics.fmean(one.score for one in group) < 1.0]
    return sorted(
        bad, key=lambda group: (statistics.fmean(one.score for one in group), -group[0].day_number)
    )[:most]


def placements_of_learned(cell: Cell) -> float:
    """How often a skill that the evolver wrote was placed, a seed. The person's own instructions do
    not count.
    """
    learned = {
        (one.seed, one.name)
        for one in cell.events
        if one.kind == "skill_born" and one.numbers.get("by_evolver")
    }
    return sum((one.seed, name) in learned for one in cell.rounds for name in one.skills) / max(
        1, len(cell.seeds)
    )


def mean_of(
    rounds: Iterable[RoundRecord], what: Callable[[RoundRecord], float | None]
) -> float | None:
    """The mean of what is known; None where nothing is."""
    known = [value for one in rounds if (value := what(one)) is not None]
    return statistics.fmean(known) if known else None


def tokens_of(one: RoundRecord) -> float | None:
    """All tokens of a round; None where nobody counted."""
    return (
        None
        if one.tokens_in is None or one.tokens_out is None
        else float(one.tokens_in + one.tokens_out)
    )


def _cells(records: Sequence[Record]) -> list[Cell]:
    groups: dict[str, list[Record]] = {}
    for one in records:
        groups.setdefault(one.cell, []).append(one)
    found = [
        Cell(
            label,
            members[0].condition,
            members[0].ablation,
            [one for one in members if isinstance(one, PlanRecord)],
            [one for one in members if isinstance(one, RoundRecord)],
            [one for one in members if isinstance(one, EventRecord)],
        )
        for label, members in groups.items()
    ]
    return sorted((cell for cell in found if cell.rounds), key=_place)


def _place(cell: Cell) -> tuple[bool, int, tuple[str, ...], str]:
    known = _ORDER.index(cell.condition) if cell.condition in _ORDER else len(_ORDER)
    return bool(cell.ablation), known, cell.ablation, cell.condition


def refuse_duplicates(records: Sequence[Record]) -> None:
    """Raise RecordError for a question that is there twice for one cell and seed: every number
    would be wrong.
    """
    seen: dict[tuple[str, int, tuple[str, str, str]], str] = {}
    for one in records:
        if isinstance(one, RoundRecord):
            key = one.cell, one.seed, one.place
            if key in seen:
                place = "/".join(one.place)
                told = f"{one.cell}, seed {one.seed}, {place} (runs {seen[key]} and {one.run})"
                raise RecordError(f"a round is there twice: {told}; leave one of the two out")
            seen[key] = one.run


def _asked(scores: Mapping[Place, float]) -> dict[Place, float]:
    return {place: score for place, score in scores.items() if place[1] != _NOT_RUN}


def _nested(rounds: Iterable[RoundRecord], what: Callable[[RoundRecord], float]) -> Nested:
    return nest(((one.seed, one.day, one.round), what(one)) for one in rounds)


def _first_of_rules(rounds: Sequence[RoundRecord]) -> set[Place]:
    """The rounds that ask for a rule that none before asked for, seed by seed; none of the first
    day.
    """
    seen: set[tuple[int, str]] = set()
    first: set[Place] = set()
    for one in sorted(rounds, key=lambda one: one.day_number):
        new = {(one.seed, rule) for rule in one.rules} - seen
        seen |= new
        if new and one.day_number > 1:
            first.add((one.seed, one.day, one.round))
    return first

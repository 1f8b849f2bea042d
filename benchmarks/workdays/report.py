"""What the records of some runs come to: conditions side by side with intervals, kinds of question, days, and the goals."""

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from benchmarks.house_rules.report import Interval, interval
from benchmarks.workdays.settings import Condition

_RATIO: Final = 1.9
_KINDS: Final = (
    ("choice_exact", "choices, exact"),
    ("choice_partial", "choices, partial"),
    ("choice_boxed", "choices, a box"),
    ("files_passed", "files passed"),
    ("passed", "all, exact"),
)
_PARTS_OF_A_RUN: Final = 7

Line = Mapping[str, object]


class Records:
    """Lines of one run."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._lines = list(lines)
        self.condition = Condition(str(self._lines[0]["condition"]))
        self.seed = int(str(self._lines[0]["seed"]))
        self.days, self.steps, self.nights = self._of("day"), self._of("step"), self._of("night")
        self.end = next(iter(self._of("end")), None)

    def _of(self, kind: str) -> list[Line]:
        return [line for line in self._lines if line["kind"] == kind]

    def number(self, *path: str) -> float | None:
        """A number of the last line, by the names that lead to it; None where it is not there."""
        return _number(self.end, *path)


def _number(line: object, *path: str) -> float | None:
    for name in path:
        line = line.get(name) if isinstance(line, Mapping) else None
    return float(line) if isinstance(line, int | float) else None


def read_records(place: Path) -> list[Records]:
    """The runs in a folder, or in one file, in the order of the conditions, those that did not come to their end too."""
    runs: dict[tuple[str, int], list[Line]] = {}
    for path in [place] if place.is_file() else sorted(place.glob("*.jsonl")):
        for line in _lines(path.read_text(encoding="utf-8")):
            runs.setdefault((str(line["condition"]), int(str(line["seed"]))), []).append(line)
    return sorted(map(Records, runs.values()), key=lambda run: (list(Condition).index(run.condition), run.seed))


def _lines(text: str) -> Iterator[Line]:
    for line in text.splitlines():
        # A run that was killed may leave half a line, and what stands behind it where files were put together.
        with suppress(ValueError):
            yield json.loads(line)


def write_report(runs: Sequence[Records]) -> str:
    """Everything as Markdown."""
    ended = [run for run in runs if run.end is not None]
    cut = [f"{run.condition}, seed {run.seed} ({len(run.days)} days)" for run in runs if run.end is None]
    parts = [
        _conditions(ended),
        _kinds(ended),
        _others(ended),
        _days(runs),
        _rules(ended),
        _times(runs),
        f"Not at their end, and in no mean above but the days': {'; '.join(cut)}." if cut else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def goals(runs: Sequence[Records]) -> dict[str, bool]:
    """Which goals are met, on accuracy (the published formula) over held-out days; none where a condition is missing."""
    found = {condition: _values(runs, condition, "held_out", "accuracy") for condition in Condition}
    if not all(found.values()):
        return {}
    mean = {condition: statistics.fmean(values) for condition, values in found.items()}
    low, high = interval(found[Condition.BASELINE]), interval(found[Condition.FULL])
    base, full = mean[Condition.BASELINE], mean[Condition.FULL]
    return {
        "three seeds or more": min(map(len, found.values())) >= 3,
        "baseline < skills": base < mean[Condition.SKILLS],
        "skills ≤ full": mean[Condition.SKILLS] <= full,
        "RL only < full": mean[Condition.RL] < full,
        "intervals of baseline and full do not overlap": _upper(low) < _lower(high),
        f"full ≥ {_RATIO} × baseline ({full / base:.2f} ×)" if base > 0 else f"full ≥ {_RATIO} × baseline": full >= _RATIO * base
        and full > 0,
    }


def skills_alone(runs: Sequence[Records]) -> str:
    """In words, what skills without training are worth to this model, seed by seed; empty where it was not measured."""
    pairs = {
        run.seed: value
        for run in runs
        if run.condition is Condition.SKILLS and (value := run.number("held_out", "accuracy")) is not None
    }
    base = {
        run.seed: value
        for run in runs
        if run.condition is Condition.BASELINE and (value := run.number("held_out", "accuracy")) is not None
    }
    seeds = sorted(pairs.keys() & base.keys())
    if not seeds:
        return ""
    gain = interval([pairs[seed] - base[seed] for seed in seeds])
    half = "" if gain.half is None else f" ± {100 * gain.half:.1f}"
    is_shown = gain.half is not None and abs(gain.mean) > gain.half
    word = "is shown" if is_shown else "is not shown"
    direction = "help" if gain.mean >= 0 else "harm"
    return f"Skills alone: {100 * gain.mean:+.1f}{half} points of accuracy (paired over seeds); a {direction} {word}."


def _lower(one: Interval) -> float:
    return one.mean - (one.half if one.half is not None else float("inf"))


def _upper(one: Interval) -> float:
    return one.mean + (one.half if one.half is not None else float("inf"))


def _values(runs: Sequence[Records], condition: Condition, *path: str) -> list[float]:
    found = (run.number(*path) for run in runs if run.condition is condition)
    return [value for value in found if value is not None]


def _row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _head(*cells: str) -> list[str]:
    return [_row(cells), _row(["---"] + ["---:"] * (len(cells) - 1))]


def _present(runs: Sequence[Records]) -> list[Condition]:
    return [condition for condition in Condition if any(run.condition is condition for run in runs)]


def _cell(values: Sequence[float]) -> str:
    return str(interval(values)) if values else "–"


def _conditions(runs: Sequence[Records]) -> str:
    others = ("golden set, points", "likelihood, points", "other things kept, points")
    rows = _head("condition", "seeds", "accuracy, held-out days (95 %)", *others, "nights given up", "steps", "seconds")
    for condition in _present(runs):
        chosen = [run for run in runs if run.condition is condition]
        paths = (("golden", "points"), ("golden", "likelihood_points"), ("kept", "points"))
        points = [_spread(_values(chosen, condition, *path)) for path in paths]
        steps = statistics.fmean(len(run.steps) for run in chosen)
        seconds = statistics.fmean(_values(chosen, condition, "wall_s"))
        seeds = ", ".join(str(run.seed) for run in chosen)
        accuracy = _cell(_values(chosen, condition, "held_out", "accuracy"))
        rows.append(_row([condition, seeds, accuracy, *points, _given_up(chosen), f"{steps:.0f}", f"{seconds:.0f}"]))
    return "\n".join(rows)


def _given_up(runs: Sequence[Records]) -> str:
    """Of the nights that were judged, how many whose weights were not served."""
    judged = [night["judged"] for run in runs for night in run.nights if night.get("judged") is not None]
    given_up = sum(isinstance(one, dict) and one["scale"] is None for one in judged)
    return f"{given_up} of {len(judged)}" if judged else "–"


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):+.1f} ({min(values):+.1f} to {max(values):+.1f})" if values else "–"


def _kinds(runs: Sequence[Records]) -> str:
    rows = _head("held-out days, by kind", *(words for _, words in _KINDS))
    for condition in _present(runs):
        rows.append(_row([condition, *(_cell(_values(runs, condition, "held_out", name)) for name, _ in _KINDS)]))
    return "\n".join(rows)


def _others(runs: Sequence[Records]) -> str:
    """What is left without the skills, and what became of the first days."""
    names = ("held_out_without_skills", "early_first", "early_again")
    rows = _head(
        "accuracy", "held-out days, no skills placed", "early days, when they were new", "early days, at the end", "skills placed"
    )
    for condition in _present(runs):
        cells = [_cell(_values(runs, condition, name, "accuracy")) for name in names]
        placed = statistics.fmean(_values(runs, condition, "held_out", "placed"))
        rows.append(_row([condition, *cells, f"{placed:.1f}"]))
    return "\n".join(rows)


def _days(runs: Sequence[Records]) -> str:
    count = max((len(run.days) for run in runs), default=0)
    rows = _head("accuracy by day, when it was new", *(str(number) for number in range(1, count + 1)))
    for condition in _present(runs):
        chosen = [run for run in runs if run.condition is condition]
        cells = [
            [_number(run.days[number], "summary", "accuracy") for run in chosen if number < len(run.days)]
            for number in range(count)
        ]
        known = [[value for value in cell if value is not None] for cell in cells]
        rows.append(_row([condition, *(f"{100 * statistics.fmean(cell):.0f}" if cell else "–" for cell in known)]))
        for name in ("skills", "version"):
            values = [
                [_number(run.days[number], name) or 0.0 for run in chosen if number < len(run.days)] for number in range(count)
            ]
            if any(any(cell) for cell in values):
                rows.append(_row([f"{condition}: {name}", *(f"{statistics.fmean(cell):.0f}" if cell else "–" for cell in values)]))
    return "\n".join(rows)


def _rules(runs: Sequence[Records]) -> str:
    names = sorted({name for run in runs for name in _by_rule(run)})
    if not names:
        return ""
    rows = _head("passed, by rule", *names)
    for condition in _present(runs):
        chosen = [_by_rule(run) for run in runs if run.condition is condition]
        cells = [[one[name] for one in chosen if name in one] for name in names]
        rows.append(_row([condition, *(f"{100 * statistics.fmean(cell):.0f}" if cell else "–" for cell in cells)]))
    return "\n".join(rows)


def _by_rule(run: Records) -> dict[str, float]:
    found = run.end["held_out"] if run.end else None
    rules = found.get("by_rule") if isinstance(found, Mapping) else None
    return {str(name): float(value) for name, value in rules.items()} if isinstance(rules, Mapping) else {}


def _times(runs: Sequence[Records]) -> str:
    taught = [run for run in runs if run.steps]
    if not taught:
        return ""
    rows = _head("run", "lessons a night", "reward / passed in rollouts, along the run", "ms a step", "peak memory, GB")
    for run in taught:
        last = len(run.steps) - 1
        places = sorted({round(last * part / (_PARTS_OF_A_RUN - 1)) for part in range(_PARTS_OF_A_RUN)})
        curve = ", ".join(f"{_number(run.steps[at], 'reward'):.2f} / {_number(run.steps[at], 'passed'):.2f}" for at in places)
        lessons = ", ".join(str(night["lessons"]) for night in run.nights)
        phases = run.steps[-1]["phases"]
        total = sum(float(value) for value in phases.values()) if isinstance(phases, Mapping) else 0.0
        memory = run.number("peak_bytes")
        peak = "–" if memory is None else f"{memory / 1e9:.1f}"
        rows.append(_row([f"{run.condition}, seed {run.seed}", lessons, curve, f"{1000 * total / len(run.steps):.0f}", peak]))
    return "\n".join(rows)

"""What the records of some runs come to: a table of the conditions side by side, curves, and where the time went."""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.house_rules.settings import Condition

_STUDENT: Final = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Two-sided 95 % points of Student's t for 1 to 9 degrees of freedom."""

_GOAL: Final = 0.8
_GOLDEN_MARGIN: Final = 1.0
_CURVE_POINTS: Final = 8


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and its 95 % interval; with one seed there is none."""

    mean: float
    half: float | None

    def __str__(self) -> str:
        if self.half is None:
            return f"{100 * self.mean:.1f} %"
        low, high = max(0.0, self.mean - self.half), min(1.0, self.mean + self.half)
        return f"{100 * self.mean:.1f} % ({100 * low:.1f}–{100 * high:.1f})"


def interval(values: Sequence[float]) -> Interval:
    """Student's interval of a mean."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, None)
    student = _STUDENT[len(values) - 2] if len(values) - 2 < len(_STUDENT) else 1.96
    return Interval(mean, student * statistics.stdev(values) / math.sqrt(len(values)))


class Records:
    """Lines of one run, read where they are needed."""

    def __init__(self, lines: Iterable[Mapping[str, object]]) -> None:
        self._lines = [dict(line) for line in lines]
        self.condition = Condition(str(self._lines[0]["condition"]))
        self.seed = int(str(self._lines[0]["seed"]))
        self.steps = self._of("step")
        self.looks = self._of("look")
        self.begin, self.end = self._of("begin")[0], next(iter(self._of("end")), None)

    def _of(self, kind: str) -> list[dict[str, object]]:
        return [line for line in self._lines if line["kind"] == kind]

    def number(self, *path: str) -> float:
        """A number of the last line, by the names that lead to it."""
        value: object = self.end
        for name in path:
            assert isinstance(value, dict)
            value = value[name]
        assert isinstance(value, int | float)
        return float(value)


def read_records(folder: Path) -> list[Records]:
    """The runs in a folder that came to their end, in the order of the conditions."""
    runs = [Records(map(json.loads, path.read_text(encoding="utf-8").splitlines())) for path in sorted(folder.glob("*.jsonl"))]
    order = list(Condition)
    return sorted((run for run in runs if run.end), key=lambda run: (order.index(run.condition), run.seed))


def write_report(runs: Sequence[Records]) -> str:
    """Everything as Markdown."""
    parts = [_conditions(runs), _curves(runs), _times(runs)]
    return "\n\n".join(part for part in parts if part) + "\n"


def goals(runs: Sequence[Records]) -> dict[str, bool]:
    """Which goals the full condition reached: exact match, time, and that nothing else was lost."""
    full = [run for run in runs if run.condition is Condition.FULL]
    if not full:
        return {}
    met = {
        "exact match of at least 80 %, each seed": all(run.number("exam", "exact") >= _GOAL for run in full),
        "within ten minutes": all(run.number("wall_s") <= 600 for run in full),
    }
    if all("golden" in (run.end or {}) for run in full):
        for name, what in (("points", "golden set"), ("likelihood_points", "likelihood of its references")):
            met[f"{what} within a point, each seed"] = all(run.number("golden", name) >= -_GOLDEN_MARGIN for run in full)
    return met


def _conditions(runs: Sequence[Records]) -> str:
    others = ("golden set, points", "likelihood, points", "other things kept, points")
    rows = [_row(["condition", "seeds", "exact, held out (95 %)", "other prompt", "steps", "seconds", *others])]
    rows.append("|---|---|---|---|---|---|---|---|---|")
    for condition in Condition:
        chosen = [run for run in runs if run.condition is condition]
        if chosen:
            rows.append(_condition(condition, chosen))
    return "\n".join([*rows, "", _by_rule(runs)])


def _condition(condition: Condition, runs: Sequence[Records]) -> str:
    exact = interval([run.number("exam", "exact") for run in runs])
    cells = [condition, ", ".join(str(run.seed) for run in runs), exact]
    if not condition.learns:
        return _row([*cells, "–", "–", "–", "–", "–", "–"])
    other = interval([run.number("exam_other_prompt", "exact") for run in runs])
    other_things = [_points(runs, *path) for path in (("golden", "points"), ("golden", "likelihood_points"), ("kept", "points"))]
    steps = statistics.fmean(len(run.steps) for run in runs)
    seconds = statistics.fmean(run.number("wall_s") for run in runs)
    return _row([*cells, other, f"{steps:.0f}", f"{seconds:.0f}", *other_things])


def _points(runs: Sequence[Records], section: str, name: str) -> str:
    if not all(section in (run.end or {}) for run in runs):
        return "–"
    return _spread([run.number(section, name) for run in runs])


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):+.1f} ({min(values):+.1f} to {max(values):+.1f})"


def _row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _by_rule(runs: Sequence[Records]) -> str:
    names = list(dict.fromkeys(rule for run in runs for rule in _table(run, "exam", "by_rule")))
    rows = [_row(["exact match by rule", *names]), _row(["---"] * (len(names) + 1))]
    for condition in Condition:
        chosen = [run for run in runs if run.condition is condition]
        if chosen:
            means = [statistics.fmean(_table(run, "exam", "by_rule")[name] for run in chosen) for name in names]
            rows.append(_row([condition, *(f"{100 * mean:.0f} %" for mean in means)]))
    return "\n".join(rows)


def _table(run: Records, *path: str) -> dict[str, float]:
    value: object = run.end
    for name in path:
        assert isinstance(value, dict)
        value = value[name]
    assert isinstance(value, dict)
    return value


def _curves(runs: Sequence[Records]) -> str:
    taught = [run for run in runs if run.steps]
    if not taught:
        return ""
    rows = [_row(["run", "step: reward / exact in rollouts (seconds)"]), _row(["---", "---"])]
    for run in taught:
        last = len(run.steps) - 1
        places = sorted({round(last * point / (_CURVE_POINTS - 1)) for point in range(_CURVE_POINTS)})
        rows.append(_row([f"{run.condition}, seed {run.seed}", ", ".join(_point(run.steps[place]) for place in places)]))
    return "\n".join(rows)


def _point(step: Mapping[str, object]) -> str:
    return f"{step['number']}: {_float(step['reward']):.2f} / {_float(step['exact']):.2f} ({_float(step['wall_s']):.0f})"


def _times(runs: Sequence[Records]) -> str:
    taught = [run for run in runs if run.steps]
    if not taught:
        return ""
    phases = list(dict.fromkeys(name for run in taught for name in _phases(run)))
    rows = [_row(["run", "ms a step", *(f"{name}, ms" for name in phases), "drawn tokens/s", "peak memory, GB"])]
    rows.append(_row(["---"] * (len(phases) + 4)))
    for run in taught:
        count, seconds = len(run.steps), _phases(run)
        each = [1000 * seconds.get(name, 0.0) / count for name in phases]
        tokens = sum(_float(step["drawn_tokens"]) for step in run.steps)
        total = 1000 * sum(value for name, value in seconds.items() if name != "look") / count
        rate = tokens / seconds["sample"]
        memory = run.number("peak_bytes") / 1e9
        rows.append(
            _row(
                [f"{run.condition}, seed {run.seed}", f"{total:.0f}", *(f"{ms:.0f}" for ms in each), f"{rate:.0f}", f"{memory:.1f}"]
            )
        )
    return "\n".join(rows)


def _phases(run: Records) -> dict[str, float]:
    phases = run.steps[-1]["phases"]
    assert isinstance(phases, dict)
    return phases


def _float(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)

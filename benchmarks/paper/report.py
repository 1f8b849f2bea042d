"""Tables from the records: means with 95 % intervals. Bootstraps over seeds and whole days for the
table, Student's over seeds elsewhere; differences are paired question by question.
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from metaclaw_bench.stats import Interval, Place, bootstrap, nest, pair, student

Line = dict[str, Any]
_ROWS: Final = {
    "baseline": ("nobody", "untrained", "none"),
    "skills only, scripted": ("scripted", "untrained", "scripted"),
    "skills only, the model itself": ("itself", "untrained", "itself"),
    "weights only": ("nobody", "trained", "none"),
    "full, scripted": ("scripted", "trained", "scripted"),
    "full, the model itself": ("itself", "trained", "itself"),
}
_PAIRS: Final = (
    ("skills for untrained weights", "skills only, scripted", "baseline"),
    ("training beside skills", "full, scripted", "skills only, scripted"),
    ("its own skills for untrained weights", "skills only, the model itself", "baseline"),
    ("training beside its own skills", "full, the model itself", "skills only, the model itself"),
    ("full beside weights only", "full, scripted", "weights only"),
)


@dataclass(frozen=True, slots=True)
class Run:
    """The records of one run."""

    course: str
    condition: str
    seed: int
    lines: tuple[Line, ...]

    def of(self, kind: str) -> list[Line]:
        """Those of a kind."""
        return [line for line in self.lines if line["kind"] == kind]


def read_runs(folder: Path) -> list[Run]:
    """The runs in a folder's files. One that was begun again counts from there."""
    found: dict[tuple[str, str, int], list[Line]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for text in path.read_text(encoding="utf-8").splitlines():
            try:
                line: Line = json.loads(text)
            except ValueError:
                continue  # the last line of a program that was killed
            key = (str(line["course"]), str(line["condition"]), int(line["seed"]))
            if line["kind"] == "begin":
                found[key] = []
            found.setdefault(key, []).append(line)
    return [Run(*key, tuple(lines)) for key, lines in sorted(found.items())]


def write_report(runs: Sequence[Run]) -> str:
    """Everything as Markdown."""
    parts = []
    for course in dict.fromkeys(run.course for run in runs):
        mine = [run for run in runs if run.course == course]
        tables = _TABLES[course.partition(" ")[0]]
        parts += [f"## {course}", *(text for table in tables if (text := table(mine)))]
    return "\n\n".join([*parts, _nights(runs)]) + "\n"


def _grid(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    rule = "|".join(["---", *["---:"] * (len(head) - 1)])
    return "\n".join([f"| {' | '.join(head)} |", f"|{rule}|", *lines]) if lines else ""


def _percent(found: Interval | None) -> str:
    if found is None:
        return "–"
    return f"{100 * found.value:.1f} % ({100 * found.low:.1f} to {100 * found.high:.1f})"


def _over_seeds(values: Sequence[float]) -> str:
    found = student(values)
    if found is None:
        return f"{100 * values[0]:.1f} %" if values else "–"
    bounded = Interval(found.value, max(0.0, found.low), min(1.0, found.high))
    return _percent(bounded)


Marks = dict[Place, float]


def _marks(
    runs: Sequence[Run], cell: tuple[str, str, str], field: str, *, files: bool = False
) -> Marks:
    """The marks of whole exams by seed, day and question; of files alone, if so."""
    condition, weights, skills = cell
    whole = {
        run.seed
        for run in runs
        if run.condition == condition
        for line in run.of("exam")
        if (line["weights"], line["skills"]) == (weights, skills)
    }
    return {
        (run.seed, str(line["day"]), str(line["question"])): float(line[field])
        for run in runs
        if run.condition == condition and run.seed in whole
        for line in run.of("answer")
        if line["when"] == "exam"
        and (line["weights"], line["skills"]) == (weights, skills)
        and (line["is_file"] or not files)
    }


def _rows(runs: Sequence[Run]) -> str:
    rows = []
    for name, cell in _ROWS.items():
        marks = _marks(runs, cell, "score")
        if marks:
            done = _marks(runs, cell, "is_passed", files=True)
            by_day: dict[str, list[float]] = defaultdict(list)
            for (_, day, _), value in marks.items():
                by_day[day].append(value)
            days = ", ".join(
                f"{100 * statistics.fmean(by_day[day]):.0f}" for day in sorted(by_day, key=int)
            )
            seeds = len({place[0] for place in marks})
            rows.append(
                [
                    name,
                    seeds,
                    *(_percent(bootstrap(nest(one.items()))) for one in (marks, done)),
                    days,
                ]
            )
    head = ("held-out days", "seeds", "accuracy (95 %)", "completion (95 %)", "accuracy by day")
    return _grid(head, rows)


def _differences(runs: Sequence[Run]) -> str:
    rows = []
    for name, one, other in _PAIRS:
        cells = [_marks(runs, _ROWS[row], "score") for row in (one, other)]
        done = [_marks(runs, _ROWS[row], "is_passed", files=True) for row in (one, other)]
        if all(cells):
            rows.append([name, *(_percent(bootstrap(pair(*two))) for two in (cells, done))])
    return _grid(("difference, in points", "accuracy (95 %)", "completion (95 %)"), rows)


def _each_for_the_other(runs: Sequence[Run]) -> str:
    """All cells of the exams: which weights, which skills."""
    cells = sorted(
        {
            (run.condition, str(line["weights"]), str(line["skills"]))
            for run in runs
            for line in run.of("exam")
        },
        key=lambda cell: (cell[2], cell[1], cell[0]),
    )
    rows = []
    for condition, weights, skills in cells:
        marks = _marks(runs, (condition, weights, skills), "score")
        done = _marks(runs, (condition, weights, skills), "is_passed", files=True)
        placed = _marks(runs, (condition, weights, skills), "is_placed")
        trained = "without skills" if condition == "nobody" else f"with those of {condition}"
        rows.append(
            [
                f"{skills}",
                weights if weights == "untrained" else f"trained {trained}",
                len({place[0] for place in marks}),
                *(_percent(bootstrap(nest(one.items()))) for one in (marks, done)),
                f"{100 * statistics.fmean(placed.values()):.0f} %",
            ]
        )
    head = (
        *("skills written by", "weights", "seeds", "accuracy (95 %)", "completion (95 %)"),
        "with a skill in the prompt",
    )
    return _grid(head, rows)


def _stream(runs: Sequence[Run]) -> str:
    """Accuracy of the days from which is learned, at temperature 1."""
    days = list(
        dict.fromkeys(
            line["when"] for run in runs for line in run.of("answer") if line["when"] != "exam"
        )
    )
    rows = []
    for condition in dict.fromkeys(run.condition for run in runs):
        lines = [line for run in runs if run.condition == condition for line in run.of("answer")]
        means = [[line["score"] for line in lines if line["when"] == day] for day in days]
        rows.append(
            [condition, *(f"{100 * statistics.fmean(one):.0f} %" if one else "–" for one in means)]
        )
    return _grid(("while learning: skills written by", *days), rows) if days else ""


def _curve(runs: Sequence[Run]) -> str:
    lines = [(run.seed, line) for run in runs for line in run.of("answer")]
    counts = sorted({line["count"] for _, line in lines})
    rows = []
    for count in counts:
        cells = [str(count)]
        for groups in (("new",), ("trained", "untrained")):
            shares = _shares(
                (seed, bool(line["is_exact"]))
                for seed, line in lines
                if line["count"] == count and line["group"] in groups
            )
            cells.append(_over_seeds(list(shares.values())))
            if groups == ("new",):
                each = [f"{100 * shares[seed]:.0f}" for seed in sorted(shares)]
                cells += [str(len(shares)), ", ".join(each)]
        placed = [line["is_placed"] for _, line in lines if line["count"] == count]
        rows.append([*cells, f"{100 * statistics.fmean(placed):.0f} %"])
    head = (
        *("rules taught", "new rules, exact, greedy (95 %)", "seeds", "seed by seed"),
        *("rules of the last night, exact (at 0: those that will be taught)", "its rule placed"),
    )
    return _grid(head, rows)


def _families(runs: Sequence[Run]) -> str:
    """Each rule before any training, and after the night that taught it."""
    rows = []
    lines = [line for run in runs for line in run.of("answer")]
    for rule in sorted({line["rule"] for line in lines}):
        cells = []
        for groups, counts in ((("new", "untrained"), {0}), (("trained",), None)):
            exact = [
                bool(line["is_exact"])
                for line in lines
                if line["rule"] == rule
                and line["group"] in groups
                and (counts is None or line["count"] in counts)
            ]
            cells.append(f"{100 * statistics.fmean(exact):.0f} % of {len(exact)}" if exact else "–")
        rows.append([rule, *cells])
    return _grid(("rule", "untrained, in the prompt", "after its night"), rows)


def _habits(runs: Sequence[Run]) -> str:
    rows = []
    lines = [(run.seed, line) for run in runs for line in run.of("answer")]
    habits = sorted({name for _, line in lines for name in line["broken"]})
    for is_said in (False, True):
        for weights in ("untrained", "trained"):
            mine = [
                (seed, line["broken"])
                for seed, line in lines
                if line["weights"] == weights and line["is_said"] is is_said
            ]
            if mine:
                cells = [
                    _over_seeds(list(_shares((seed, name in said) for seed, said in mine).values()))
                    for name in habits
                ]
                where = "in the prompt" if is_said else "not in the prompt"
                rows.append([f"rules {where}, {weights}", len(mine), *cells])
    return _grid(("violations per 100 answers", "answers", *habits), rows)


def _shares(marks: Iterable[tuple[int, bool]]) -> dict[int, float]:
    """The share of true ones for each seed."""
    found: dict[int, list[bool]] = defaultdict(list)
    for seed, mark in marks:
        found[seed].append(mark)
    return {seed: statistics.fmean(each) for seed, each in found.items()}


def _nights(runs: Sequence[Run]) -> str:
    """Each run: its versions, where it stopped, and how long it took."""
    rows = []
    for run in runs:
        versions = "; ".join(
            f"{line['version']} {line['state']}, {line['steps']} steps"
            + (f" ({line['note']})" if line["note"] else "")
            for line in run.of("version")
        )
        ended = "stopped" if run.of("stopped") else "whole"
        if not run.of("end"):
            ended = "; ".join(line["error"] for line in run.of("failed")) or "killed"
        nights = ", ".join(f"{line['seconds']:.0f}" for line in run.of("night"))
        abilities = ", ".join(filter(None, map(_abilities, run.of("version")))) or "–"
        last = max(line["at_s"] for line in run.lines)
        rows.append(
            [
                f"{run.course}, {run.condition}, seed {run.seed}",
                ended,
                versions,
                abilities,
                nights,
                f"{last:.0f}",
            ]
        )
    head = ("run", "came to its end", "versions", "golden set", "nights, s", "seconds")
    return _grid(head, rows)


def _abilities(version: Line) -> str:
    """The change on the golden set of general tasks since the untrained model, in points."""
    golden = (version.get("report") or {}).get("golden") or {}
    untrained, candidate = golden.get("untrained"), golden.get("candidate")
    if untrained is None or candidate is None:
        return ""
    return f"{100 * (candidate - untrained):+.1f}"


def _reported(runs: Sequence[Run]) -> str:
    """What the program itself says of each version: violations with a rule taken out."""
    rows = [
        [
            f"seed {run.seed}, version {line['version']}",
            habit["rule"],
            habit["before"],
            habit["after"],
        ]
        for run in runs
        for line in run.of("version")
        for habit in (line.get("report") or {}).get("habits", ())
    ]
    return _grid(("`metaclaw policy show`", "rule", "before", "after"), rows)


_TABLES: Final[dict[str, Sequence[Callable[[Sequence[Run]], str]]]] = {
    "table": (_rows, _differences, _each_for_the_other, _stream),
    "curve": (_curve, _families),
    "habits": (_habits, _reported),
}

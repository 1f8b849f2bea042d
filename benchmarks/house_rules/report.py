"""Tables from the records of runs, also of `workdays`: exact answers with intervals over seeds, by
rule, and the versions.
"""

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_STUDENT: Final = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Two-sided 95 % points of Student's t for 1 to 9 degrees of freedom."""

Line = dict[str, Any]


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


@dataclass(frozen=True, slots=True)
class Records:
    """The lines of one run."""

    lines: tuple[Line, ...]

    @property
    def key(self) -> tuple[str, str]:
        """Its course and condition."""
        return str(self.lines[0]["course"]), str(self.lines[0]["condition"])

    @property
    def seed(self) -> int:
        """Its seed."""
        return int(self.lines[0]["seed"])

    @property
    def end(self) -> Line | None:
        """What its answers came to; None where it did not come to its end."""
        return next(iter(self.of("end")), None)

    def of(self, kind: str) -> list[Line]:
        """The lines of a kind."""
        return [line for line in self.lines if line["kind"] == kind]


def read_records(folder: Path) -> list[Records]:
    """The runs in a folder, by name."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jsonl"))]
    return [Records(tuple(map(json.loads, text.splitlines()))) for text in texts if text.strip()]


def write_report(runs: Sequence[Records]) -> str:
    """Everything as Markdown."""
    parts = [_conditions(runs), _by_rule(runs), _versions(runs), _not_ended(runs)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _head(*cells: str) -> list[str]:
    return [_row(cells), _row(["---"] + ["---:"] * (len(cells) - 1))]


def _keys(runs: Sequence[Records]) -> list[tuple[str, str]]:
    order = ["base", "baseline", "skills", "full"]
    return sorted(
        {run.key for run in runs if run.end}, key=lambda key: (key[0], order.index(key[1]))
    )


def _conditions(runs: Sequence[Records]) -> str:
    rows = _head(
        "rules, condition",
        "seeds",
        "exact, held out (95 %)",
        "seed by seed",
        "serving a trained version",
        "seconds",
    )
    for key in _keys(runs):
        ends = sorted(
            ((run.seed, run.end) for run in runs if run.key == key and run.end),
            key=lambda pair: pair[0],
        )
        exact = [float(end["exact"]) for _, end in ends]
        trained = sum(end["versions"] not in ([], ["0"], [""]) for _, end in ends)
        seconds = statistics.fmean(float(end["total_s"]) for _, end in ends)
        each = ", ".join(f"{100 * value:.1f}" for value in exact)
        seeds = ", ".join(str(seed) for seed, _ in ends)
        rows.append(
            _row(
                [
                    f"{key[0]}, {key[1]}",
                    seeds,
                    interval(exact),
                    each,
                    f"{trained} of {len(ends)}",
                    f"{seconds:.0f}",
                ]
            )
        )
    return "\n".join(rows) if len(rows) > 2 else ""


def _by_rule(runs: Sequence[Records]) -> str:
    names = list(dict.fromkeys(name for run in runs if run.end for name in run.end["by_rule"]))
    rows = _head("exact by rule", *names)
    for key in _keys(runs):
        ends = [run.end for run in runs if run.key == key and run.end]
        means = [
            [float(end["by_rule"][name]) for end in ends if name in end["by_rule"]]
            for name in names
        ]
        rows.append(
            _row(
                [
                    f"{key[0]}, {key[1]}",
                    *(f"{100 * statistics.fmean(mean):.0f} %" if mean else "–" for mean in means),
                ]
            )
        )
    return "\n".join(rows) if len(rows) > 2 else ""


def _versions(runs: Sequence[Records]) -> str:
    rows = _head("run", "version", "state", "steps", "because")
    for run in runs:
        for line in sorted(run.of("version"), key=lambda line: int(line["version"])):
            name = f"{run.key[0]}, seed {run.seed}"
            rows.append(
                _row([name, line["version"], line["state"], line["steps"], line["note"] or "–"])
            )
    return "\n".join(rows) if len(rows) > 2 else ""


def _not_ended(runs: Sequence[Records]) -> str:
    failed = [f"{run.key[0]}, {run.key[1]}, seed {run.seed}" for run in runs if run.end is None]
    return f"Not at their end, and in no table: {'; '.join(failed)}." if failed else ""

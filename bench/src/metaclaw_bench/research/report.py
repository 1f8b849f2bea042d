"""Research results for people: a table of runs, a table of comparisons; as words, as a page and as
Markdown.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metaclaw_bench.records import RecordError
from metaclaw_bench.report.markdown import markdown_table
from metaclaw_bench.report.markup import DASH, Piece, number, percent, table
from metaclaw_bench.report.page import document, section
from metaclaw_bench.research.comparing import compare
from metaclaw_bench.research.metrics import measure
from metaclaw_bench.research.records import ComparisonRecord, RunRecord, read_research

RUN_HEADS: Final = (
    "condition",
    "seed",
    "run",
    "ending",
    "stages",
    "retry rate",
    "refines",
    "composite",
    "unclassified",
    "tokens",
    "dollars",
)
COMPARISON_HEADS: Final = (
    "metric",
    "conditions",
    "from run",
    "pairs",
    "first",
    "other",
    "difference",
    "95 %",
)


@dataclass(frozen=True, slots=True)
class Research:
    """The runs of some files, and how their conditions compare, computed anew: an interrupted
    comparison has no record of it.
    """

    runs: Sequence[RunRecord]
    comparisons: Sequence[ComparisonRecord]

    @property
    def is_simulated(self) -> bool:
        return any(run.simulated for run in self.runs)


def read(files: Sequence[Path]) -> Research:
    """Raises RecordError for no runs, one that is there twice, and simulated and real ones
    together.
    """
    runs = [one for file in files for one in read_research(file) if isinstance(one, RunRecord)]
    if not runs:
        raise RecordError(f"{', '.join(map(str, files))}: no research run is finished yet")
    if len({run.simulated for run in runs}) > 1:
        raise RecordError(
            "simulated and real research runs are never mixed: look at one --out at a time"
        )
    places = [(run.pipeline, run.condition, run.seed, run.run) for run in runs]
    if len(set(places)) < len(places):
        raise RecordError("a research run is there twice: look at one --out at a time")
    return Research(runs, compare(runs, list(dict.fromkeys(run.condition for run in runs))))


def run_rows(research: Research) -> list[list[str]]:
    """A row for each run."""
    rows = []
    for run in research.runs:
        measured = measure(run)
        tokens = (
            None
            if run.tokens_in is None or run.tokens_out is None
            else run.tokens_in + run.tokens_out
        )
        stages = DASH if run.completed is None else f"{run.completed} of {run.scorable}"
        row = [
            run.condition,
            str(run.seed),
            str(run.run),
            run.ending,
            stages,
            percent(measured.retry_rate),
        ]
        row += [
            DASH if run.refines is None else str(run.refines),
            number(measured.composite, 3),
            str(run.unclassified),
        ]
        rows.append([*row, number(tokens, 0), number(run.cost, 2)])
    return rows


def comparison_rows(comparisons: Sequence[ComparisonRecord]) -> list[list[str]]:
    """A row for each metric of each pair of conditions."""
    return [
        [
            one.metric,
            f"{one.baseline} → {one.other}",
            str(one.from_run),
            str(one.pairs),
            f"{one.baseline_mean:.3f}",
            f"{one.other_mean:.3f}",
            f"{one.difference:+.3f}",
            f"{one.low:+.3f} … {one.high:+.3f}",
        ]
        for one in comparisons
    ]


def render_page(research: Research) -> str:
    """The whole page."""
    comparisons: list[Piece] = [
        table(
            "Conditions compared: means, paired difference and its 95 % interval",
            COMPARISON_HEADS,
            _compared(research),
        )
    ]
    parts = [
        section(
            "Conditions",
            comparisons
            if research.comparisons
            else ["There is one condition, so nothing is compared."],
        ),
        section(
            "Runs",
            [
                table(
                    "Every run; composite as docs/bench.md defines it",
                    RUN_HEADS,
                    run_rows(research),
                )
            ],
        ),
        section("Why runs ended early", _ended(research)),
    ]
    facts = f"{len(research.runs)} runs of {research.runs[0].scorable} stages each."
    return document("Research pipeline", facts, parts, is_simulated=research.is_simulated)


def render_markdown(research: Research) -> str:
    """The same as tables."""
    kind = (
        "**Simulated researcher: no model has answered any of this.**"
        if research.is_simulated
        else "Answers of a real model."
    )
    parts = [
        "# Research pipeline",
        kind,
        markdown_table(COMPARISON_HEADS, comparison_rows(research.comparisons)),
    ]
    return "\n\n".join([*parts, markdown_table(RUN_HEADS, run_rows(research))]) + "\n"


def _compared(research: Research) -> list[list[str]]:
    return comparison_rows(research.comparisons)


def _ended(research: Research) -> list[Piece]:
    rows = [
        [f"{run.condition}, seed {run.seed}, run {run.run}", run.ending, run.why]
        for run in research.runs
        if run.why
    ]
    return (
        [table("Runs that did not complete", ("run", "ending", "why"), rows, name="words")]
        if rows
        else []
    )

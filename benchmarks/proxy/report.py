"""Says what a run found: tables in Markdown, goals as lines."""

from collections.abc import Sequence

from . import summary
from .goals import Goal, judge
from .results import Run
from .suites import SUITES, Suite


def markdown(run: Run) -> str:
    """The whole report."""
    return "\n".join([measurements(run), "## Goals", "", *goal_table(judge(run)), ""])


def measurements(run: Run) -> str:
    """The report without the goals."""
    parts = [
        "# Proxy benchmark",
        "",
        *(f"- {name}: {value}" for name, value in run.facts.items()),
        "",
    ]
    parts += [
        (
            "Medians of interleaved slots, the half of the slots with the least foreign load;"
            " ratios are taken within a round. Processor time is that of the target's whole process"
            " tree. `direct` is no proxy at all: its processor time is that of the provider."
        ),
        "",
    ]
    parts += [f"- {note}" for note in run.notes] + ([""] if run.notes else [])
    for suite in SUITES:
        if any(slot.suite == suite.name for slot in run.slots):
            parts += [
                f"## {suite.title}",
                "",
                *(_streams(run, suite) if suite.program == "streams" else _requests(run, suite)),
                "",
            ]
    parts += ["## Start and memory", "", *_starts(run), ""]
    if run.memory:
        parts += [*_memory(run), ""]
    return "\n".join(parts)


def goal_lines(goals: Sequence[Goal]) -> list[str]:
    """One line a goal for a terminal."""
    width = max(len(goal.goal) for goal in goals)
    return [f"{_word(goal):4}  {goal.goal:{width}}  {goal.measured}" for goal in goals]


def goal_table(goals: Sequence[Goal]) -> list[str]:
    return _table(
        ["goal", "measured", "ok"], [[goal.goal, goal.measured, _word(goal)] for goal in goals]
    )


def _word(goal: Goal) -> str:
    return {None: "-", True: "yes", False: "NO"}[goal.met]


def _number(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    return [line(head), line(["---"] + ["---:"] * (len(head) - 1)), *(line(row) for row in rows)]


def _present(run: Run, suite: Suite) -> list[str]:
    return [target for target in run.targets if summary.slots_of(run, target, suite.name)]


def _foreign(run: Run, target: str, suite: Suite) -> str:
    slots = summary.quiet_half(summary.slots_of(run, target, suite.name))
    return _number(max(slot.foreign_cores for slot in slots), 2)


def _requests(run: Run, suite: Suite) -> list[str]:
    rows = []
    for target in _present(run, suite):
        rows.append(
            [
                target,
                _number(summary.typical(run, target, suite.name, summary.rps)),
                _number(summary.ratio(run, target, "nginx", suite.name, summary.rps), 4),
                _number(summary.typical(run, target, suite.name, summary.p50_ms), 2),
                _number(summary.typical(run, target, suite.name, summary.p99_ms), 2),
                _number(summary.typical(run, target, suite.name, summary.cpu_us)),
                str(summary.failures(run, target, suite.name)),
                _foreign(run, target, suite),
            ]
        )
    return _table(
        [
            "target",
            "requests/s",
            "× nginx",
            "p50 ms",
            "p99 ms",
            "CPU µs/request",
            "failed",
            "foreign cores",
        ],
        rows,
    )


def _streams(run: Run, suite: Suite) -> list[str]:
    rows = []
    for target in _present(run, suite):
        rows.append(
            [
                target,
                _number(summary.typical(run, target, suite.name, summary.rps), 1),
                _number(summary.typical(run, target, suite.name, summary.first_p50_ms), 2),
                _number(summary.typical(run, target, suite.name, summary.first_p99_ms), 2),
                _number(summary.added(run, target, "direct", suite.name, summary.first_p50_ms), 2),
                _number(summary.added(run, target, "direct", suite.name, summary.first_p99_ms), 2),
                _number(summary.typical(run, target, suite.name, summary.relay_p50_ms), 2),
                _number(summary.typical(run, target, suite.name, summary.relay_p99_ms), 2),
                _number(summary.typical(run, target, suite.name, summary.tokens_per_read), 2),
                _number(summary.typical(run, target, suite.name, summary.cpu_us)),
                str(summary.failures(run, target, suite.name)),
                _foreign(run, target, suite),
            ]
        )
    head = [
        "target",
        "streams/s",
        "first token p50 ms",
        "p99 ms",
        "added p50 ms",
        "added p99 ms",
        "token delay p50 ms",
        "p99 ms",
    ]
    return _table([*head, "tokens/read", "CPU µs/stream", "failed", "foreign cores"], rows)


def _starts(run: Run) -> list[str]:
    rows = [
        [target, _number(summary.start_s(run, target), 2), _number(summary.start_mb(run, target))]
        for target in run.targets
        if target != "direct"
    ]
    return _table(["target", "cold start to the first answer, s", "memory then, PSS MB"], rows)


def _memory(run: Run) -> list[str]:
    rows = [
        [point.target, point.when, f"{point.requests:,}", f"{point.pss_mb:.1f}"]
        for point in run.memory
    ]
    return _table(["target", "when", "requests so far", "PSS MB"], rows)

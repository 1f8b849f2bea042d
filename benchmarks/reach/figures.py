"""The figures of one run: shares with their intervals, other numbers, and the goals that they are
held against.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.poison_report import wilson


@dataclass(frozen=True)
class Figure:
    """A share of trials (`got` of `of`) or a plain `value`, with the goal as the least or the most
    that is wanted.
    """

    label: str
    got: int | None = None
    of: int | None = None
    value: float | None = None
    unit: str = ""
    least: float | None = None
    most: float | None = None
    note: str = ""

    @property
    def size(self) -> float | None:
        """The share or the value; None where nothing could be measured."""
        return self.got / self.of if self.of and self.got is not None else self.value

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is met; None where there is no goal."""
        if self.least is None and self.most is None:
            return None
        return (
            self.size is not None
            and (self.least is None or self.size >= self.least)
            and (self.most is None or self.size <= self.most)
        )

    def as_json(self) -> dict[str, Any]:
        interval = (
            {}
            if self.of is None
            else dict(zip(("low", "high"), wilson(self.got or 0, self.of), strict=True))
        )
        kept = {name: value for name, value in asdict(self).items() if value not in (None, "")}
        return {**kept, **interval, "size": self.size, "met": self.is_met}

    def row(self) -> str:
        """One row of the table."""
        if self.of is not None:
            low, high = wilson(self.got or 0, self.of)
            measured = f"{self.got} of {self.of}: {(self.size or 0):.0%} ({low:.0%}–{high:.0%})"
        else:
            measured = (
                "not measured"
                if self.value is None
                else f"{_number(self.value)} {self.unit}".strip()
            )
        share = "%" if self.of is not None else ""
        limits = ((self.least, "≥"), (self.most, "≤"))
        goal = ", ".join(
            f"{sign} {_number(limit * 100 if share else limit)} {share or self.unit}".strip()
            for limit, sign in limits
            if limit is not None
        )
        verdict = {None: "", True: "met", False: "**missed**"}[self.is_met]
        return (
            f"| {self.label} | {measured}{f'; {self.note}' if self.note else ''} | {goal} |"
            f" {verdict} |"
        )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def share(
    label: str,
    hits: Iterable[bool],
    *,
    least: float | None = None,
    most: float | None = None,
    note: str = "",
) -> Figure:
    """A figure from trials; without any there is nothing to hold against a goal."""
    found = list(hits)
    return (
        Figure(label, sum(found), len(found), least=least, most=most, note=note)
        if found
        else Figure(label, note=note)
    )


def by_language(label: str, trials: Sequence[tuple[str, bool]]) -> list[Figure]:
    """The same share in each language."""
    return [
        share(f"{label}, {language}", (hit for spoken, hit in trials if spoken == language))
        for language in sorted({language for language, _ in trials})
    ]


def percentile(values: Sequence[float], part: float) -> float:
    """The value that this part of the values does not exceed."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(part * len(ranked)))]


def table(figures: Iterable[Figure]) -> str:
    """All rows as Markdown."""
    return "\n".join(
        (
            "| | measured (95 % interval) | goal | |",
            "|---|---|---|---|",
            *(figure.row() for figure in figures),
        )
    )

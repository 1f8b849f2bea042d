"""Charts of the pages: where bars, lines, ticks and labels are. Templates draw them as SVG.

Positions across are percentages and heights are pixels, so that a chart fits every width and its
text is readable on each."""

from collections.abc import Mapping, Sequence
from datetime import date
from itertools import pairwise
from math import ceil, floor, log10
from typing import Any, Final

from metaclaw.api.web.formats import amount

_TOP: Final = 14
HEIGHT: Final = 160
"""Where the axis is, from above."""
_MOST_SERIES: Final = 6
_MOST_LABELS: Final = 5
_GAP: Final = 0.22
"""The share of a period's width that is empty between bars."""
_STEPS: Final = (1, 2, 2.5, 5, 10)
Scale = tuple[float, float]
"""The lowest and highest value on the axis."""


def chart(
    plot: Mapping[str, Any], labels: Sequence[str], marks: Mapping[int, str] | None = None
) -> dict[str, Any]:
    """A plot of the API (`api.progress.Plot`) with the label of each of its places across, and `marks`
    by place.
    """
    unit, series = plot["unit"], _few(plot)
    tops = [value for value in _tops(plot["kind"], series.values()) if value is not None]
    steps = _steps(min([0, *tops]), max([0, *tops]), unit)
    width, scale = 100 / max(1, len(labels)), (steps[0], steps[-1])
    every = -(-len(labels) // _MOST_LABELS)
    rows = [(label, [values[at] for values in series.values()]) for at, label in enumerate(labels)]
    newest = ", ".join(
        f"{name} {amount(values[-1], unit)}" for name, values in series.items() if values
    )
    drawn = _lines if plot["kind"] == "lines" else _bars
    return {
        **{name: plot[name] for name in ("name", "title", "unit")},
        "height": HEIGHT,
        "is_empty": not (tops if plot["kind"] == "lines" else any(tops)),
        "ticks": [(_y(step, scale), amount(step, unit)) for step in steps],
        "labels": [
            (width * (at + 0.5), label) for at, label in enumerate(labels) if at % every == 0
        ],
        "marks": [(width * (at + 0.5), text) for at, text in (marks or {}).items()],
        **drawn(plot["kind"], list(series.values()), width, scale),
        "columns": [
            (width * at, width, _told(label, series, at, unit)) for at, label in enumerate(labels)
        ],
        "legend": list(series),
        "rows": rows,
        "summary": f"{plot['title']}, {labels[0]} to {labels[-1]}; last: {newest}"
        if labels
        else "",
    }


def period_labels(periods: Sequence[str], by: str) -> list[str]:
    """Days, weeks or months as an axis names them."""
    return [
        f"{date.fromisoformat(day):{'%b %Y' if by == 'month' else '%-d %b'}}" for day in periods
    ]


def _few(plot: Mapping[str, Any]) -> dict[str, Sequence[float | None]]:
    """The series with the highest sums; of those that can be added up, the others as one."""
    ranked = sorted(plot["series"].items(), key=lambda one: -sum(value or 0 for value in one[1]))
    if len(ranked) <= _MOST_SERIES:
        return dict(plot["series"])
    few = dict(ranked[: _MOST_SERIES - 1])
    if plot["kind"] != "lines":
        rest = (values for _, values in ranked[_MOST_SERIES - 1 :])
        few["others"] = [sum(value or 0 for value in values) for values in zip(*rest, strict=True)]
    return few


def _tops(kind: str, series: Any) -> Sequence[float | None]:
    if kind == "stack":
        return [sum(value or 0 for value in values) for values in zip(*series, strict=True)]
    return [value for values in series for value in values]


def _steps(least: float, most: float, unit: str) -> list[float]:
    """The values on the axis: 0, and to both sides as far as there are values."""
    if unit == "share":
        return [0, 0.25, 0.5, 0.75, 1]
    is_whole = unit in ("count", "tokens")
    span = max(most - least, 1.0 if is_whole else 0.001)
    size = 10 ** floor(log10(span / 4))
    step = next(size * one for one in _STEPS if size * one * 4 >= span * 0.999)
    step = max(1, round(step)) if is_whole else step
    return [step * at for at in range(floor(least / step), max(1, ceil(most / step)) + 1)]


def _y(value: float, scale: Scale) -> float:
    bottom, top = scale
    return round(HEIGHT - (HEIGHT - _TOP) * (value - bottom) / (top - bottom), 1)


def _bars(
    kind: str, series: Sequence[Sequence[float | None]], width: float, scale: Scale
) -> dict[str, Any]:
    """Bars as (left, top, width, height, number of the series)."""
    found = []
    inner = width * (1 - _GAP)
    for at in range(len(series[0]) if series else 0):
        left, floor_y = width * (at + _GAP / 2), float(HEIGHT)
        for number, values in enumerate(series):
            high = HEIGHT - _y(values[at] or 0, scale)
            if kind == "stack":
                floor_y -= high
                found.append((left, floor_y, inner, high, number))
            else:
                each = inner / len(series)
                found.append((left + each * number, HEIGHT - high, each, high, number))
    return {"bars": [one for one in found if one[3] > 0], "lines": [], "dots": []}


def _lines(
    kind: str, series: Sequence[Sequence[float | None]], width: float, scale: Scale
) -> dict[str, Any]:
    """Lines as (x1, y1, x2, y2, number of the series) between the values there are, and a dot for
    each that has no neighbour.
    """
    lines, dots = [], []
    for number, values in enumerate(series):
        known = [
            (at, width * (at + 0.5), _y(value, scale))
            for at, value in enumerate(values)
            if value is not None
        ]
        lines += [(x1, y1, x2, y2, number) for (_, x1, y1), (_, x2, y2) in pairwise(known)]
        dots += [(x, y, number) for _, x, y in (known if len(known) < 13 else known[-1:])]
    return {"bars": [], "lines": lines, "dots": dots}


def _told(label: str, series: Mapping[str, Sequence[float | None]], at: int, unit: str) -> str:
    return "\n".join(
        [label, *(f"{name}: {amount(values[at], unit)}" for name, values in series.items())]
    )

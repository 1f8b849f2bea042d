"""The curve, day by day, as one SVG drawing: lines told apart by colour, dash and mark; new skills
and weights beneath.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from metaclaw_bench.report.markup import Html, percent

WIDTH: Final = 960
_LEFT, _RIGHT, _TOP, _PLOT = 52, 118, 16, 300
_LANE: Final = 22
_DASHES: Final = ("", "7 4", "2 4", "10 4 2 4", "1 3", "12 3")
_STYLES: Final = 6
_LABEL_GAP: Final = 15


@dataclass(frozen=True, slots=True)
class Line:
    """One condition: its (day, value) points, and on which days, in which share of the seeds,
    skills and weights changed.
    """

    name: str
    points: Sequence[tuple[int, float]]
    generations: dict[int, float]
    versions: dict[int, float]


def draw_curve(lines: Sequence[Line], words: str) -> Html:
    """The whole drawing. `words` is what somebody hears who cannot see it."""
    days = sorted({day for line in lines for day, _ in line.points})
    if not days:
        return Html("")
    first, last = days[0], days[-1]
    inner = WIDTH - _LEFT - _RIGHT

    def x(day: int) -> float:
        return _LEFT + (inner * (day - first) / (last - first) if last > first else inner / 2)

    lanes = [line for line in lines if line.generations or line.versions]
    height = _TOP + _PLOT + 44 + _LANE * len(lanes) + (8 if lanes else 0)
    parts = [
        _frame(x, days),
        *(_curve(line, at, x) for at, line in enumerate(lines)),
        _labels(lines),
    ]
    parts += [_lane(line, lines.index(line), row, x) for row, line in enumerate(lanes)]
    return Html(
        f'<svg class="curve" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' aria-label="{escape(words)}">'
        f"<title>{escape(words)}</title>{''.join(parts)}</svg>"
    )


def swatch(at: int) -> Html:
    """How a line looks, for the legend."""
    return Html(
        '<svg class="swatch" viewBox="0 0 40 14" width="40" height="14" aria-hidden="true"><line'
        f' class="line s{at % _STYLES}" x1="0" x2="40" y1="7" y2="7"'
        f' stroke-dasharray="{_DASHES[at % _STYLES]}"/>{_mark(at, 20, 7)}</svg>'
    )


def _frame(x: Callable[[int], float], days: Sequence[int]) -> str:
    rows = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _y(share)
        rows.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        rows.append(
            f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}"'
            f' text-anchor="end">{100 * share:.0f} %</text>'
        )
    every = max(1, -(-len(days) // 15))
    for day in days[::every]:
        rows.append(
            f'<text class="tick" x="{x(day):.1f}" y="{_TOP + _PLOT + 18}"'
            f' text-anchor="middle">{day}</text>'
        )
    rows.append(f'<text class="tick" x="{WIDTH - _RIGHT + 10}" y="{_TOP + _PLOT + 18}">day</text>')
    return "".join(rows)


def _curve(line: Line, at: int, x: Callable[[int], float]) -> str:
    path = " ".join(
        f"{'M' if n == 0 else 'L'}{x(day):.1f} {_y(value):.1f}"
        for n, (day, value) in enumerate(line.points)
    )
    dots = "".join(
        f"<g><title>{escape(line.name)}, day {day}:"
        f" {percent(value)}</title>{_mark(at, x(day), _y(value))}</g>"
        for day, value in line.points
    )
    return (
        f'<path class="line s{at % _STYLES}" d="{path}"'
        f' stroke-dasharray="{_DASHES[at % _STYLES]}"/>{dots}'
    )


def _labels(lines: Sequence[Line]) -> str:
    """Names at the ends of the lines, moved apart where they would overlap."""
    ends = sorted(
        (_y(line.points[-1][1]), at, line.name) for at, line in enumerate(lines) if line.points
    )
    labels, lowest = [], float("-inf")
    for y, at, name in ends:
        lowest = max(y, lowest + _LABEL_GAP)
        short = name if len(name) <= 15 else f"{name[:14]}…"
        labels.append(
            f'<text class="name s{at % _STYLES}" x="{WIDTH - _RIGHT + 10}"'
            f' y="{lowest + 4:.1f}">{escape(short)}</text>'
        )
    return "".join(labels)


def _lane(line: Line, at: int, row: int, x: Callable[[int], float]) -> str:
    y = _TOP + _PLOT + 48 + _LANE * row
    parts = [f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>']
    parts.append(
        f'<text class="name s{at % _STYLES}" x="{WIDTH - _RIGHT + 10}"'
        f' y="{y + 4}">{escape(line.name[:15])}</text>'
    )
    for days, what, up in (
        (line.generations, "new skills", True),
        (line.versions, "new weights", False),
    ):
        for day, share in days.items():
            told = f"{line.name}, day {day}: {what} in {percent(share)} of the seeds"
            size = 3.0 + 3.0 * share
            shape = _triangle(x(day), y - 4, size) if up else _square(x(day), y + 5, size * 0.8)
            parts.append(
                f'<g class="fill s{at % _STYLES}"><title>{escape(told)}</title>{shape}</g>'
            )
    return "".join(parts)


def _mark(at: int, x: float, y: float) -> str:
    style = f"s{at % _STYLES}"
    match at % _STYLES:
        case 0:
            return f'<circle class="fill {style}" cx="{x:.1f}" cy="{y:.1f}" r="3.2"/>'
        case 1:
            return f'<g class="fill {style}">{_square(x, y, 3)}</g>'
        case 2:
            return f'<g class="fill {style}">{_triangle(x, y, 4)}</g>'
        case 3:
            return (
                f'<path class="fill {style}" d="M{x:.1f} {y - 4.4:.1f}l4.4 4.4l-4.4 4.4l-4.4'
                ' -4.4z"/>'
            )
        case _:
            return f'<circle class="open {style}" cx="{x:.1f}" cy="{y:.1f}" r="3.2"/>'


def _triangle(x: float, y: float, size: float) -> str:
    return (
        f'<path d="M{x - size:.1f} {y + size * 0.8:.1f}h{2 * size:.1f}l{-size:.1f}'
        f' {-1.7 * size:.1f}z"/>'
    )


def _square(x: float, y: float, size: float) -> str:
    return (
        f'<rect x="{x - size:.1f}" y="{y - size:.1f}" width="{2 * size:.1f}"'
        f' height="{2 * size:.1f}"/>'
    )


def _y(share: float) -> float:
    return _TOP + _PLOT * (1.0 - max(0.0, min(1.0, share)))

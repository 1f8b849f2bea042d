"""Pieces of HTML and SVG: escaped text, numbers for people, tables, interval marks. Nothing here
knows what is reported.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from metaclaw_bench.stats import Interval

DASH: Final = "–"


@dataclass(frozen=True, slots=True)
class Html:
    """Markup that is safe to put into the page as it is. Everything else is text, and escaped."""

    markup: str


Piece = str | Html


def text(piece: Piece) -> str:
    """Markup of a piece."""
    return piece.markup if isinstance(piece, Html) else escape(piece)


def percent(value: float | None) -> str:
    """A share, as percent."""
    return DASH if value is None else f"{100 * value:.1f} %"


def points(value: float | None) -> str:
    """A difference of shares, as points of a hundred, with its sign."""
    return DASH if value is None else f"{100 * value:+.1f}".replace("-", "−")


def number(value: float | None, digits: int = 1) -> str:
    """A number with so many decimals and thousands apart."""
    return DASH if value is None else f"{value:,.{digits}f}".replace(",", "\u202f")


def spread(interval: Interval | None, show: str = "percent") -> str:
    """A value and its interval in words."""
    if interval is None:
        return DASH
    if show == "points":
        return f"{points(interval.value)} [{points(interval.low)}, {points(interval.high)}]"
    return f"{percent(interval.value)} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def interval_cell(interval: Interval | None, show: str = "percent") -> Piece:
    """A value, with its interval smaller beneath it."""
    if interval is None:
        return DASH
    value, low, high = (
        (points(interval.value), points(interval.low), points(interval.high))
        if show == "points"
        else (percent(interval.value), f"{100 * interval.low:.1f}", f"{100 * interval.high:.1f}")
    )
    return Html(f'<span class="value">{value}</span><span class="range">{low} to {high}</span>')


def table(
    caption: str, heads: Sequence[Piece], rows: Iterable[Sequence[Piece]], *, name: str = ""
) -> Html:
    """A table with a caption and headers for its columns and rows, in a region that can be scrolled
    by keyboard.
    """
    head = "".join(f'<th scope="col">{text(one)}</th>' for one in heads)
    body = "".join(
        _row(row, [escape(one) if isinstance(one, str) else "" for one in heads]) for row in rows
    )
    region = (
        f'<div class="scroll {escape(name)}" role="region" tabindex="0"'
        f' aria-label="{escape(caption)}">'
    )
    return Html(
        f"{region}<table><caption><span>{escape(caption)}</span></caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(row: Sequence[Piece], heads: Sequence[str]) -> str:
    """A row. Each cell knows its column's head, which stands before it where the table is too wide
    for the screen.
    """
    first, *rest = row
    cells = "".join(_cell(one, head) for one, head in zip(rest, heads[1:], strict=True))
    return f'<tr><th scope="row">{text(first)}</th>{cells}</tr>'


def _cell(one: Piece, head: str) -> str:
    label = f'<td data-label="{head}"'
    return (
        one.markup.replace("<td", label, 1)
        if isinstance(one, Html) and one.markup.startswith("<td")
        else f"{label}>{text(one)}</td>"
    )


def whisker(interval: Interval | None, low: float, high: float, *, zero: bool = False) -> Piece:
    """A dot with its interval on a line from low to high; with a mark at zero for differences."""
    if interval is None:
        return DASH
    width, span = 160.0, (high - low) or 1.0

    def at(value: float) -> float:
        return 6 + (width - 12) * (min(high, max(low, value)) - low) / span

    words = spread(interval, "points" if zero else "percent")
    middle = (
        f'<line class="zero" x1="{at(0):.1f}" x2="{at(0):.1f}" y1="1" y2="19"/>' if zero else ""
    )
    return Html(
        f'<svg class="whisker" viewBox="0 0 {width:.0f} 20" width="{width:.0f}" height="20"'
        f' role="img" aria-label="{words}">{middle}<line class="bar" x1="{at(interval.low):.1f}"'
        f' x2="{at(interval.high):.1f}" y1="10" y2="10"/><circle class="dot"'
        f' cx="{at(interval.value):.1f}" cy="10" r="4"/></svg>'
    )


def heat(failed: int, asked: int) -> Html:
    """A cell that is darker the more of its rounds failed; the number says the same."""
    if not asked:
        return Html(f'<td class="heat">{DASH}</td>')
    share = failed / asked
    return Html(
        f'<td class="heat" style="--share:{share:.2f}"><span class="value">{100 * share:.0f}'
        f' %</span><span class="range">{failed} of {asked}</span></td>'
    )

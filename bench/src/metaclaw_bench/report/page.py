"""The report as one self-contained HTML page: nothing is loaded from anywhere, and no script
runs.
"""

from collections.abc import Iterable
from functools import cache
from html import escape
from importlib.resources import files
from typing import Final

from metaclaw_bench.report import sections
from metaclaw_bench.report.figures import Study
from metaclaw_bench.report.markup import Html, Piece, percent, points, text
from metaclaw_bench.stats import Interval

_TERMS: Final = (
    (
        "accuracy",
        (
            "the mean score of all planned rounds, by the published formulas; a round that never"
            " ran scores 0"
        ),
    ),
    ("exact", "the share of multi-choice rounds answered with exactly the right letters"),
    ("completion", "the share of file-checks that passed"),
    ("held-out", "the accuracy on days that nothing was learned from, asked at the end"),
    (
        "forgetting",
        (
            "by how much early rounds score lower when they are asked again at the end; below 0"
            " they score higher"
        ),
    ),
    (
        "forward transfer",
        "by how much the first round of each new rule scores higher than the baseline's",
    ),
    (
        "intervals",
        (
            "the middle 95 % of a bootstrap over seeds and days; differences are paired by seed and"
            " question, so they are known better than the two numbers they are made of"
        ),
    ),
)


def render_page(study: Study) -> str:
    """The whole page."""
    parts = [
        _tiles(study),
        section("Conditions", sections.conditions(study)),
        section("Day by day", sections.curve(study)),
        section("What each mechanism is worth", sections.ablations(study)),
        section("What was learned", sections.learned(study)),
        section("Rewards", sections.rewards(study)),
        section("What it cost", sections.cost(study)),
        section("Where it failed", sections.failures(study)),
        section("How to read this", [*sections.sandboxes(study), _terms(), sections.runs(study)]),
    ]
    seeds = sorted({seed for cell in study.cells for seed in cell.seeds})
    rounds = sum(len(cell.rounds) for cell in study.cells)
    facts = (
        f"{_many(len(study.cells), 'cell')}, {_many(len(seeds), 'seed')}, {_many(rounds, 'round')}."
    )
    return document(", ".join(study.benchmarks), facts, parts, is_simulated=study.is_simulated)


def document(name: str, facts: str, parts: Iterable[str], *, is_simulated: bool) -> str:
    """A page of these parts, with a banner that says whether a model answered."""
    title = f"{'Simulated: ' if is_simulated else ''}{name}"
    if is_simulated:
        banner = '<p class="banner">Simulated policy: no model has answered any of this.</p>'
        told = (
            "A policy with known probabilities was simulated, so that the effects are known in"
            " advance and can be checked."
        )
    else:
        banner = '<p class="banner real">Answers of a real model.</p>'
        told = (
            "Every answer was asked for through the proxy and checked where the agent cannot see"
            " the check."
        )
    head = (
        f"<header><h1>{escape(title)}</h1>{banner}<p"
        f' class="soft">{escape(f"{facts} {told}")}</p></header>'
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_style()}</style>\n</head>\n<body>\n<main>\n"
        f"{head}{''.join(parts)}\n</main>\n</body>\n</html>\n"
    )


def _tiles(study: Study) -> str:
    """The numbers one looks for first: the accuracy of each condition."""
    tiles = [_tile(cell.label, study.accuracy(cell), study.gain(cell)) for cell in study.conditions]
    return f'<ul class="tiles" aria-label="Accuracy by condition">{"".join(tiles)}</ul>'


def _tile(label: str, accuracy: Interval | None, gain: Interval | None) -> str:
    against = "" if gain is None else f"{points(gain.value)} points against the baseline"
    value = percent(None if accuracy is None else accuracy.value)
    return (
        f'<li><span class="what">{escape(label)}, accuracy</span><span'
        f' class="figure">{value}</span><span'
        f' class="range">{escape(against) or "&nbsp;"}</span></li>'
    )


def section(title: str, parts: Iterable[Piece]) -> str:
    """A section, or nothing where there is nothing to show."""
    body = "".join(
        text(part) if isinstance(part, Html) else f"<p>{text(part)}</p>" for part in parts
    )
    name = title.casefold().replace(" ", "-")
    return (
        f'<section aria-labelledby="{name}"><h2 id="{name}">{escape(title)}</h2>{body}</section>'
        if body
        else ""
    )


def _terms() -> Html:
    return Html(
        f"<dl>{''.join(f'<dt>{escape(term)}</dt><dd>{escape(told)}</dd>' for term, told in _TERMS)}</dl>"
    )


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count:,} {what}s".replace(",", "\u202f")


@cache
def _style() -> str:
    return files("metaclaw_bench.report").joinpath("style.css").read_text(encoding="utf-8")

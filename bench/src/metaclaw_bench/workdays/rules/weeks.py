"""House rule: calendar weeks carry the year."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metaclaw_bench.workdays.demands import Assertion, Context, Fact
    from metaclaw_bench.workdays.draw import Draw

PLACE = "inline"
FORMS = {"iso": "2026-W05", "slash": "W05/2026"}
SAYS = {
    "en": "Always write calendar weeks like {}, with the year, a W and two digits.",
    "de": "Schreibe Kalenderwochen immer so: {}, also mit Jahr, W und zwei Ziffern.",
    "fr": "Écris toujours les semaines ainsi : {}, avec l'année, un W et deux chiffres.",
    "es": "Escribe siempre las semanas así: {}, con el año, una W y dos cifras.",
}
TOPIC = {"en": "calendar weeks", "de": "Kalenderwochen", "fr": "semaines", "es": "semanas"}

_WEEK = {
    "iso": re.compile(r"(?<![\w/-])\d{4}-W\d\d(?![\w/-])"),
    "slash": re.compile(r"(?<![\w/-])W\d\d/\d{4}(?![\w/-])"),
}
_ANY = re.compile(r"\b(?:KW|CW|W) ?\d{1,2}\b")


def fact(draw: Draw) -> Fact:
    """A week of the year."""
    week, year = draw.number(1, 52), str(draw.date.year)
    return {
        "year": year,
        "week": f"{week:02d}",
        "told": draw.wording(draw.words.weeks).format(week=week, year=year),
    }


def comply(fact: Fact, variant: str) -> str:
    """The week as it must be written."""
    return (
        f"{fact['year']}-W{fact['week']}" if variant == "iso" else f"W{fact['week']}/{fact['year']}"
    )


def violate(fact: Fact, variant: str) -> tuple[str, ...]:
    """No year, no W, other letters, the other form."""
    year, week = fact["year"], fact["week"]
    return (
        f"W{week}",
        f"{year}-{week}",
        f"CW {week}/{year}",
        comply(fact, "slash" if variant == "iso" else "iso"),
    )


def check(files: Mapping[str, str], context: Context) -> list[Assertion]:
    """Each week that was told stands there in its form, and no other word for it does."""
    found: list[Assertion] = []
    for path in context["targets"]:
        weeks = _WEEK[context["variant"]].findall(files[path])
        for fact in context["facts"]:
            found.append(
                (
                    f"{fact['told']} is written with year and W",
                    comply(fact, context["variant"]) in weeks,
                )
            )
        found.append(
            (
                "no week is in another form",
                _ANY.search(_WEEK[context["variant"]].sub("", files[path])) is None,
            )
        )
    return found

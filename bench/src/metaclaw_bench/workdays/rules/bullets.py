"""House rule: how lists are written."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metaclaw_bench.workdays.demands import Assertion, Context, Fact
    from metaclaw_bench.workdays.draw import Draw

PLACE = "list"
FORMS = {"dash": "- salt", "star": "* salt"}
SAYS = {
    "en": "Always write lists with one item a line, like {}, without a stop at the end.",
    "de": "Schreibe Listen immer mit einem Eintrag pro Zeile, so wie {}, ohne Punkt am Ende.",
    "fr": "Écris toujours les listes avec un élément par ligne, comme {}, sans point à la fin.",
    "es": "Escribe siempre las listas con un elemento por línea, como {}, sin punto al final.",
}
TOPIC = {"en": "lists", "de": "Listen", "fr": "listes", "es": "listas"}
_MARK = {"dash": "-", "star": "*"}


def fact(draw: Draw) -> Fact:
    """Two or three things."""
    things = draw.things(2 if draw.level < 0.4 else 3)
    return {
        "things": "; ".join(things),
        "told": draw.wording(draw.words.lists).format(things=", ".join(things)),
    }


def comply(fact: Fact, variant: str) -> str:
    """The list as it must be."""
    return "\n".join(f"{_MARK[variant]} {thing}" for thing in fact["things"].split("; "))


def violate(fact: Fact, variant: str) -> tuple[str, ...]:
    """Numbers, another mark, no mark, all in one line, stops."""
    things = fact["things"].split("; ")
    return (
        "\n".join(f"{number}. {thing}" for number, thing in enumerate(things, 1)),
        comply(fact, "star" if variant == "dash" else "dash"),
        "\n".join(things),
        ", ".join(things),
        "\n".join(line + "." for line in comply(fact, variant).split("\n")),
    )


def check(files: Mapping[str, str], context: Context) -> list[Assertion]:
    """Each thing has a line of its own, with the mark."""
    found: list[Assertion] = []
    for path in context["targets"]:
        lines = [line.strip().casefold() for line in files[path].split("\n")]
        for fact in context["facts"]:
            found += [
                (
                    f"{thing} has a line with the mark",
                    f"{_MARK[context['variant']]} {thing}".casefold() in lines,
                )
                for thing in fact["things"].split("; ")
            ]
    return found

"""House rule: the names of branches."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metaclaw_bench.workdays.demands import Assertion, Context, Fact
    from metaclaw_bench.workdays.draw import Draw

PLACE = "inline"
FORMS = {"kind": "fix/100-stock-list", "number": "100/fix-stock-list"}
SAYS = {
    "en": "Always name branches by kind, number and title, like {}.",
    "de": "Nenne Branches immer nach Art, Nummer und Titel, so wie {}.",
    "fr": "Nomme toujours les branches par genre, numéro et titre, comme {}.",
    "es": "Nombra siempre las ramas por tipo, número y título, como {}.",
}
TOPIC = {
    "en": "names of branches",
    "de": "Namen von Branches",
    "fr": "noms de branches",
    "es": "nombres de ramas",
}
_KINDS = ("fix", "feature", "docs")
_NAME = re.compile(r"[\w/-]+")


def fact(draw: Draw) -> Fact:
    """A change that a branch is for."""
    kind, number, title = draw.random.choice(_KINDS), str(draw.number(100, 999)), draw.title()
    told = draw.wording(draw.words.branches).format(kind=kind, number=number, title=title)
    return {"kind": kind, "number": number, "title": title, "told": told}


def comply(fact: Fact, variant: str) -> str:
    """The name as it must be."""
    title = "-".join(fact["title"].split())
    return (
        f"{fact['kind']}/{fact['number']}-{title}"
        if variant == "kind"
        else f"{fact['number']}/{fact['kind']}-{title}"
    )


def violate(fact: Fact, variant: str) -> tuple[str, ...]:
    """No number, underscores, one dash for the slash, the other order."""
    right = comply(fact, variant)
    return (
        right.replace(fact["number"] + "-", "").replace(fact["number"] + "/", ""),
        right.replace("-", "_"),
        right.replace("/", "-"),
        comply(fact, "number" if variant == "kind" else "kind"),
    )


def check(files: Mapping[str, str], context: Context) -> list[Assertion]:
    """The name of each branch stands there."""
    found: list[Assertion] = []
    for path in context["targets"]:
        names = _NAME.findall(files[path])
        for fact in context["facts"]:
            found.append(
                (
                    f"the branch of {fact['number']} has its form",
                    comply(fact, context["variant"]) in names,
                )
            )
            found.append(
                (f"the number {fact['number']} stands there", fact["number"] in files[path])
            )
    return found

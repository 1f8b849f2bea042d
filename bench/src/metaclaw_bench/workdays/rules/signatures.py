"""House rule: signed texts end with initials."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metaclaw_bench.workdays.demands import Assertion, Context, Fact
    from metaclaw_bench.workdays.draw import Draw

PLACE = "bottom"
FORMS = {"dashes": "-- AB", "brackets": "(AB)"}
SAYS = {
    "en": "Always sign with the initials in a last line of their own, like {} for Ann Berg.",
    "de": "Setze immer die Initialen als letzte Zeile unter den Text, so wie {} für Ann Berg.",
    "fr": "Signe toujours par les initiales seules sur la dernière ligne, comme {} pour Ann Berg.",
    "es": "Firma siempre con las iniciales solas en la última línea, como {} para Ann Berg.",
}
TOPIC = {"en": "signatures", "de": "Unterschriften", "fr": "signatures", "es": "firmas"}


def fact(draw: Draw) -> Fact:
    """Who signs."""
    person = draw.person()
    return {"person": person, "told": draw.wording(draw.words.signed).format(person=person)}


def comply(fact: Fact, variant: str) -> str:
    """The last line."""
    initials = "".join(name[0] for name in fact["person"].split())
    return f"-- {initials}" if variant == "dashes" else f"({initials})"


def violate(fact: Fact, variant: str) -> tuple[str, ...]:
    """The name in full, the initials bare or with stops, the other form."""
    names = fact["person"].split()
    return (
        f"-- {fact['person']}",
        "".join(name[0] for name in names),
        f"-- {'. '.join(name[0] for name in names)}.",
        comply(fact, "brackets" if variant == "dashes" else "dashes"),
    )


def check(files: Mapping[str, str], context: Context) -> list[Assertion]:
    """The last line is the signature and nothing else."""
    return [
        (
            f"the last line is {comply(fact, context['variant'])}",
            files[path].strip().split("\n")[-1].strip() == comply(fact, context["variant"]),
        )
        for path in context["targets"]
        for fact in context["facts"]
    ]

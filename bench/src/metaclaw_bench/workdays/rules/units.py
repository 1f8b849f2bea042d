"""House rule: quantities have the unit's symbol."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metaclaw_bench.workdays.demands import Assertion, Context, Fact
    from metaclaw_bench.workdays.draw import Draw

PLACE = "inline"
FORMS = {"space": "250 g", "tight": "250g"}
SAYS = {
    "en": "Always write quantities with the symbol of the unit, like {}.",
    "de": "Schreibe Mengen immer mit dem Zeichen der Einheit, so wie {}.",
    "fr": "Écris toujours les quantités avec le symbole de l'unité, comme {}.",
    "es": "Escribe siempre las cantidades con el símbolo de la unidad, como {}.",
}
TOPIC = {"en": "quantities", "de": "Mengen", "fr": "quantités", "es": "cantidades"}
_SYMBOLS = ("g", "kg", "ml", "l", "cm", "m")
_QUANTITY = re.compile(r"(?<![\w.,-])\d+ ?(?:kg|g|ml|l|cm|m)(?!\w)")


def fact(draw: Draw) -> Fact:
    """So much of something."""
    value, symbol = str(draw.number(11, 990)), draw.random.choice(_SYMBOLS)
    return {
        "value": value,
        "symbol": symbol,
        "word": draw.words.units[symbol],
        "told": f"{value} {draw.words.units[symbol]}",
    }


def comply(fact: Fact, variant: str) -> str:
    """The quantity as it must be written."""
    return (
        f"{fact['value']} {fact['symbol']}"
        if variant == "space"
        else f"{fact['value']}{fact['symbol']}"
    )


def violate(fact: Fact, variant: str) -> tuple[str, ...]:
    """The word, the symbol with a stop or in brackets, the other spacing."""
    value, symbol = fact["value"], fact["symbol"]
    return (
        f"{value} {fact['word']}",
        f"{value} [{symbol}]",
        f"{symbol} {value}",
        comply(fact, "tight" if variant == "space" else "space"),
    )


def check(files: Mapping[str, str], context: Context) -> list[Assertion]:
    """Each quantity that was told stands there with its symbol, and not in words."""
    found: list[Assertion] = []
    for path in context["targets"]:
        quantities = _QUANTITY.findall(files[path])
        for fact in context["facts"]:
            found.append(
                (f"{fact['told']} has its symbol", comply(fact, context["variant"]) in quantities)
            )
            found.append((f"{fact['told']} is not in words", fact["told"] not in files[path]))
    return found

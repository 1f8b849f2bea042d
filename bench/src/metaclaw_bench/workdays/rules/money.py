"""House rule: amounts of money carry the currency's code."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metaclaw_bench.workdays.demands import Assertion, Context, Fact
    from metaclaw_bench.workdays.draw import Draw

PLACE = "inline"
FORMS = {"before": "EUR 12.50", "after": "12.50 EUR"}
SAYS = {
    "en": (
        "Always write amounts of money like {}, with the code of the currency, a point and two"
        " decimals."
    ),
    "de": "Schreibe Geldbeträge immer so: {}, also mit Währungskürzel, Punkt und zwei Stellen.",
    "fr": (
        "Écris toujours les montants ainsi : {}, avec le code de la devise, un point et deux"
        " décimales."
    ),
    "es": (
        "Escribe siempre los importes así: {}, con el código de la moneda, un punto y dos"
        " decimales."
    ),
}
TOPIC = {"en": "amounts of money", "de": "Geldbeträge", "fr": "montants", "es": "importes"}
_CURRENCIES = {"EUR": "€", "USD": "$", "GBP": "£"}
_AMOUNT = {
    "before": re.compile(r"(?<![\w.,])[A-Z]{3} \d+\.\d\d(?!\w|[.,]\d)"),
    "after": re.compile(r"(?<![\w.,])\d+\.\d\d [A-Z]{3}(?!\w)"),
}
_OTHER = re.compile(r"[€$£]")


def fact(draw: Draw) -> Fact:
    """An amount in a currency."""
    cents = draw.number(1100, 99900)
    amount, code = f"{cents // 100}.{cents % 100:02d}", draw.random.choice(list(_CURRENCIES))
    decimal = "." if draw.language == "en" else ","
    return {
        "amount": amount,
        "code": code,
        "told": f"{amount.replace('.', decimal)} {draw.words.currencies[code]}",
    }


def comply(fact: Fact, variant: str) -> str:
    """The amount as it must be written."""
    return (
        f"{fact['code']} {fact['amount']}"
        if variant == "before"
        else f"{fact['amount']} {fact['code']}"
    )


def violate(fact: Fact, variant: str) -> tuple[str, ...]:
    """A sign for the code, a comma for the point, no blank, the code on the other side."""
    amount, sign = fact["amount"], _CURRENCIES[fact["code"]]
    right = comply(fact, variant)
    return (
        f"{sign}{amount}",
        right.replace(".", ","),
        right.replace(" ", ""),
        comply(fact, "after" if variant == "before" else "before"),
    )


def check(files: Mapping[str, str], context: Context) -> list[Assertion]:
    """Each amount that was told stands there with its code; there is no sign of a currency."""
    found: list[Assertion] = []
    for path in context["targets"]:
        amounts = _AMOUNT[context["variant"]].findall(files[path])
        for fact in context["facts"]:
            found.append(
                (
                    f"{fact['told']} is written with its code",
                    comply(fact, context["variant"]) in amounts,
                )
            )
        found.append(("no sign stands for a currency", not _OTHER.search(files[path])))
    return found

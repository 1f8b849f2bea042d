"""House rule: temperatures have a sign, the number, an underscore and C."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metaclaw_bench.workdays.demands import Assertion, Context, Fact
    from metaclaw_bench.workdays.draw import Draw

PLACE = "inline"
FORMS = {"signed": "+18_C"}
SAYS = {"en": "Always write temperatures with a sign, an underscore and C, like {}."}
TOPIC = {"en": "temperatures"}
_TEMPERATURE = re.compile(r"(?<![\w+-])[+-]\d+_C(?!\w)")


def fact(draw: Draw) -> Fact:
    """So warm or so cold."""
    value, sign = str(draw.number(1, 60)), draw.random.choice("+-")
    where = "above" if sign == "+" else "below"
    return {"value": value, "sign": sign, "told": f"{value} degrees {where} zero"}


def comply(fact: Fact, variant: str) -> str:
    """The temperature as it must be written."""
    return f"{fact['sign']}{fact['value']}_C"


def violate(fact: Fact, variant: str) -> tuple[str, ...]:
    """In words, without the sign, the other sign, with a space."""
    value, sign = fact["value"], fact["sign"]
    other = "-" if sign == "+" else "+"
    return fact["told"], f"{value}_C", f"{other}{value}_C", f"{sign}{value} C"


def check(files: Mapping[str, str], context: Context) -> list[Assertion]:
    """Each temperature that was told stands there so, and not in words."""
    found: list[Assertion] = []
    for path in context["targets"]:
        temperatures = _TEMPERATURE.findall(files[path])
        for fact in context["facts"]:
            wanted = comply(fact, context["variant"])
            found.append((f"{fact['told']} has its form", wanted in temperatures))
            found.append((f"{fact['told']} is not in words", fact["told"] not in files[path]))
    return found

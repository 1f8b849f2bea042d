"""House rule: durations have hours and minutes with a slash between them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metaclaw_bench.workdays.demands import Assertion, Context, Fact
    from metaclaw_bench.workdays.draw import Draw

PLACE = "inline"
FORMS = {"slash": "3h/25m"}
SAYS = {"en": "Always write durations with hours, a slash and minutes, like {}."}
TOPIC = {"en": "durations"}
_DURATION = re.compile(r"(?<![\w/])\d+h/\d+m(?![\w/])")


def fact(draw: Draw) -> Fact:
    """So long."""
    hours, minutes = str(draw.number(2, 23)), str(draw.number(10, 59))
    return {"hours": hours, "minutes": minutes, "told": f"{hours} hours and {minutes} minutes"}


def comply(fact: Fact, variant: str) -> str:
    """The duration as it must be written."""
    return f"{fact['hours']}h/{fact['minutes']}m"


def violate(fact: Fact, variant: str) -> tuple[str, ...]:
    """In words, without the slash, the wrong way round, with a colon."""
    hours, minutes = fact["hours"], fact["minutes"]
    return fact["told"], f"{hours}h {minutes}m", f"{minutes}m/{hours}h", f"{hours}:{minutes}"


def check(files: Mapping[str, str], context: Context) -> list[Assertion]:
    """Each duration that was told stands there so, and not in words."""
    found: list[Assertion] = []
    for path in context["targets"]:
        durations = _DURATION.findall(files[path])
        for fact in context["facts"]:
            wanted = comply(fact, context["variant"])
            found.append((f"{fact['told']} has its slash", wanted in durations))
            found.append((f"{fact['told']} is not in words", fact["told"] not in files[path]))
    return found

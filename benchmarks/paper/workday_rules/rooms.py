"""House rule: rooms have the floor, a hyphen, R and the number."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metaclaw_bench.workdays.demands import Assertion, Context, Fact
    from metaclaw_bench.workdays.draw import Draw

PLACE = "inline"
FORMS = {"floor first": "4-R17"}
SAYS = {"en": "Always write rooms with the floor, a hyphen, R and the number, like {}."}
TOPIC = {"en": "rooms"}
_ROOM = re.compile(r"(?<![\w-])\d+-R\d+(?![\w-])")


def fact(draw: Draw) -> Fact:
    """A room on a floor."""
    room, floor = str(draw.number(10, 99)), str(draw.number(1, 20))
    return {"room": room, "floor": floor, "told": f"room {room} on floor {floor}"}


def comply(fact: Fact, variant: str) -> str:
    """The room as it must be written."""
    return f"{fact['floor']}-R{fact['room']}"


def violate(fact: Fact, variant: str) -> tuple[str, ...]:
    """In words, the room first, without the letter, with a full stop."""
    room, floor = fact["room"], fact["floor"]
    return fact["told"], f"R{room}-{floor}", f"{floor}-{room}", f"{floor}.R{room}"


def check(files: Mapping[str, str], context: Context) -> list[Assertion]:
    """Each room that was told stands there so, and not in words."""
    found: list[Assertion] = []
    for path in context["targets"]:
        rooms = _ROOM.findall(files[path])
        for fact in context["facts"]:
            wanted = comply(fact, context["variant"])
            found.append((f"{fact['told']} has its form", wanted in rooms))
            found.append((f"{fact['told']} is not in words", fact["told"] not in files[path]))
    return found

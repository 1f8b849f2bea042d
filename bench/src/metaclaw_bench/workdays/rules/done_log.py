"""House rule: a task that has a number is entered into done.log."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metaclaw_bench.workdays.demands import Assertion, Context, Fact
    from metaclaw_bench.workdays.draw import Draw

PLACE = "log"
LOG = "done.log"
FORMS = {
    "pipes": "[DONE] 2026-01-31 | T-100 | stock counted",
    "dashes": "2026-01-31 - T-100 - stock counted",
}
SAYS = {
    "en": (
        "Whenever a task has a number, always add a line to done.log like {} (at most 80 characters"
        " at the end)."
    ),
    "de": (
        "Füge immer, wenn eine Aufgabe eine Nummer hat, eine Zeile an done.log an wie {} (am Ende"
        " höchstens 80 Zeichen)."
    ),
    "fr": (
        "Ajoute toujours une ligne à done.log quand une tâche porte un numéro, comme {} (80"
        " caractères au plus à la fin)."
    ),
    "es": (
        "Añade siempre una línea a done.log cuando una tarea tiene número, como {} (80 caracteres"
        " como máximo al final)."
    ),
}
TOPIC = {
    "en": "lines of done.log",
    "de": "Zeilen in done.log",
    "fr": "lignes de done.log",
    "es": "líneas de done.log",
}
# A time behind the date does no harm.
_DATE = r"(?P<date>\d{4}-\d\d-\d\d)(?:[T ]\d\d:\d\d(?::\d\d)?(?:[+-]\d\d:\d\d|Z)?)?"
_LINE = {
    "pipes": re.compile(rf"\[DONE\] {_DATE} \| (?P<task>\S+) \| (?P<summary>.+)"),
    "dashes": re.compile(rf"{_DATE} - (?P<task>\S+) - (?P<summary>.+)"),
}
_MOST_CHARS = 80


def fact(draw: Draw) -> Fact:
    """The number of a task."""
    task = f"T-{draw.number(1000, 9999)}"
    told = draw.wording(draw.words.numbered).format(task=task, date=draw.date.isoformat())
    return {"date": draw.date.isoformat(), "task": task, "summary": draw.thing(), "told": told}


def comply(fact: Fact, variant: str) -> str:
    """The line."""
    if variant == "pipes":
        return f"[DONE] {fact['date']} | {fact['task']} | {fact['summary']}"
    return f"{fact['date']} - {fact['task']} - {fact['summary']}"


def violate(fact: Fact, variant: str) -> tuple[str, ...]:
    """No line, no mark, no summary, a summary that does not end, the other form."""
    line = comply(fact, variant)
    other = comply(fact, "dashes" if variant == "pipes" else "pipes")
    no_summary = line.removesuffix(fact["summary"]).rstrip(" |-")
    return (
        f"DONE {fact['task']}: {fact['summary']}",
        no_summary,
        other,
        line + " and so on" * 9,
        line.replace(fact["date"] + " ", ""),
    )


def check(files: Mapping[str, str], context: Context) -> list[Assertion]:
    """The log has this task's line in the right form; what else stands there does not matter."""
    found: list[Assertion] = []
    form = _LINE[context["variant"]]
    lines = [line.strip() for line in files.get(LOG, "").split("\n")]
    for fact in context["facts"]:
        match = next(
            (
                match
                for line in lines
                if (match := form.fullmatch(line)) and match["task"] == fact["task"]
            ),
            None,
        )
        found.append(
            (f"done.log names {fact['task']}", any(fact["task"] in line for line in lines))
        )
        found.append(
            (
                "the line has its form and the date",
                match is not None and match["date"] == fact["date"],
            )
        )
        found.append(
            (
                "what was done takes 80 characters at most",
                match is not None and len(match["summary"]) <= _MOST_CHARS,
            )
        )
    return found

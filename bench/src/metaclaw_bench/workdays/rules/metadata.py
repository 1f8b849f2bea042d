"""House rule: a Markdown file begins with three lines about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metaclaw_bench.workdays.demands import Assertion, Context, Fact
    from metaclaw_bench.workdays.draw import Draw

PLACE = "top"
FORMS = {
    "author": "created_at: 2026-01-31, author: Ann, status: pending",
    "owner": "created: 2026-01-31, owner: Ann, state: pending",
}
SAYS = {
    "en": (
        "Always begin Markdown files with three lines, like {} (status in English: pending,"
        " in_progress or done)."
    ),
    "de": (
        "Beginne Markdown-Dateien immer mit drei Zeilen wie {} (Status auf Englisch: pending,"
        " in_progress oder done)."
    ),
    "fr": (
        "Commence toujours les fichiers Markdown par trois lignes, comme {} (statut en anglais :"
        " pending, in_progress ou done)."
    ),
    "es": (
        "Empieza siempre los archivos Markdown con tres líneas, como {} (estado en inglés: pending,"
        " in_progress o done)."
    ),
}
TOPIC = {
    "en": "first lines of Markdown files",
    "de": "erste Zeilen von Markdown-Dateien",
    "fr": "premières lignes des fichiers Markdown",
    "es": "primeras líneas de los archivos Markdown",
}
_KEYS = {"author": ("created_at", "author", "status"), "owner": ("created", "owner", "state")}
_STATES = ("pending", "in_progress", "done")


def fact(draw: Draw) -> Fact:
    """When, by whom, how far."""
    state = draw.random.choice(_STATES)
    person, date = draw.person().split()[0], draw.date.isoformat()
    told = draw.wording(draw.words.about).format(
        person=person, date=date, state=draw.words.states[state]
    )
    return {"date": date, "person": person, "state": state, "told": told}


def comply(fact: Fact, variant: str) -> str:
    """The three lines."""
    return "\n".join(
        f"{key}: {fact[what]}"
        for key, what in zip(_KEYS[variant], ("date", "person", "state"), strict=True)
    )


def violate(fact: Fact, variant: str) -> tuple[str, ...]:
    """A line left out, the other names, the state in other words."""
    lines = comply(fact, variant).split("\n")
    other = comply(fact, "owner" if variant == "author" else "author")
    return (
        "\n".join(lines[:2]),
        "\n".join(lines[1:]),
        other,
        "\n".join([*lines[:2], f"{_KEYS[variant][2]}: {fact['state'].upper()}"]),
    )


def check(files: Mapping[str, str], context: Context) -> list[Assertion]:
    """Each of the three stands in one of the first lines (a fence of dashes does not count) with
    what was told.
    """
    found: list[Assertion] = []
    for path in context["targets"]:
        lines = [line.strip() for line in files[path].strip().split("\n") if line.strip(" -\r")][:3]
        pairs = {
            key.strip(): value.strip().strip("'\"")
            for key, _, value in (line.partition(":") for line in lines)
        }
        for fact in context["facts"]:
            when, who, how = _KEYS[context["variant"]]
            found.append(
                (f"{when} is {fact['date']}", pairs.get(when, "").startswith(fact["date"]))
            )
            found.append((f"{who} is {fact['person']}", fact["person"] in pairs.get(who, "")))
            found.append((f"{how} is {fact['state']}", pairs.get(how) == fact["state"]))
    return found

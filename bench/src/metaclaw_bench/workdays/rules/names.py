"""House rule: a file for which only a title is given is called by date and title."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metaclaw_bench.workdays.demands import Assertion, Context, Fact
    from metaclaw_bench.workdays.draw import Draw

PLACE = "name"
FORMS = {"snake": "20260131_stock_list.txt", "kebab": "stock-list-20260131.txt"}
SAYS = {
    "en": "Always name a file for which I give only a title with the date and the title, like {}.",
    "de": (
        "Nenne immer Dateien, zu denen ich nur einen Titel angebe, nach Datum und Titel, so wie {}."
    ),
    "fr": (
        "Nomme toujours les fichiers dont je ne donne que le titre avec la date et le titre,"
        " comme {}."
    ),
    "es": (
        "Nombra siempre los archivos de los que doy solo el título con la fecha y el título,"
        " como {}."
    ),
}
TOPIC = {
    "en": "file names",
    "de": "Dateinamen",
    "fr": "noms de fichiers",
    "es": "nombres de archivo",
}
_NAME = {
    "snake": re.compile(r"(?P<date>\d{8})_[a-z][a-z0-9]*(?:_[a-z0-9]+)*\.[a-z0-9]+"),
    "kebab": re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*-(?P<date>\d{8})\.[a-z0-9]+"),
}


def fact(draw: Draw) -> Fact:
    """A title, on a date."""
    title = draw.title()
    told = draw.wording(draw.words.titled).format(title=title, date=draw.date.isoformat())
    return {"date": draw.date.strftime("%Y%m%d"), "title": title, "ext": "txt", "told": told}


def comply(fact: Fact, variant: str) -> str:
    """The name as it must be."""
    words = fact["title"].split()
    if variant == "snake":
        return f"{fact['date']}_{'_'.join(words)}.{fact['ext']}"
    return f"{'-'.join(words)}-{fact['date']}.{fact['ext']}"


def violate(fact: Fact, variant: str) -> tuple[str, ...]:
    """No date, a date with dashes, dashes for underscores (or the reverse), capitals."""
    words, date, ext = fact["title"].split(), fact["date"], fact["ext"]
    other = comply(fact, "kebab" if variant == "snake" else "snake")
    dashed = f"{date[:4]}-{date[4:6]}-{date[6:]}"
    return (
        f"{'_'.join(words)}.{ext}",
        f"{dashed}_{'_'.join(words)}.{ext}",
        f"{date}-{'-'.join(words)}.{ext}",
        f"{date}_{''.join(word.title() for word in words)}.{ext}",
        other,
    )


def check(files: Mapping[str, str], context: Context) -> list[Assertion]:
    """Every file with what was asked for is called by the date and a title in small letters."""
    found: list[Assertion] = []
    for path in context["targets"]:
        match = _NAME[context["variant"]].fullmatch(path.rsplit("/", 1)[-1])
        for fact in context["facts"]:
            found.append(
                (f"the name has the form of {FORMS[context['variant']]}", match is not None)
            )
            found.append(
                (
                    f"the name has the date {fact['date']}",
                    match is not None and match["date"] == fact["date"],
                )
            )
            found.append((f"the name ends with .{fact['ext']}", path.endswith("." + fact["ext"])))
    return found

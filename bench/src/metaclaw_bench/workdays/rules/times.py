"""House rule: points in time carry seconds and an offset."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metaclaw_bench.workdays.demands import Assertion, Context, Fact
    from metaclaw_bench.workdays.draw import Draw

PLACE = "inline"
FORMS = {
    "+08:00": "2026-01-31T07:05:00+08:00",
    "+09:00": "2026-01-31T07:05:00+09:00",
    "utc": "2026-01-31T07:05:00Z",
}
SAYS = {
    "en": "Always write times like {}, with the date, a T, seconds and the offset.",
    "de": "Schreibe Zeitpunkte immer so: {}, also mit Datum, T, Sekunden und Zeitzone.",
    "fr": "Écris toujours les heures ainsi : {}, avec la date, un T, les secondes et le fuseau.",
    "es": "Escribe siempre las horas así: {}, con la fecha, una T, los segundos y la zona horaria.",
}
TOPIC = {"en": "times", "de": "Zeitpunkte", "fr": "heures", "es": "horas"}
_SUFFIX = {"+08:00": "+08:00", "+09:00": "+09:00", "utc": "Z"}
_CLOCK = re.compile(r"(?<![\d.,])\d{1,2}[:h]\d{2}(?!\d)")
_FULL = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:[+-]\d\d:\d\d|Z)")
_ZEROS = re.compile(r"\.0+(?=[Z+-])")


def fact(draw: Draw) -> Fact:
    """A time of the day."""
    clock = draw.clock()
    told = (
        f"{draw.date.isoformat()} {clock}" if draw.level < 0.5 else f"{clock}, {draw.long_date()}"
    )
    return {"date": draw.date.isoformat(), "clock": clock, "told": told}


def comply(fact: Fact, variant: str) -> str:
    """The time as it must be written."""
    return f"{fact['date']}T{fact['clock']}:00{_SUFFIX[variant]}"


def violate(fact: Fact, variant: str) -> tuple[str, ...]:
    """The usual slips: no offset, a blank for the T, no seconds, another offset."""
    date, clock, suffix = fact["date"], fact["clock"], _SUFFIX[variant]
    others = tuple(f"{date}T{clock}:00{other}" for other in _SUFFIX.values() if other != suffix)
    return (
        f"{date}T{clock}:00",
        f"{date} {clock}:00{suffix}",
        f"{date}T{clock}{suffix}",
        f"{date} {clock}",
        *others,
    )


def check(files: Mapping[str, str], context: Context) -> list[Assertion]:
    """Each time that was told stands there in full; none stands there in another form."""
    suffix = _SUFFIX[context["variant"]]
    found: list[Assertion] = []
    for path in context["targets"]:
        full = [_ZEROS.sub("", time) for time in _FULL.findall(files[path])]
        for fact in context["facts"]:
            found.append(
                (
                    f"{fact['told']} is written with seconds and {suffix}",
                    comply(fact, context["variant"]) in full,
                )
            )
        rest = _FULL.sub("", files[path])
        found.append(
            (
                "no time is in another form",
                not _CLOCK.search(rest) and all(time.endswith(suffix) for time in full),
            )
        )
    return found

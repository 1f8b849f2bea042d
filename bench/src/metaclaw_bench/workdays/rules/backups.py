"""House rule: what a file held before it was changed lies beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metaclaw_bench.workdays.demands import Assertion, Context, Fact
    from metaclaw_bench.workdays.draw import Draw

PLACE = "beside"
FORMS = {".bak": "stock.txt.bak", ".orig": "stock.txt.orig"}
SAYS = {
    "en": (
        "Before you change an existing file, always copy it to a file beside it, like {} for"
        " stock.txt."
    ),
    "de": (
        "Kopiere immer eine vorhandene Datei, bevor du sie änderst, in eine Datei daneben, wie {}"
        " für stock.txt."
    ),
    "fr": (
        "Garde toujours une copie d'un fichier existant avant de le modifier, comme {} pour"
        " stock.txt."
    ),
    "es": (
        "Guarda siempre una copia de un archivo existente antes de cambiarlo, como {} para"
        " stock.txt."
    ),
}
TOPIC = {
    "en": "changing files",
    "de": "Ändern von Dateien",
    "fr": "modification de fichiers",
    "es": "cambios en archivos",
}


def fact(draw: Draw) -> Fact:
    """A file that is there, and what it holds."""
    return {
        "path": f"{draw.folder}/{draw.file_stem()}.txt",
        "original": f"{draw.label()}: {draw.thing_said()}",
        "told": "",
    }


def comply(fact: Fact, variant: str) -> str:
    """What the file beside it must hold."""
    return fact["original"]


def violate(fact: Fact, variant: str) -> tuple[str, ...]:
    """No copy, an empty one, a copy of something else."""
    return ("", " ", fact["original"] + " (new)")


def choices(fact: Fact, variant: str) -> tuple[str, tuple[str, ...]]:
    """What is done in which order."""
    path, other = fact["path"], next(form for form in FORMS if form != variant)
    return f"cp {path} {path}{variant}; edit {path}", (
        f"edit {path}",
        f"edit {path}; cp {path} {path}{variant}",
        f"mv {path} {path}{variant}",
        f"cp {path} {path}{other}; edit {path}",
        f"touch {path}{variant}; edit {path}",
    )


def check(files: Mapping[str, str], context: Context) -> list[Assertion]:
    """The file beside it holds what was there before, and the file itself does not any more."""
    found: list[Assertion] = []
    for fact in context["facts"]:
        copy = files.get(fact["path"] + context["variant"])
        found.append((f"{fact['path']}{context['variant']} is there", copy is not None))
        found.append(
            (
                "it holds what was there before",
                copy is not None and copy.strip() == fact["original"].strip(),
            )
        )
        found.append(
            (
                f"{fact['path']} was changed",
                files.get(fact["path"], "").strip() != fact["original"].strip(),
            )
        )
    return found

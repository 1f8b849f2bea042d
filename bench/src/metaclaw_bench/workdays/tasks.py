"""File-checks: what is asked, the reference answer, and near misses."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from metaclaw_bench.questions import Feedback, FileCheck, Round
from metaclaw_bench.workdays.checker import check_parts
from metaclaw_bench.workdays.corrections import correction
from metaclaw_bench.workdays.demands import Fact, Part, Rule, Target
from metaclaw_bench.workdays.draw import Draw
from metaclaw_bench.workdays.model import Answer, Item

LOG = "done.log"
COMMAND = "python scripts/checker.py"
_COLLECTS_FROM = 0.75
_NOISE_LINES = 4
_MOST_NEAR_MISSES = 3


@dataclass(frozen=True, slots=True)
class InForce:
    """A rule and how it is meant. `has_changed`: it was meant otherwise before."""

    rule: Rule
    variant: str
    has_changed: bool = False

    def corrects(self, draw: Draw) -> str:
        """What the user says of the rule after a miss. Drawn aside: how it is worded changes
        nothing else of the day.
        """
        if draw.is_plain:
            return self.rule.says(self.variant, draw.language)
        draw.corrections += 1
        chance = Random(f"{draw.seed} {draw.folder} {draw.user} {self.rule.id} {draw.corrections}")
        return correction(self.rule, self.variant, draw.language, chance)


@dataclass(frozen=True, slots=True)
class _Demand:
    """A rule in force, with a fact and the piece of text that makes it of it."""

    law: InForce
    fact: Fact
    piece: str

    @property
    def place(self) -> str:
        return self.law.rule.place


@dataclass(frozen=True, slots=True)
class _Sheet:
    """One file to be written: its lines (a label, and what is said of it) and what the rules
    demand.
    """

    labels: tuple[str, ...]
    said: str
    path: str
    original: str | None
    demands: tuple[_Demand, ...]

    def at(self, place: str) -> list[_Demand]:
        return [demand for demand in self.demands if demand.place == place]


def make_file_item(
    draw: Draw, groups: Sequence[Sequence[InForce]], number: int, begins_with: dict[str, str]
) -> Item:
    """A file-check with one file per group of rules. Files that must be there before are added to
    `begins_with`.
    """
    sheets = [_make_sheet(draw, laws) for laws in groups]
    for sheet in sheets:
        if sheet.original is not None:
            begins_with[sheet.path] = sheet.original + "\n"
    question = _ask_for_all(draw, sheets, begins_with)
    parts = tuple(_demand(draw, sheet, begins_with) for sheet in sheets)
    book = {law.rule.id: law.rule for laws in groups for law in laws}
    reference = Answer(files=_write_all(sheets))
    round_ = Round(f"r{number}", question, FileCheck(_command(parts)), _feedback(draw, groups))
    effort = len(
        check_parts(parts, {**begins_with, **reference.files}, lambda rule: book[rule].check)
    )
    return Item(round_, tuple(book), reference, _near_misses(sheets), parts, book, effort=effort)


def _make_sheet(draw: Draw, laws: Sequence[InForce]) -> _Sheet:
    ext = "md" if any(law.rule.place == "top" for law in laws) else "txt"
    inline = sum(law.rule.place == "inline" for law in laws)
    labels = tuple(draw.label() for _ in range(max(1, inline)))
    path, original = f"{draw.folder}/{labels[0].lower().replace(' ', '_')}.{ext}", None
    demands: list[_Demand] = []
    for law in laws:
        fact = dict(law.rule.fact(draw))
        if law.rule.place == "name":
            fact["ext"] = ext
        if law.rule.place == "beside":
            fact["path"], original = path, fact["original"]
        if law.rule.place == "log":
            fact["summary"] = labels[0]
        demands.append(_Demand(law, fact, law.rule.comply(fact, law.variant)))
    return _Sheet(labels, draw.thing_said(), path, original, tuple(demands))


def _path_of(draw_folder: str, sheet: _Sheet) -> str:
    named = sheet.at("name")
    return f"{draw_folder}/{named[0].piece}" if named else sheet.path


def _write_all(sheets: Sequence[_Sheet]) -> dict[str, str]:
    """The files that an agent who knows the rules writes."""
    files: dict[str, str] = {}
    for sheet in sheets:
        path = _path_of(sheet.path.split("/")[0], sheet)
        files[path] = _text_of(sheet)
        for demand in sheet.at("beside"):
            if demand.piece:
                files[path + demand.law.variant] = demand.piece + "\n"
        for demand in sheet.at("log"):
            files[LOG] = files.get(LOG, "") + demand.piece + "\n"
    return files


def _text_of(sheet: _Sheet) -> str:
    said = [demand.piece for demand in sheet.at("inline")] or [sheet.said]
    lines = [f"{label}: {what}" for label, what in zip(sheet.labels, said, strict=True)]
    around = {
        place: [demand.piece for demand in sheet.at(place)] for place in ("top", "list", "bottom")
    }
    return "\n".join([*around["top"], *lines, *around["list"], *around["bottom"]]) + "\n"


def _ask_for_all(draw: Draw, sheets: Sequence[_Sheet], begins_with: dict[str, str]) -> str:
    asked = [_ask(draw, sheet, begins_with) for sheet in sheets]
    return " ".join(
        [asked[0], *(draw.wording(draw.words.second).format(task=task) for task in asked[1:])]
    )


def _ask(draw: Draw, sheet: _Sheet, begins_with: dict[str, str]) -> str:
    told = [demand.fact["told"] for demand in sheet.at("inline")] or [sheet.said]
    lines = [f"{label}: {what}" for label, what in zip(sheet.labels, told, strict=True)]
    named, words = sheet.at("name"), draw.words
    if named:
        asked = draw.wording(words.make).format(
            folder=draw.folder, ext=named[0].fact["ext"], lines="; ".join(lines)
        )
    elif sheet.original is not None:
        asked = draw.wording(words.change).format(
            path=sheet.path, original=sheet.original, lines="; ".join(lines)
        )
    elif draw.level >= _COLLECTS_FROM and len(lines) > 1:
        asked = _ask_to_collect(draw, sheet, lines, begins_with)
    else:
        asked = draw.wording(words.write).format(path=sheet.path, lines="; ".join(lines))
    extras = [
        demand.fact["told"]
        for place in ("list", "bottom", "top", "name", "log")
        for demand in sheet.at(place)
    ]
    return " ".join([asked, *extras])


def _ask_to_collect(
    draw: Draw, sheet: _Sheet, lines: Sequence[str], begins_with: dict[str, str]
) -> str:
    """What is to be written stands in a file of notes, between what does not matter."""
    notes = f"{draw.folder}/notes_{draw.fresh_number(100, 999)}.txt"
    noise = [f"{draw.label()}: {draw.thing_said()}" for _ in range(_NOISE_LINES)]
    begins_with[notes] = (
        "\n".join(draw.random.sample([*noise, *lines], len(noise) + len(lines))) + "\n"
    )
    return draw.wording(draw.words.collect).format(
        notes=notes, labels=", ".join(sheet.labels), path=sheet.path
    )


def _demand(draw: Draw, sheet: _Sheet, begins_with: Mapping[str, str]) -> Part:
    target: Target = {"path": sheet.path}
    if sheet.at("name"):
        target = {"folder": draw.folder, "known": sorted(begins_with)}
    holds = [*sheet.labels] if sheet.at("inline") else [sheet.labels[0], sheet.said]
    by_rule: dict[str, list[_Demand]] = {}
    for demand in sheet.demands:
        by_rule.setdefault(demand.law.rule.id, []).append(demand)
    rules = [
        (rule, demands[0].law.variant, [demand.fact for demand in demands])
        for rule, demands in by_rule.items()
    ]
    return {"target": target, "holds": holds, "rules": rules}


def _command(parts: Sequence[Part]) -> str:
    return f"{COMMAND} {shlex.quote(json.dumps(parts, sort_keys=True))}"


def _feedback(draw: Draw, groups: Sequence[Sequence[InForce]]) -> Feedback:
    laws = {law.rule.id: law for group in groups for law in group}
    changed = [draw.words.changed] if any(law.has_changed for law in laws.values()) else []
    said = [law.corrects(draw) for law in laws.values()]
    return Feedback(
        draw.random.choice(draw.words.right),
        "\n".join([" ".join([draw.words.wrong, *changed]), *said, draw.words.missing]),
    )


def _near_misses(sheets: Sequence[_Sheet]) -> tuple[Answer, ...]:
    """For each demand of each rule, a few answers that miss it and nothing else; and one that
    leaves out what was asked for.
    """
    misses: list[Answer] = []
    for at, sheet in enumerate(sheets):
        for nth, demand in enumerate(sheet.demands):
            for wrong in demand.law.rule.violate(demand.fact, demand.law.variant)[
                :_MOST_NEAR_MISSES
            ]:
                demands = (
                    *sheet.demands[:nth],
                    replace(demand, piece=wrong),
                    *sheet.demands[nth + 1 :],
                )
                misses.append(
                    Answer(
                        files=_write_all(
                            [*sheets[:at], replace(sheet, demands=demands), *sheets[at + 1 :]]
                        )
                    )
                )
        silent = replace(sheet, labels=("?", *sheet.labels[1:]))
        misses.append(Answer(files=_write_all([*sheets[:at], silent, *sheets[at + 1 :]])))
    return tuple(misses)

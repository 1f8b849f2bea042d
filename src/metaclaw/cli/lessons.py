"""`metaclaw lessons`: what was learned from tool calls that failed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from metaclaw.cli.client import Facts, read, request, segment
from metaclaw.cli.output import (
    Columns,
    CommandOutput,
    ListingGroup,
    answers,
    brief,
    counted,
    dated,
    described,
    fact_lines,
    listing,
    short,
)
from metaclaw.domain.status import reason_words
from metaclaw.errors import SkillError

_COLUMNS: Columns = {
    "LESSON": "name",
    "STATE": "state",
    "PROJECT": lambda one: one["workspace"] or "all",
    "BEFORE": "before",
    "SINCE": "since",
    "SPARED": "avoided",
    "WHY": lambda one: short(reason_words(one["reason"] or ""), 60),
    "TEXT": brief("text", 90),
}
_FACTS: Columns = {
    "state": "state",
    "project": _COLUMNS["PROJECT"],
    "failure": lambda one: one["signature"] or "you corrected the agent",
    "since": dated("since_when"),
    "came": lambda one: f"in {counted(one['before'], 'session')} before, {one['since']} since",
    "spared": lambda one: counted(one["avoided"], "session"),
}


_BACK: Final = "Back with: metaclaw skills restore {}"


@click.group(cls=ListingGroup)
def lessons() -> None:
    """List lessons: one line each, learned from tool calls that failed. Show one, or take it back."""


@lessons.command(name="list")
@answers
def list_(home: Path) -> CommandOutput:
    """List lessons, with the sessions in which their failure came before they were in force, and of
    those that began with the lesson in their prompt, how many failed and how many followed it.
    """
    facts = read(home, "/api/lessons")
    return CommandOutput(facts, _listed(facts["lessons"]))


def _listed(found: list[Facts]) -> Iterator[str]:
    if not found:
        yield "No lessons yet: they come from calls that fail in two sessions and then work."
        return
    yield from listing(found, _COLUMNS, optional=("PROJECT", "WHY"))
    if any(one["state"] == "asked" for one in found):
        yield "Those asked about wait for you: metaclaw candidates list --standing waiting"


@lessons.command()
@click.argument("name")
@answers
def show(home: Path, name: str) -> CommandOutput:
    """Show one lesson: its text, the failure it came from, and how often that came."""
    found = _lesson(home, name)
    return CommandOutput(found, _shown(found))


def _shown(found: Facts) -> Iterator[str]:
    yield found["text"]
    because = [("because", reason_words(found["reason"]))] if found["reason"] else []
    taught = (("taught by", turn) for turn in found["turns"])
    yield from fact_lines([*described(found, _FACTS), *because, *taught])
    if found["state"] == "withdrawn":
        yield _BACK.format(found["name"])
    elif found["state"] != "asked":
        yield f"Take it back: metaclaw lessons undo {found['name']}"


@lessons.command()
@click.argument("name")
@answers
def undo(home: Path, name: str) -> CommandOutput:
    """Take a lesson out of force."""
    state = _lesson(home, name)["state"]
    if state == "asked":
        raise SkillError(f"{name} is not in force: metaclaw candidates reject turns it away")
    if state == "withdrawn":
        raise SkillError(f"{name} was withdrawn already. {_BACK.format(name)}")
    facts = request(home, "POST", f"/api/skills/{segment(name)}/retire", {})
    return CommandOutput(facts, f"{name} is no longer in force. {_BACK.format(name)}")


def _lesson(home: Path, name: str) -> Facts:
    for one in read(home, "/api/lessons")["lessons"]:
        if one["name"] == name:
            found: Facts = one
            return found
    raise SkillError(f"there is no lesson named {name}; metaclaw lessons list shows all")

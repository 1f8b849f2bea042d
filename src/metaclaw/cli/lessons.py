"""`metaclaw lessons`: what was learned from tool calls that failed."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from metaclaw.cli.client import objects, read, request, segment
from metaclaw.cli.output import (
    home_and_json,
    moment,
    plain,
    print_facts,
    print_json,
    print_table,
    short,
)
from metaclaw.errors import SkillError

if TYPE_CHECKING:
    from metaclaw.domain.chat import Json

_MOST_TEXT = 90
_WHERE = "metaclaw lessons list shows all"


@click.group(invoke_without_command=True)
@click.pass_context
def lessons(context: click.Context) -> None:
    """List lessons: one line each, learned from tool calls that failed. Show one, or take it back."""
    if context.invoked_subcommand is None:
        context.invoke(list_, as_json=False)


@lessons.command(name="list")
@home_and_json
def list_(home: Path, as_json: bool) -> None:
    """List lessons, with the sessions in which their failure came before and since."""
    facts = read(home, "/api/lessons")
    found = objects(facts["lessons"])
    if as_json:
        print_json(facts)
    elif not found:
        click.echo("No lessons yet: they come from calls that fail in two sessions and then work.")
    else:
        print_table(
            ("LESSON", "STATE", "PROJECT", "BEFORE", "SINCE", "SPARED", "TEXT"),
            [_row(one) for one in found],
        )
        if any(one["state"] == "asked" for one in found):
            click.echo(
                "Those asked about wait for you: metaclaw candidates list --standing waiting"
            )


@lessons.command()
@click.argument("name")
@home_and_json
def show(home: Path, name: str, as_json: bool) -> None:
    """Show one lesson: its text, the failure it came from, and how often that came."""
    found = _lesson(home, name)
    if as_json:
        print_json(found)
        return
    click.echo(plain(found["text"]))
    print_facts(
        [
            ("state", found["state"]),
            ("project", found["workspace"] or "all"),
            ("failure", found["signature"] or "you corrected the agent"),
            ("since", moment(found["since_when"])),
            ("sessions before", found["before"]),
            ("sessions since", found["since"]),
            ("sessions spared", found["avoided"]),
        ]
    )


@lessons.command()
@click.argument("name")
@home_and_json
def undo(home: Path, name: str, as_json: bool) -> None:
    """Take a lesson out of force."""
    found = _lesson(home, name)
    if found["state"] == "asked":
        raise SkillError(f"{plain(name)} is not in force: metaclaw candidates reject turns it away")
    facts = request(home, "POST", f"/api/skills/{segment(name)}/retire", {})
    if as_json:
        print_json(facts)
    else:
        click.echo(
            f"{plain(name)} is no longer in force. Back with: metaclaw skills restore {name}"
        )


def _lesson(home: Path, name: str) -> "dict[str, Json]":
    for one in objects(read(home, "/api/lessons")["lessons"]):
        if one["name"] == name:
            return one
    raise SkillError(f"there is no lesson named {plain(name)}; {_WHERE}")


def _row(one: "dict[str, Json]") -> tuple[object, ...]:
    return (
        one["name"],
        one["state"],
        one["workspace"] or "all",
        one["before"],
        one["since"],
        one["avoided"],
        short(str(one["text"]), _MOST_TEXT),
    )

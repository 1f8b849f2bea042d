"""`metaclaw lessons`: what was learned from tool calls that failed."""

from collections.abc import Iterator
from pathlib import Path

import click

from metaclaw.cli.client import Facts, read, request, segment
from metaclaw.cli.output import CommandOutput, answers, counted, fact_lines, moment, short, table
from metaclaw.errors import SkillError

_MOST_TEXT = 90


@click.group(invoke_without_command=True)
@click.pass_context
def lessons(context: click.Context) -> None:
    """List lessons: one line each, learned from tool calls that failed. Show one, or take it back."""
    if context.invoked_subcommand is None:
        context.invoke(list_, as_json=False)


@lessons.command(name="list")
@answers
def list_(home: Path) -> CommandOutput:
    """List lessons, with the sessions in which their failure came before and since."""
    facts = read(home, "/api/lessons")
    return CommandOutput(facts, _listed(facts))


def _listed(facts: Facts) -> Iterator[str]:
    found = facts["lessons"]
    if not found:
        yield "No lessons yet: they come from calls that fail in two sessions and then work."
        return
    yield from table(
        ("LESSON", "STATE", "PROJECT", "BEFORE", "SINCE", "SPARED", "TEXT"),
        [
            (
                one["name"],
                one["state"],
                one["workspace"] or "all",
                one["before"],
                one["since"],
                one["avoided"],
                short(one["text"], _MOST_TEXT),
            )
            for one in found
        ],
        optional=("PROJECT",),
    )
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
    yield from fact_lines(
        [
            ("state", found["state"]),
            ("project", found["workspace"] or "all"),
            ("failure", found["signature"] or "you corrected the agent"),
            ("since", moment(found["since_when"])),
            ("came", f"in {counted(found['before'], 'session')} before, {found['since']} since"),
            ("spared", counted(found["avoided"], "session")),
            *(("taught by", turn) for turn in found["turns"]),
        ]
    )
    if found["state"] != "asked":
        yield f"Take it back: metaclaw lessons undo {found['name']}"


@lessons.command()
@click.argument("name")
@answers
def undo(home: Path, name: str) -> CommandOutput:
    """Take a lesson out of force."""
    if _lesson(home, name)["state"] == "asked":
        raise SkillError(f"{name} is not in force: metaclaw candidates reject turns it away")
    facts = request(home, "POST", f"/api/skills/{segment(name)}/retire", {})
    return CommandOutput(
        facts, f"{name} is no longer in force. Back with: metaclaw skills restore {name}"
    )


def _lesson(home: Path, name: str) -> Facts:
    for one in read(home, "/api/lessons")["lessons"]:
        if one["name"] == name:
            found: Facts = one
            return found
    raise SkillError(f"there is no lesson named {name}; metaclaw lessons list shows all")

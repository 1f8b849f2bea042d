"""`metaclaw candidates`: list and show proposed skills; the running proxy approves or rejects
them.
"""

from collections.abc import Iterator
from pathlib import Path

import click

from metaclaw.cli.client import Facts, connect, read, request, segment
from metaclaw.cli.output import (
    Columns,
    CommandOutput,
    answers,
    brief,
    counted,
    dated,
    described,
    fact_lines,
    limit_option,
    listing,
    sentence,
    wants_json,
)
from metaclaw.errors import MetaClawError

_STANDINGS = ("draft", "waiting", "accepted", "rejected")
_WHERE = "metaclaw candidates list shows all"
_COLUMNS: Columns = {
    "CANDIDATE": "id",
    "SKILL": "skill",
    "SCOPE": lambda one: one["scope"] or "everyone",
    "STANDING": "standing",
    "MADE": dated("made_at"),
    "WHY": brief("reason", 80),
}
_FACTS: Columns = {
    "skill": "skill",
    "use when": "description",
    "scope": _COLUMNS["SCOPE"],
    "change": lambda one: " of ".join(filter(None, (one["change"], ", ".join(one["replaces"])))),
    "standing": "standing",
    "why": "reason",
    "written by": "written_by",
    "taught by": lambda one: counted(len(one["support"]), "turn"),
    "made": _COLUMNS["MADE"],
}


@click.group()
def candidates() -> None:
    """List candidates (proposed skills), and approve or reject those that wait for you."""


@candidates.command(name="list")
@click.option(
    "--standing", type=click.Choice(_STANDINGS), help="Only candidates with this standing."
)
@limit_option(50, "Most candidates to list.")
@answers
def list_(home: Path, standing: str | None, limit: int) -> CommandOutput:
    """List candidates (proposed skills), newest first."""
    facts = read(home, "/api/candidates", standing=standing, limit=limit)
    nothing = "No candidates." if standing is None else f"No candidates are {standing}."
    found = facts["candidates"]
    return CommandOutput(facts, listing(found, _COLUMNS) if found else nothing)


@candidates.command()
@click.argument("candidate")
@answers
def show(home: Path, candidate: str) -> CommandOutput:
    """Show one candidate: its text, its standing and why, and its turns."""
    found = read(home, f"/api/candidates/{segment(candidate)}", advice=_WHERE)
    return CommandOutput(found, _shown(found))


def _shown(found: Facts) -> Iterator[str]:
    yield found["id"]
    yield from fact_lines(described(found, _FACTS))
    yield from ("", *found["body"].splitlines())
    if found["check"]:
        yield from ("", "check:", *found["check"].splitlines())
    if found["standing"] == "waiting":
        yield from ("", *question_lines(found))


def question_lines(waiting: Facts) -> Iterator[str]:
    """What a waiting candidate asks of the person, and how to answer."""
    yield from sentence(f"! {waiting['question']}", is_bold=True)
    yield from sentence(f"    Asked because: {waiting['reason']}", indent="    ")
    yield f"    metaclaw candidates approve {waiting['id']}, or reject {waiting['id']}"


@candidates.command()
@click.argument("candidate")
@answers
def approve(home: Path, candidate: str) -> CommandOutput:
    """Approve a waiting candidate: it is in force at once."""
    facts = _decide(home, candidate, "approve")
    is_done = facts["standing"] == "accepted"
    if not is_done and not wants_json():
        raise MetaClawError(f"{facts['skill']} could not be put in force: {facts['reason']}")
    return CommandOutput(
        facts, f"{facts['skill']} is in force now ({facts['id']}).", 0 if is_done else 1
    )


@candidates.command()
@click.argument("candidate")
@answers
def reject(home: Path, candidate: str) -> CommandOutput:
    """Reject a waiting candidate. The evolver considers this when it writes later skills."""
    facts = _decide(home, candidate, "reject")
    return CommandOutput(facts, f"{facts['skill']} was rejected ({facts['id']}).")


def _decide(home: Path, candidate: str, how: str) -> Facts:
    connect(home)  # the learner of a running proxy decides
    return request(home, "POST", f"/api/candidates/{segment(candidate)}/{how}", advice=_WHERE)

"""`metaclaw candidates`: list and show proposed skills; the running proxy approves or rejects
them.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from metaclaw.cli.client import connect, objects, read, request, rows, segment
from metaclaw.cli.output import (
    counted,
    home_and_json,
    limit_option,
    moment,
    plain,
    plain_block,
    print_facts,
    print_json,
    print_table,
    short,
)
from metaclaw.errors import MetaClawError

if TYPE_CHECKING:
    from metaclaw.domain.chat import Json

_STANDINGS = ("draft", "shadow", "waiting", "accepted", "rejected")
_WHERE = "metaclaw candidates list shows all"
_MOST_REASON = 80


@click.group()
def candidates() -> None:
    """List candidates (proposed skills), and approve or reject those that wait for you."""


@candidates.command(name="list")
@click.option(
    "--standing", type=click.Choice(_STANDINGS), help="Only candidates with this standing."
)
@limit_option(50, "Most candidates to list, newest first.")
@home_and_json
def list_(home: Path, standing: str | None, limit: int, as_json: bool) -> None:
    """List candidates, newest first."""
    facts = read(home, "/api/candidates", standing=standing, limit=limit)
    found = objects(facts["candidates"])
    if as_json:
        print_json(facts)
    elif not found:
        click.echo("No candidates." if standing is None else f"No candidates are {standing}.")
    else:
        print_table(
            ("CANDIDATE", "SKILL", "SCOPE", "STANDING", "MADE", "WHY"), [_row(one) for one in found]
        )


@candidates.command()
@click.argument("candidate")
@home_and_json
def show(home: Path, candidate: str, as_json: bool) -> None:
    """Show one candidate: its text, its standing and why, and the turns it was learned from."""
    found = read(home, f"/api/candidates/{segment(candidate)}", advice=_WHERE)
    if as_json:
        print_json(found)
        return
    name = plain(found["id"])
    click.echo(name)
    print_facts(_words(found))
    click.echo(f"\n{plain_block(str(found['body']))}")
    if found["check"]:
        click.echo(f"\ncheck:\n{plain_block(str(found['check']))}")
    if found["standing"] == "waiting":
        click.echo(f"\nIt waits for you: metaclaw candidates approve {name}, or reject {name}")


@candidates.command()
@click.argument("candidate")
@home_and_json
def approve(home: Path, candidate: str, as_json: bool) -> int:
    """Approve a waiting candidate: it is in force at once."""
    return _decide(home, candidate, "approve", "accepted", as_json=as_json)


@candidates.command()
@click.argument("candidate")
@home_and_json
def reject(home: Path, candidate: str, as_json: bool) -> int:
    """Reject a waiting candidate. The evolver considers this when it writes later skills."""
    return _decide(home, candidate, "reject", "rejected", as_json=as_json)


def _decide(home: Path, candidate: str, how: str, wanted: str, *, as_json: bool) -> int:
    connect(home)  # the learner of a running proxy decides
    path = f"/api/candidates/{segment(candidate)}/{how}"
    facts = request(home, "POST", path, advice=_WHERE)
    skill, is_done = plain(facts["skill"]), facts["standing"] == wanted
    if as_json:
        print_json(facts)
    elif not is_done:
        raise MetaClawError(f"{skill} could not be put in force: {plain(facts['reason'])}")
    else:
        done = f"{skill} is in force now" if wanted == "accepted" else f"{skill} was rejected"
        click.echo(f"{done} ({plain(facts['id'])}).")
    return 0 if is_done else 1


def _row(candidate: "dict[str, Json]") -> tuple[object, ...]:
    return (
        candidate["id"],
        candidate["skill"],
        candidate["scope"] or "everyone",
        candidate["standing"],
        moment(candidate["made_at"]),
        short(candidate["reason"], _MOST_REASON),
    )


def _words(candidate: "dict[str, Json]") -> list[tuple[str, object]]:
    replaces = ", ".join(map(str, rows(candidate["replaces"])))
    change = f"{candidate['change']} of {replaces}" if replaces else candidate["change"]
    return [
        ("skill", candidate["skill"]),
        ("use when", candidate["description"]),
        ("scope", candidate["scope"] or "everyone"),
        ("change", change),
        ("standing", candidate["standing"]),
        ("why", candidate["reason"]),
        ("written by", candidate["written_by"]),
        ("taught by", counted(len(rows(candidate["support"])), "turn")),
        ("made", moment(candidate["made_at"])),
    ]

"""`metaclaw keys`: keys of people, and who changed what."""

from collections.abc import Iterator
from pathlib import Path

import click

from metaclaw.cli.client import Facts, read, request, segment
from metaclaw.cli.output import (
    Columns,
    CommandOutput,
    ListingGroup,
    answers,
    confirm,
    dated,
    limit_option,
    listing,
    yes_option,
)
from metaclaw.domain.person import KeyRole

_KEYS: Columns = {
    "KEY": "name",
    "ROLE": "role",
    "TEAM": lambda one: one["team"] or "",
    "FOR OTHERS": lambda one: "yes" if one["speaks_for_others"] else "",
    "LIMITS": lambda one: (
        "; ".join(f"{limit} ({used:.4g} used)" for limit, used in one["used"].items())
        or one["limits"]
    ),
    "MADE": dated("made_at"),
}
_CHANGES: Columns = {"WHEN": dated("at"), "WHO": "who", "WHAT": "action", "ON": "target"}


@click.group(cls=ListingGroup)
def keys() -> None:
    """List keys of people. A key decides whose turns, rules and lessons are whose, and what its
    holder may see and change."""


@keys.command(name="list")
@answers
def list_(home: Path) -> CommandOutput:
    """List the keys, without their secrets."""
    facts = read(home, "/api/keys")
    return CommandOutput(facts, _listed(facts["keys"]))


def _listed(found: list[Facts]) -> Iterator[str]:
    if not found:
        yield "There is only the home's own key (metaclaw key). Make one: metaclaw keys create NAME"
        return
    yield from listing(found, _KEYS, optional=("TEAM", "FOR OTHERS", "LIMITS"))


@keys.command()
@click.argument("name")
@click.option("--team", help="The team whose rules and skills they get, too.")
@click.option(
    "--role",
    type=click.Choice([role.value for role in KeyRole], case_sensitive=False),
    default=KeyRole.MEMBER.value,
    help="An owner sees and changes everything, a member what is theirs; a reader sees what is"
    " theirs [member].",
)
@click.option(
    "--limit",
    "limits",
    help="The most they may use, such as requests=60/min,tokens=1e6/day,money=50/month.",
)
@click.option(
    "--for-others",
    is_flag=True,
    help="Let X-User-Id name whom a request is from, as a gateway does.",
)
@answers
def create(
    home: Path, name: str, team: str | None, role: str, limits: str | None, for_others: bool
) -> CommandOutput:
    """Make a key for a person. It is shown once: only a hash of it is kept."""
    said = {"name": name, "team": team, "role": role, "speaks_for_others": for_others}
    facts = request(home, "POST", "/api/keys", {**said, "limits": limits or ""})
    return CommandOutput(facts, facts["key"])


@keys.command()
@click.argument("name")
@answers
def rotate(home: Path, name: str) -> CommandOutput:
    """Replace a key by a new one, which is shown once. The old one stops at once."""
    facts = request(home, "POST", f"/api/keys/{segment(name)}/rotate")
    return CommandOutput(facts, facts["key"])


@keys.command()
@click.argument("name")
@yes_option
@answers
def revoke(home: Path, name: str, yes: bool) -> CommandOutput:
    """Revoke a key. What its holder taught stays."""
    confirm(f"Revoke the key of {name}?", yes=yes)
    facts = request(home, "DELETE", f"/api/keys/{segment(name)}")
    return CommandOutput(facts, f"The key of {name} is revoked.")


@keys.command()
@limit_option(50, "How many changes are listed")
@answers
def audit(home: Path, limit: int) -> CommandOutput:
    """Show who changed what, newest first."""
    facts = read(home, "/api/audit", limit=limit)
    return CommandOutput(facts, listing(facts["changes"], _CHANGES))

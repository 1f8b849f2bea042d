"""`metaclaw enforce`: switch the holding of tool calls on or off, for all rules at once."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from metaclaw.cli.client import connect, expect
from metaclaw.cli.output import json_option, plain, print_json
from metaclaw.instance import find

if TYPE_CHECKING:
    from metaclaw.domain.chat import Json


@click.command()
@click.argument("state", type=click.Choice(("on", "off")), required=False)
@json_option
@click.pass_obj
def enforce(home: Path, state: str | None, as_json: bool) -> None:
    """Hold tool calls that break rules with `enforce: hold` (on), or let all calls pass (off), from the next request on.

    Without an argument, say which it is.
    """
    if state is None:
        _tell(home, as_json=as_json)
        return
    is_on = state == "on"
    if find(home) is not None:
        _, api = connect(home)
        facts = expect(*api.post("/api/enforce", {"on": is_on}))
    else:
        _keep(home, is_on)
        facts = {"on": is_on}
    if as_json:
        print_json(facts)
    elif is_on:
        click.echo("Held rules hold again: calls that break them are refused.")
    else:
        click.echo("Held rules no longer hold: calls that break them pass and are counted. Switch back with: metaclaw enforce on")


def _tell(home: Path, *, as_json: bool) -> None:
    from metaclaw.cli.home import read_in_force
    from metaclaw.skills import can_hold, enforce_of

    is_on = is_holding(home)
    held: list[Json] = [rule.name for rule in read_in_force(home)[0] if enforce_of(rule) == "hold" and can_hold(rule)]
    if as_json:
        print_json({"on": is_on, "held_rules": held})
        return
    names = ", ".join(plain(name) for name in held)
    if not is_on:
        click.echo("Holding is off: calls that break held rules pass and are counted. Switch it on with: metaclaw enforce on")
    elif held:
        click.echo("Holding is on: calls that break held rules are refused.")
    else:
        click.echo("Holding is on, but no rule is held. Hold one with: metaclaw rules edit NAME --enforce hold")
    if names:
        click.echo(f"Held rules: {names}")


def is_holding(home: Path) -> bool:
    """Whether held rules hold: asked of the running proxy, or read from the store."""
    if find(home) is None:
        return _kept(home)
    _, api = connect(home)
    return bool(expect(*api.get("/api/enforce"))["on"])


def _kept(home: Path) -> bool:
    """Whether rules hold, from the store."""
    from metaclaw.cli.home import opened
    from metaclaw.config import load
    from metaclaw.store import ENFORCEMENT_OFF, SqlCursors

    with opened(load(home)) as database:
        return database is None or not SqlCursors(database).cursor(ENFORCEMENT_OFF)


def _keep(home: Path, is_on: bool) -> None:
    """Straight into the store, for the proxy that starts next."""
    from metaclaw.config import load
    from metaclaw.store import ENFORCEMENT_OFF, SqlCursors, open_database

    database = open_database(load(home).store.url.resolve())
    try:
        SqlCursors(database).move_cursor(ENFORCEMENT_OFF, 0 if is_on else 1)
    finally:
        database.close()

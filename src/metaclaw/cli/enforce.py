"""`metaclaw enforce`: switch the holding of tool calls on or off, for all rules at once."""

from pathlib import Path

import click

from metaclaw.cli.client import connect, expect
from metaclaw.cli.output import json_option, print_json
from metaclaw.instance import find


@click.command()
@click.argument("state", type=click.Choice(("on", "off")))
@json_option
@click.pass_obj
def enforce(home: Path, state: str, as_json: bool) -> None:
    """Hold tool calls that break rules with `enforce: hold` (on), or let all calls pass (off), from the next request on."""
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


def _keep(home: Path, is_on: bool) -> None:
    """Straight into the store, for the proxy that starts next."""
    from metaclaw.config import load
    from metaclaw.store import ENFORCEMENT_OFF, SqlCursors, open_database

    database = open_database(load(home).store.url.resolve())
    try:
        SqlCursors(database).move_cursor(ENFORCEMENT_OFF, 0 if is_on else 1)
    finally:
        database.close()

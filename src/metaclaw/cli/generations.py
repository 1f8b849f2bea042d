"""`metaclaw skills history|revert|retire`: by the running proxy or, where none runs, on the home itself."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from metaclaw.cli.client import Api, NotRunningError, connect, expect, message_in
from metaclaw.cli.output import json_option, moment, plain, print_json, print_table
from metaclaw.errors import MetaClawError, SkillError

if TYPE_CHECKING:
    from metaclaw.domain.chat import Json
    from metaclaw.skills import Shelf

# A proxy with very many skills takes a while over its files.
_PATIENCE_S = 60.0


@click.command()
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=20, show_default=True, help="Most generations to list, newest first."
)
@json_option
@click.pass_obj
def history(home: Path, limit: int, as_json: bool) -> None:
    """List the generations of skills, newest first: when, why, and how many skills came and went."""
    from metaclaw.cli.ledger import opened
    from metaclaw.config import load
    from metaclaw.dashboard.views import generation_view
    from metaclaw.store import SqlGenerations

    with opened(load(home)) as database:
        found = [] if database is None else SqlGenerations(database).history(limit)
    if as_json:
        print_json({"generations": [generation_view(row) for row in found]})
    elif not found:
        click.echo("No generation of skills is recorded yet.")
    else:
        print_table(
            ("GENERATION", "WHEN", "ADDED", "REMOVED", "WHY"),
            [(row.number, moment(row.published_at), row.added, row.removed, row.reason) for row in found],
        )


@click.command()
@click.argument("generation", type=click.IntRange(0, 2**31 - 1))
@json_option
@click.pass_obj
def revert(home: Path, generation: int, as_json: bool) -> None:
    """Put the skills of an earlier GENERATION in force again, as a new one. Reverting to the last number undoes it."""

    def ask(api: Api) -> "dict[str, Json]":
        return _said(*api.post("/api/generations/revert", {"generation": generation}, timeout_s=_PATIENCE_S))

    def do(shelf: "Shelf") -> "dict[str, Json]":
        return {"reverted_to": generation, "generation": shelf.revert(generation).generation}

    facts = _either(home, ask, do)
    if as_json:
        print_json(facts)
    else:
        click.echo(f"The skills of generation {generation} are in force again, as generation {plain(facts.get('generation'))}.")


@click.command()
@click.argument("name")
@json_option
@click.pass_obj
def retire(home: Path, name: str, as_json: bool) -> None:
    """Take one skill out of force. Its text is kept: revert brings it back."""
    from metaclaw.domain.ids import SkillName

    def ask(api: Api) -> "dict[str, Json]":
        return _said(*api.post(f"/api/skills/{quote(name, safe='')}/retire", timeout_s=_PATIENCE_S))

    def do(shelf: "Shelf") -> "dict[str, Json]":
        return {"skill": name, "retired": True, "generation": shelf.retire(SkillName(name)).generation}

    facts = _either(home, ask, do)
    if as_json:
        print_json(facts)
    else:
        click.echo(f"Retired {plain(name)}; generation {plain(facts.get('generation'))} is in force.")


def _either(home: Path, ask: "Callable[[Api], dict[str, Json]]", do: "Callable[[Shelf], dict[str, Json]]") -> "dict[str, Json]":
    """Have it done by the running proxy, else do it here while none can start."""
    from metaclaw.config import load
    from metaclaw.instance import acquire
    from metaclaw.skills import Shelf
    from metaclaw.store import SqlGenerations, open_database

    try:
        _, api = connect(home)
    except NotRunningError:
        config = load(home)
        with acquire(home):
            database = open_database(config.store.url.resolve())
            try:
                shelf = Shelf(config.skills.dir, SqlGenerations(database))
                shelf.load()
                _refuse_trouble(shelf)
                facts = do(shelf)
                shelf.sync()  # the files, of which there may be many
                _refuse_trouble(shelf)
            finally:
                database.close()
        return facts
    return ask(api)


def _refuse_trouble(shelf: "Shelf") -> None:
    if shelf.trouble is not None:
        raise SkillError(shelf.trouble)


def _said(status: int, body: "Json") -> "dict[str, Json]":
    if status in (404, 409):
        raise MetaClawError(message_in(body))
    return expect(status, body)

"""`metaclaw undo` and `metaclaw skills history|revert|retire|restore|keep|pin`: what is in force, was, and is again."""

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from metaclaw.cli.client import PATIENCE_S, ApiClient, at, carry_out, rows, said
from metaclaw.cli.output import json_option, moment, plain, print_json, print_table
from metaclaw.domain.wording import reason_words

if TYPE_CHECKING:
    from metaclaw.domain.chat import Json
    from metaclaw.skills import Rulebook


@click.command()
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=20, show_default=True, help="Most generations to list, newest first."
)
@json_option
@click.pass_obj
def history(home: Path, limit: int, as_json: bool) -> None:
    """List the generations of skills, newest first: when, why, and how many skills came and went."""
    from metaclaw.api import generation_view
    from metaclaw.cli.home import opened
    from metaclaw.config import load
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
            [(row.number, moment(row.published_at), row.added, row.removed, reason_words(row.reason)) for row in found],
        )


@click.command()
@click.argument("generation", type=click.IntRange(0, 2**31 - 1))
@json_option
@click.pass_obj
def revert(home: Path, generation: int, as_json: bool) -> None:
    """Put everything of an earlier GENERATION in force again, as a new one. Reverting to the last number undoes it.

    To take back only the last lesson say: metaclaw undo. To bring back one retired skill: metaclaw skills restore NAME.
    """

    def ask(api: ApiClient) -> "dict[str, Json]":
        return said(*api.post("/api/generations/revert", {"generation": generation}, timeout_s=PATIENCE_S))

    def do(rulebook: "Rulebook") -> "dict[str, Json]":
        return {"reverted_to": generation, "generation": rulebook.library.revert(generation).generation}

    facts = carry_out(home, ask, do)
    if as_json:
        print_json(facts)
    else:
        click.echo(f"The skills of generation {generation} are in force again, as generation {plain(facts.get('generation'))}.")


@click.command()
@click.argument("name")
@json_option
@click.pass_obj
def retire(home: Path, name: str, as_json: bool) -> None:
    """Take one skill out of force. Its text is kept: restore brings it back."""
    from metaclaw.domain.ids import SkillName

    def ask(api: ApiClient) -> "dict[str, Json]":
        return said(*api.post(f"/api/skills/{quote(name, safe='')}/retire", timeout_s=PATIENCE_S))

    def do(rulebook: "Rulebook") -> "dict[str, Json]":
        return {"skill": name, "retired": True, "generation": rulebook.library.retire(SkillName(name)).generation}

    facts = carry_out(home, ask, do)
    if as_json:
        print_json(facts)
    else:
        click.echo(f"Retired {plain(name)}; generation {plain(facts.get('generation'))} is in force.")
        click.echo(f"It comes back with: metaclaw skills restore {plain(name)}")


@click.command()
@click.argument("name")
@json_option
@click.pass_obj
def restore(home: Path, name: str, as_json: bool) -> None:
    """Put one retired skill, rule or fact in force again, as it last was."""

    def ask(api: ApiClient) -> "dict[str, Json]":
        return said(*api.post(f"/api/skills/{quote(name, safe='')}/restore", timeout_s=PATIENCE_S))

    def do(rulebook: "Rulebook") -> "dict[str, Json]":
        from metaclaw.api import skill_view

        return {**skill_view(rulebook.restore(name)), "restored": True}

    facts = carry_out(home, ask, do)
    _tell(facts, f"Restored {plain(name)}: it is in force again.", as_json=as_json)


@click.command()
@click.argument("name")
@json_option
@click.pass_obj
def keep(home: Path, name: str, as_json: bool) -> None:
    """End a skill's trial: it is live from now on, and the program does not withhold, change or retire it."""

    def ask(api: ApiClient) -> "dict[str, Json]":
        return said(*api.post(f"/api/skills/{quote(name, safe='')}/keep", timeout_s=PATIENCE_S))

    def do(rulebook: "Rulebook") -> "dict[str, Json]":
        from metaclaw.api import skill_view

        return skill_view(rulebook.keep(name))

    _tell(carry_out(home, ask, do), f"{plain(name)} is kept: live and pinned.", as_json=as_json)


@click.command()
@click.argument("name")
@click.option("--off", is_flag=True, help="Unpin it: the program may change and retire it again.")
@json_option
@click.pass_obj
def pin(home: Path, name: str, off: bool, as_json: bool) -> None:
    """Pin a live skill: the program does not withhold, change or retire it."""

    def ask(api: ApiClient) -> "dict[str, Json]":
        return said(*api.post(f"/api/skills/{quote(name, safe='')}/pin", {"pinned": not off}, timeout_s=PATIENCE_S))

    def do(rulebook: "Rulebook") -> "dict[str, Json]":
        from metaclaw.api import skill_view

        return skill_view(rulebook.pin(name, pinned=not off))

    _tell(carry_out(home, ask, do), f"{'Unpinned' if off else 'Pinned'} {plain(name)}.", as_json=as_json)


@click.command()
@json_option
@click.pass_obj
def undo(home: Path, as_json: bool) -> None:
    """Take back the last lesson: a rule or fact that was noted, changed or removed, or a skill that was learned, edited or retired.

    Each call takes back one more. What was taken back is not learned again from the same turns.
    """

    def ask(api: ApiClient) -> "dict[str, Json]":
        return said(*api.post("/api/undo", timeout_s=PATIENCE_S))

    def do(rulebook: "Rulebook") -> "dict[str, Json]":
        from metaclaw.api import undone_view

        return undone_view(rulebook.undo())

    facts = carry_out(home, ask, do)
    if as_json:
        print_json(facts)
        return
    click.echo(f"Undone: {plain(reason_words(at(facts, 'undone', 'reason')))}.")
    for field, mark, word in (("removed", "-", "no longer in force"), ("restored", "+", "in force again")):
        for one in rows(facts.get(field)):
            click.echo(f"  {mark} {plain(at(one, 'name'))} ({plain(at(one, 'kind'))}, {word}): {plain(at(one, 'text'))}")


def _tell(facts: "dict[str, Json]", sentence: str, *, as_json: bool) -> None:
    if as_json:
        print_json(facts)
    else:
        click.echo(sentence)

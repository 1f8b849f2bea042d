"""`metaclaw why`: what was placed in a turn's prompt, what not, and why; read from the store, whether or not a proxy runs."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from metaclaw.cli.client import at, rows
from metaclaw.cli.output import counted, json_option, moment, plain, print_json
from metaclaw.cli.references import WHERE_TURNS, check_choice, find_turn
from metaclaw.errors import MetaClawError

if TYPE_CHECKING:
    from metaclaw.domain.chat import Json

_MOST_TEXT = 90
_REMINDERS = (
    ("reminded", "reminded of at the end of the conversation"),
    ("reminders_left_out", "not reminded of, to see whether reminders help"),
)

_GOT = {
    "complied": "The client got the calls of the last attempt. The usage is the sum of all attempts.",
    "stopped": "The client got a text in place of the calls. The usage is the sum of all attempts.",
    "warned": "The client got the calls of the last attempt with a warning. The usage is the sum of all attempts.",
}


@click.command()
@click.argument("turn", required=False)
@click.option("--last", is_flag=True, help="The last main turn.")
@json_option
@click.pass_obj
def why(home: Path, turn: str | None, last: bool, as_json: bool) -> None:
    """Say which rules and skills stood in the prompt of TURN, which did not, and why."""
    check_choice(turn, last, "turn")
    facts = _explained(home, turn)
    if as_json:
        print_json(facts)
    else:
        _tell(facts)


def _explained(home: Path, wanted: str | None) -> "dict[str, Json]":
    from metaclaw.api import WhyRoutes
    from metaclaw.cli.inforce import read_in_force
    from metaclaw.cli.ledger import opened
    from metaclaw.config import load
    from metaclaw.skills import Budgets
    from metaclaw.store import LedgerReader, SqlGenerations, SqlPolicies

    config = load(home)
    with opened(config) as database:
        if database is None:
            raise MetaClawError("no turn is recorded yet")
        reader, policies = LedgerReader(database), SqlPolicies(database)

        def absorbed(version: int) -> frozenset[str]:
            found = policies.version(version) if version else None
            return frozenset() if found is None else frozenset(found.absorbed)

        turn = find_turn(reader, wanted)
        teams = {team.name: team.users for team in config.teams}
        budgets = Budgets.configured(config.skills)
        embedded = next((one.name for one in config.providers if one.kind == "embedded"), None if config.providers else "embedded")
        explainer = WhyRoutes(
            reader, SqlGenerations(database).at, lambda: read_in_force(home)[0], budgets, teams, absorbed, embedded
        )
        facts = explainer.explain(turn)
    if facts is None:
        raise MetaClawError(f"there is no turn {plain(turn)}; {WHERE_TURNS}")
    return facts


def _tell(facts: "dict[str, Json]") -> None:
    from datetime import datetime

    when = moment(datetime.fromisoformat(str(facts.get("at"))))
    scope = {"user": at(facts, "scope", "user"), "project": at(facts, "scope", "workspace")}
    known = [f"{word} {plain(found)}" for word, found in scope.items() if found]
    click.echo(", ".join([f"{plain(facts.get('turn'))}, {plain(facts.get('kind'))}, {when}", *known]))
    considered, placed = len(rows(facts.get("considered"))), len(rows(facts.get("placed")))
    of = counted(considered, "rule or skill", "rules and skills")
    click.echo(f"{placed} of {of} stood in its prompt (generation {plain(facts.get('generation'))}).")
    for field, title in (("placed", "placed in full"), ("listed", "listed in one line"), ("withheld", "withheld by chance")):
        _section(title, rows(facts.get(field)))
    _section("not placed", rows(facts.get("not_placed")))
    for field, title in _REMINDERS:
        if names := rows(facts.get(field)):
            click.echo(f"{title}: {', '.join(plain(name) for name in names)}")
    _tell_enforcement(facts)
    for name in rows(facts.get("forgotten")):
        click.echo(f"  {plain(name)} was there and is forgotten")


def _tell_enforcement(facts: "dict[str, Json]") -> None:
    """The story of an answer whose calls were held: each attempt, and what the client got."""
    rules = rows(facts.get("enforced"))
    if not rules:
        return
    click.echo("held:")
    for one in rules:
        times = counted(at(one, "attempts"), "attempt")
        click.echo(f"  {plain(at(one, 'rule'))} was broken in {times}: {plain(at(one, 'reason'))}")
    for number, attempt in enumerate(rows(facts.get("attempts")), 1):
        calls = "; ".join(f"{plain(at(call, 'name'))} {plain(at(call, 'arguments'))}" for call in rows(at(attempt, "calls")))
        click.echo(f"  attempt {number} ({plain(at(attempt, 'turn'))}): {calls or 'no calls'}")
    click.echo(f"  {_GOT.get(str(at(rules[0], 'end')), '')}")


def _section(title: str, items: "list[Json]") -> None:
    if not items:
        return
    click.echo(f"{title}:")
    for one in items:
        text = " ".join(str(at(one, "text")).split())
        shown = text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…"
        click.echo(f"  {plain(at(one, 'kind'))} {plain(at(one, 'name'))}: {plain(shown)}")
        click.echo(f"    {plain(at(one, 'reason'))}")
        if note := at(one, "check_note"):
            click.echo(f"    {plain(note)}")

"""`metaclaw windows`: what each signal says now, why a window is open or shut, how long it will last, and what comes next."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from metaclaw.cli.client import at, connect, rows
from metaclaw.cli.output import duration, json_option, moment, plain, print_json, print_table
from metaclaw.errors import MetaClawError

if TYPE_CHECKING:
    from metaclaw.domain.chat import Json


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def windows(context: click.Context, as_json: bool) -> None:
    """Show when weights may be trained: what each signal says now, why, and what is expected."""
    if context.invoked_subcommand is not None:
        return
    _, api = connect(context.obj)
    facts = api.facts("/api/windows")
    if as_json:
        print_json(facts)
    else:
        _say(facts)


@windows.command(name="connect")
@click.argument("number", type=click.IntRange(1), default=1)
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=1), default=300.0, show_default=True, help="Seconds to wait for you."
)
@click.pass_obj
def connect_(home: Path, number: int, timeout_s: float) -> None:
    """Let MetaClaw see when you are busy: consent, in a browser, to calendar NUMBER of `schedule.calendars`."""
    from metaclaw.config import load
    from metaclaw.schedule import connect_google

    connect_google(load(home), home, number, lambda address: click.echo(f"Open this page and consent:\n\n  {address}\n"), timeout_s)
    click.echo("MetaClaw can see when you are busy. A running proxy reads it within a minute.")


def _say(facts: "dict[str, Json]") -> None:
    """The facts in words."""
    if at(facts, "open"):
        since = at(facts, "opened_at")
        by_hand = ", by hand" if at(facts, "by_hand") else ""
        click.echo(f"A window is open{by_hand}{f' since {_time(since)}' if since else ''}: {plain(at(facts, 'reason'))}.")
    else:
        click.echo(f"No window is open: {plain(at(facts, 'reason'))}.")
    signals = [(at(one, "name"), at(one, "says"), at(one, "why")) for one in rows(at(facts, "signals"))]
    if signals:
        click.echo()
        print_table(("SIGNAL", "SAYS", "WHY"), signals)
    for line in (*_objections(facts), *_forecast(facts), *_next(facts)):
        click.echo(line)


def _objections(facts: "dict[str, Json]") -> list[str]:
    found = [plain(one) for one in rows(at(facts, "objections"))]
    return [f"\nThis machine is left alone: {', '.join(found)}."] if found else []


def _forecast(facts: "dict[str, Json]") -> list[str]:
    away_s, expected_s, room_s = (at(facts, "forecast", name) for name in ("away_after_s", "expected_s", "room_s"))
    if not isinstance(away_s, int | float):
        return []
    source = "as your habits at this hour say" if at(facts, "forecast", "from_history") else "as long as your habits are not known"
    lines = [f"\nAfter {duration(away_s)} without a sign of you, you count as away, {source}."]
    if at(facts, "open") and isinstance(room_s, int | float):
        lines.append(f"It will very likely last for another {duration(room_s)}.")
    if isinstance(expected_s, int | float):
        lines.append(f"A silence like this one usually lasts for another {duration(max(0.0, expected_s))}.")
    return lines


def _next(facts: "dict[str, Json]") -> list[str]:
    when, because = at(facts, "next", "at"), at(facts, "next", "because")
    if at(facts, "open") or at(facts, "next") is None:
        return []
    if when is None:
        return ["When the next one opens, nobody can say yet."]
    return [f"The next one is expected at {_time(when)} ({plain(because)})."]


def _time(value: "Json") -> str:
    try:
        return moment(datetime.fromisoformat(str(value)))
    except ValueError:
        raise MetaClawError("the proxy's answer is not what this version of the program expects; restart the proxy") from None

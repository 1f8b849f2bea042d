"""`metaclaw cost`: the cost of the program's own calls to models, and the rest of the day's
budget.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from metaclaw.cli.client import at, number, read, rows
from metaclaw.cli.output import counted, home_and_json, plain, print_json, print_table
from metaclaw.domain.status import ENFORCED, money

if TYPE_CHECKING:
    from metaclaw.domain.chat import Json

LISTEN_TOKENS = 1_500
"""The most tokens that reading one message of a person takes."""
SHORT_TOKENS = 20_000
"""A day's budget below this is enough for few new skills or none."""


@click.command()
@click.option(
    "--days",
    type=click.IntRange(1, 3660),
    default=7,
    show_default=True,
    help="Number of days, up to today.",
)
@home_and_json
def cost(home: Path, days: int, as_json: bool) -> None:
    """Show the cost of learning and of held calls by day, purpose, model and learned item, and the
    rest of today's budget.
    """
    facts = read(home, "/api/cost", days=days)
    if as_json:
        print_json(facts)
        return
    for line in budget_lines(at(facts, "budget")):
        click.echo(line[:1].upper() + line[1:])
    if not rows(at(facts, "days")):
        click.echo("No tokens were used and no turn was served in these days.")
        return
    click.echo()
    print_table(
        (
            "DAY",
            "CALLS",
            "TOKENS",
            "COST",
            "ASKED AGAIN",
            "YOUR TURNS",
            "THEIR TOKENS",
            "LEARNING'S SHARE",
        ),
        map(_day, rows(at(facts, "days"))),
    )
    if calls := rows(at(facts, "calls")):
        click.echo()
        print_table(
            ("DAY", "PURPOSE", "MODEL", "CALLS", "FAILED", "INPUT", "CACHED", "OUTPUT", "COST"),
            (
                [at(call, "day"), at(call, "purpose"), at(call, "model"), *_sums(call)]
                for call in calls
            ),
        )
        if any(at(call, "purpose") == ENFORCED for call in calls):
            click.echo(
                "enforce (asked again): requests of your agents that were sent again because a call"
                " broke a held rule. They are not in the tokens of your turns above; they count"
                " against the budget, but are never refused."
            )
    if items := rows(at(facts, "items")):
        click.echo()
        header = ("LEARNED ITEM", "CALLS", "FAILED", "INPUT", "CACHED", "OUTPUT", "COST")
        print_table(header, ([at(item, "item"), *_sums(item)] for item in items))
    click.echo()
    click.echo(
        f"Built-in prices are of {plain(at(facts, 'prices_as_of'))} and may have changed; set yours"
        " in [[learning.prices]]."
    )


def budget_lines(budget: "Json") -> Iterator[str]:
    """The used share of the day's budget, and the requests that wait for more."""
    used, limit = number(at(budget, "used")), number(at(budget, "limit"))
    share = f" ({used / limit:.0%})" if limit else ""
    spent = f", {_money(budget, 'used_cost')}" if at(budget, "used_cost") else ""
    if isinstance(most := at(budget, "limit_cost"), int | float):
        spent = f", {_money(budget, 'used_cost')} of ${most:,.2f}"
    if not limit and not isinstance(at(budget, "limit_cost"), int | float):
        yield (
            "0 tokens a day: learning is off, and only sure phrases become rules. To switch it on,"
            " raise learning.daily_tokens"
        )
        return
    renewed = str(at(budget, "resets_at"))[11:16]
    yield f"{used:,} of {limit:,} tokens used today{share}{spent}; renewed at {plain(renewed)}"
    if 0 < limit < SHORT_TOKENS:
        yield (
            f"short: reading one message takes up to {LISTEN_TOKENS:,} tokens, a new skill"
            f" {SHORT_TOKENS:,} and more"
        )
    if waiting := [
        f"{plain(at(one, 'purpose'))} ({at(one, 'count')})" for one in rows(at(budget, "waiting"))
    ]:
        yield (
            f"learning waits because the budget is used up: {', '.join(waiting)}. To go on now,"
            " raise learning.daily_tokens (or learning.daily_cost) and restart"
        )


def _day(day: "Json") -> list[object]:
    learning, traffic, held = at(day, "learning"), at(day, "traffic"), at(day, "enforcement")
    spent, served = _tokens(learning), _tokens(traffic)
    return [
        at(day, "day"),
        number(at(learning, "calls")),
        f"{spent:,}",
        _money(learning),
        f"{_tokens(held):,} tokens, {_money(held)}" if at(held, "calls") else "",
        number(at(traffic, "turns")),
        f"{served:,}",
        f"{spent / served:.0%}" if served else "",
    ]


def _sums(spent: "Json") -> list[object]:
    numbers = (at(spent, "input_tokens"), at(spent, "cached_tokens"), at(spent, "output_tokens"))
    return [
        at(spent, "calls"),
        at(spent, "failures"),
        *(f"{number(one):,}" for one in numbers),
        _money(spent),
    ]


def _tokens(sums: "Json") -> int:
    return number(at(sums, "input_tokens")) + number(at(sums, "output_tokens"))


def _money(sums: "Json", key: str = "cost") -> str:
    """The cost in dollars; tokens without a known price are named."""
    return money(at(sums, key), at(sums, "unpriced_tokens"))


def asked_about(judged: "Json") -> str:
    """The number of today's turns that the judge was asked about."""
    turns, of = number(at(judged, "turns")), number(at(judged, "of"))
    return f", asked about {turns} of {counted(of, 'turn')} today" if of else ""

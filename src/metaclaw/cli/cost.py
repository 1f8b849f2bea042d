"""`metaclaw cost`: the cost of the program's own calls to models, and the rest of the day's
budget.
"""

from collections.abc import Iterator
from pathlib import Path

import click

from metaclaw.cli.client import Facts, read
from metaclaw.cli.output import CommandOutput, answers, table
from metaclaw.domain.status import ENFORCED, money

_SUMS = ("CALLS", "FAILED", "INPUT", "CACHED", "OUTPUT", "COST")


@click.command()
@click.option(
    "--days",
    type=click.IntRange(1, 3660),
    default=7,
    show_default=True,
    help="Number of days, up to today.",
)
@answers
def cost(home: Path, days: int) -> CommandOutput:
    """Show the cost of learning and of held calls by day, purpose, model and learned item, and the
    rest of today's budget.
    """
    facts = read(home, "/api/cost", days=days)
    return CommandOutput(facts, _lines(facts))


def _lines(facts: Facts) -> Iterator[str]:
    for line in facts["budget"]["words"]:
        yield line[:1].upper() + line[1:]
    if not facts["days"]:
        yield "No tokens were used and no turn was served in these days."
        return
    yield ""
    headers = ("DAY", "CALLS", "TOKENS", "COST", "ASKED AGAIN", "YOUR TURNS", "THEIR TOKENS")
    yield from table((*headers, "LEARNING'S SHARE"), map(_day, facts["days"]))
    if calls := facts["calls"]:
        yield ""
        yield from table(
            ("DAY", "PURPOSE", "MODEL", *_SUMS),
            [(one["day"], one["purpose"], one["model"], *_sums(one)) for one in calls],
        )
        if any(one["purpose"] == ENFORCED for one in calls):
            yield (
                "enforce (asked again): requests of your agents that were sent again because a call"
                " broke a held rule. They are not in the tokens of your turns above; they count"
                " against the budget, but are never refused."
            )
    yield ""
    yield (
        f"Built-in prices are of {facts['prices_as_of']} and may have changed; set yours in"
        " [[learning.prices]]."
    )


def _day(day: Facts) -> list[object]:
    learning, traffic, held = day["learning"], day["traffic"], day["enforcement"]
    spent, served = _tokens(learning), _tokens(traffic)
    return [
        day["day"],
        learning["calls"],
        f"{spent:,}",
        _money(learning),
        f"{_tokens(held):,} tokens, {_money(held)}" if held["calls"] else "",
        traffic["turns"],
        f"{served:,}",
        f"{spent / served:.0%}" if served else "",
    ]


def _sums(spent: Facts) -> list[object]:
    numbers = (spent["input_tokens"], spent["cached_tokens"], spent["output_tokens"])
    return [
        spent["calls"],
        spent["failures"],
        *(f"{one:,}" for one in numbers),
        _money(spent),
    ]


def _tokens(sums: Facts) -> int:
    return int(sums["input_tokens"] + sums["output_tokens"])


def _money(sums: Facts) -> str:
    """The cost in dollars; tokens without a known price are named."""
    return money(sums["cost"], sums["unpriced_tokens"])

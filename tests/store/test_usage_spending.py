"""What calls cost is added up by day, purpose and model; agents' turns are counted once;
forgotten names leave the sums.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest

from metaclaw.domain.chat import Usage
from metaclaw.domain.ids import SkillName
from metaclaw.domain.status import ENFORCED, SERVED, Spending, SpendingKey
from metaclaw.domain.turn import ATTEMPT, EnforcedRule, Enforcement, HoldEnd, Times, Turn, TurnKind
from metaclaw.store import (
    Database,
    SqlLedger,
    SqlSpending,
)
from tests.store.conftest import MOMENT

pytestmark = pytest.mark.anyio
TurnMaker = Callable[..., Turn]
DAY = "2026-03-04"


def key(purpose: str = "judge", day: str = DAY) -> SpendingKey:
    return SpendingKey(day, purpose, "world/m\x00del")


def calls(number: int, tokens: int = 10) -> Spending:
    return Spending(
        turns=1,
        calls=number,
        failures=1,
        input_tokens=tokens,
        output_tokens=1,
        unpriced_tokens=tokens + 1,
        cost=0.5,
    )


def price(
    purpose: str, received_at: datetime, model: str, usage: Usage
) -> tuple[SpendingKey, Spending]:
    tokens = Spending(
        turns=1, calls=1, input_tokens=usage.input_tokens, output_tokens=usage.output_tokens
    )
    return SpendingKey(received_at.date().isoformat(), purpose, model), tokens


async def test_sums_add_up(database: Database) -> None:
    spending = SqlSpending(database)
    spending.add({})
    spending.add({key(): calls(1), key("evolve", day="2026-03-05"): calls(3)})
    spending.add({key(): calls(4)})
    assert spending.sums() == {
        key(): calls(1) + calls(4),
        key("evolve", day="2026-03-05"): calls(3),
    }
    assert list(spending.sums("2026-03-05")) == [key("evolve", day="2026-03-05")]


async def test_processes_that_count_at_once_lose_nothing(database: Database) -> None:
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(SqlSpending(database).add, {key(): calls(1)}) for _ in range(40)]:
            done.result()
    (spent,) = SqlSpending(database).sums().values()
    assert (spent.calls, spent.tokens, spent.cost) == (40, 440, 20.0)


@pytest.mark.parametrize("kind", [TurnKind.MAIN, TurnKind.SIDE])
async def test_what_is_asked_again_for_a_held_rule_is_counted_apart_and_the_sum_is_that_of_the_turn(
    ledger: SqlLedger, database: Database, new_turn: TurnMaker, kind: TurnKind
) -> None:
    spent = (Usage(10, 5), Usage(20, 6), Usage(30, 7))
    attempts = tuple(
        new_turn(kind=TurnKind.SIDE, kind_reason=ATTEMPT, usage=usage) for usage in spent
    )
    rules = (EnforcedRule(SkillName("no-force-push"), 2, HoldEnd.COMPLIED, "pushed"),)
    assert await ledger.record(
        new_turn(kind=kind, usage=Usage(60, 18), enforcement=Enforcement(rules, attempts))
    )
    spending = SqlSpending(database)
    assert spending.add_served(price) == 4
    sums = {key.purpose: spent for key, spent in spending.sums().items()}
    if kind is TurnKind.SIDE:
        assert sums == {}
    else:
        assert sums == {
            SERVED: Spending(turns=1, calls=1, input_tokens=10, output_tokens=5),
            ENFORCED: Spending(turns=2, calls=2, input_tokens=50, output_tokens=13),
        }


async def test_agents_main_turns_are_counted_once_by_day(
    ledger: SqlLedger, database: Database, new_turn: TurnMaker
) -> None:
    spending = SqlSpending(database)
    assert spending.add_served(price) == 0
    tomorrow = Times(MOMENT + timedelta(days=1), 0.1, 0.2)
    for turn in (
        new_turn(),
        new_turn(),
        new_turn(kind=TurnKind.SIDE),
        new_turn(usage=None),
        new_turn(times=tomorrow),
    ):
        assert await ledger.record(turn)
    assert SqlSpending(database).add_served(price) == 5
    assert spending.add_served(price) == 0
    assert await ledger.record(new_turn())
    assert spending.add_served(price) == 1
    assert spending.sums() == {
        SpendingKey(DAY, SERVED, "main/gpt-x"): Spending(
            turns=4, calls=4, input_tokens=30, output_tokens=15
        ),
        SpendingKey("2026-03-05", SERVED, "main/gpt-x"): Spending(
            turns=1, calls=1, input_tokens=10, output_tokens=5
        ),
    }

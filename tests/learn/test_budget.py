"""The learning budget: calls wait when it is used up, and each is counted once, also over restarts
and by several processes.
"""

from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from metaclaw.config import Config, PriceConfig, build
from metaclaw.domain.chat import Usage
from metaclaw.domain.status import SERVED, Spending, SpendingKey
from metaclaw.errors import BudgetError, StoreError
from metaclaw.learn.budget import FLOOR_TOKENS, RESERVE_TOKENS, Budget, Price, Prices
from metaclaw.ports import Purpose
from metaclaw.store import Database, SqlSpending, Sums, open_database
from metaclaw.upstream import Spent, without_waiting
from tests.support.cases import each

pytestmark = pytest.mark.anyio
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
DAY, YESTERDAY = "2026-11-16", "2026-11-15"
MODEL = "world/mini"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = open_database(f"sqlite:///{tmp_path / 'ledger.db'}")
    yield opened
    opened.close()


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


def config_of(**learning: Any) -> Config:
    return build({"learning": learning, "schedule": {"timezone": "UTC"}}, Path("/nowhere"))


def budget_of(database: Database, clock: Clock | None = None, **learning: Any) -> Budget:
    return Budget(config_of(**learning), SqlSpending(database), clock or Clock())


async def spend(
    budget: Budget, tokens: int, purpose: Purpose = Purpose.EVOLVE, model: str = MODEL
) -> None:
    async with budget.charge(purpose, model, tokens) as charge:
        charge.add(Spent(1, usage=Usage(tokens, 0)))


def served(database: Database, day: str, tokens: int) -> None:
    SqlSpending(database).add(
        {SpendingKey(day, SERVED, MODEL): Spending(turns=1, calls=1, input_tokens=tokens)}
    )


async def test_a_call_is_counted_once_by_day_purpose_and_model(database: Database) -> None:
    budget = budget_of(
        database, prices=[{"model": "mini", "input": 1.0, "output": 10.0, "cached": 0.5}]
    )
    async with budget.charge(Purpose.JUDGE, MODEL, 100) as charge:
        charge.add(Spent(1, failures=1))
        charge.add(Spent(1, usage=Usage(1000, 20, 400)))
    await budget.count(Purpose.JUDGE, MODEL, Spent(), turns=1)
    assert SqlSpending(database).sums() == {
        SpendingKey(DAY, "judge", MODEL): Spending(
            turns=1,
            calls=2,
            failures=1,
            input_tokens=1000,
            output_tokens=20,
            cached_tokens=400,
            cost=0.001,
        )
    }


async def test_by_default_a_tenth_of_the_days_traffic_may_be_spent_and_never_less_than_the_floor(
    database: Database,
) -> None:
    assert budget_of(database).account().limit_tokens == FLOOR_TOKENS
    served(database, DAY, 5_000_000)
    assert budget_of(database).account().limit_tokens == 500_000
    served(database, YESTERDAY, 20_000_000)
    served(database, "2026-11-14", 10_000_000)
    served(database, "2026-10-01", 900_000_000)
    assert budget_of(database).account().limit_tokens == 1_500_000
    assert budget_of(database, daily_tokens=7).account().limit_tokens == 7


async def test_verdicts_stop_first_then_skills_and_listening_has_the_last_fifth(
    database: Database,
) -> None:
    budget = budget_of(database, daily_tokens=1000)

    async def allowed() -> list[bool]:
        return [
            await budget.may_spend(purpose, 10)
            for purpose in (Purpose.JUDGE, Purpose.EVOLVE, Purpose.LISTEN)
        ]

    assert await allowed() == [True, True, True]
    await spend(budget, 600)
    assert await allowed() == [False, True, True]
    await spend(budget, 200)
    assert await allowed() == [False, False, True]
    await spend(budget, 200, Purpose.LISTEN)
    assert await allowed() == [False, False, False]


async def test_reading_what_people_say_does_not_stop_lessons_before_its_reserve_is_used_up(
    database: Database,
) -> None:
    budget = budget_of(database)
    await spend(budget, RESERVE_TOKENS - 50, Purpose.LISTEN)
    await spend(budget, 50, Purpose.CONFIRM)
    assert budget.account().used_tokens == 0
    assert await budget.may_spend(Purpose.JUDGE, FLOOR_TOKENS // 2)
    await spend(budget, FLOOR_TOKENS, Purpose.LISTEN)
    account = budget.account()
    assert account.used_tokens == FLOOR_TOKENS
    assert account.spent.tokens == RESERVE_TOKENS + FLOOR_TOKENS
    assert not await budget.may_spend(Purpose.EVOLVE, 1)
    assert not await budget.may_spend(Purpose.LISTEN, 1)


async def test_listening_is_refused_rather_than_kept_waiting(database: Database) -> None:
    budget = budget_of(database, daily_tokens=0)
    with pytest.raises(
        BudgetError,
        match=r"used up \(0 of 0 tokens\).*renewed at 00:00.*raise learning\.daily_tokens",
    ):
        await spend(budget, 1, Purpose.LISTEN)
    with without_waiting(), pytest.raises(BudgetError):
        await spend(budget, 1, Purpose.JUDGE)
    assert SqlSpending(database).sums() == {}
    assert budget.waiting == {"listen": 1}
    await spend(budget, 0, Purpose.LISTEN)
    assert budget.waiting == {}


async def test_a_call_that_does_not_fit_waits_and_is_made_after_midnight(
    database: Database,
) -> None:
    clock = Clock()
    clock.now = NOON.replace(hour=23, minute=59, second=59, microsecond=900_000)
    budget = budget_of(database, clock, daily_tokens=1000)
    await spend(budget, 800)
    made = anyio.Event()

    async def evolve() -> None:
        await spend(budget, 100)
        made.set()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(evolve)
            while budget.waiting != {"evolve": 1}:
                await anyio.lowlevel.checkpoint()
            assert not made.is_set()
            clock.now += timedelta(seconds=1)
            await made.wait()
    assert budget.waiting == {}
    tokens = {key.day: spent.tokens for key, spent in SqlSpending(database).sums().items()}
    assert tokens == {DAY: 800, "2026-11-17": 100}


async def test_calls_under_way_together_do_not_exceed_the_limit(database: Database) -> None:
    budget = budget_of(database, daily_tokens=1000)
    with without_waiting():
        async with AsyncExitStack() as under_way:
            for _ in range(2):
                await under_way.enter_async_context(budget.charge(Purpose.EVOLVE, MODEL, 400))
            with pytest.raises(BudgetError):
                await spend(budget, 100)
        await spend(budget, 100)


async def test_processes_share_one_budget(database: Database) -> None:
    first, second = budget_of(database, daily_tokens=1000), budget_of(database, daily_tokens=1000)
    await spend(first, 800)
    assert not await second.may_spend(Purpose.EVOLVE, 100)
    assert second.account().used_tokens == 800


async def test_models_without_a_price_count_in_tokens_only(database: Database) -> None:
    prices = [{"model": "world/dear", "input": 10.0, "output": 100.0}]
    budget = budget_of(database, daily_cost=1.0, prices=prices)
    await spend(budget, 80_000, model="world/dear")
    assert not await budget.may_spend(Purpose.EVOLVE, 1000, "world/dear")
    assert await budget.may_spend(Purpose.EVOLVE, 1000, MODEL)
    await spend(budget, 240_000)
    assert not await budget.may_spend(Purpose.EVOLVE, 1000, MODEL)
    facts = budget.account().facts()
    assert (facts["used"], facts["left"], facts["used_cost"], facts["left_cost"]) == (
        240_000,
        60_000,
        0.8,
        0.2,
    )


async def test_a_cost_limit_does_not_limit_the_tokens_of_models_that_have_a_price(
    database: Database,
) -> None:
    budget = budget_of(database, daily_cost=100.0)
    await spend(budget, 2 * FLOOR_TOKENS, model="openai/gpt-5-nano-2025-08-07")
    assert await budget.may_spend(Purpose.EVOLVE, 1000, "openai/gpt-5-nano")


class Down(SqlSpending):
    """A store that refuses the first writes."""

    refused = 2

    def add(self, sums: Sums) -> None:
        if self.refused:
            self.refused -= 1
            raise StoreError("locked")
        super().add(sums)


async def test_calls_that_the_store_could_not_take_are_counted_with_the_next(
    database: Database,
) -> None:
    budget = Budget(config_of(), Down(database), Clock())
    for _ in range(3):
        await spend(budget, 10)
    (spent,) = SqlSpending(database).sums().values()
    assert (spent.calls, spent.tokens) == (3, 30)


async def test_a_call_that_is_given_up_is_counted_all_the_same(database: Database) -> None:
    budget = budget_of(database)
    with anyio.CancelScope() as scope:
        async with budget.charge(Purpose.EVOLVE, MODEL, 10) as charge:
            charge.add(Spent(1, failures=1, estimated=1, usage=Usage(10, 0)))
            scope.cancel()
            await anyio.sleep_forever()
    (spent,) = SqlSpending(database).sums().values()
    assert (spent.calls, spent.failures, spent.tokens) == (1, 1, 10)
    assert await budget.may_spend(Purpose.EVOLVE, 1000)


GPT_5 = Price(1.25, 10.0, 0.125)


@each(
    ("name", "price"),
    [
        ("openai/gpt-5", GPT_5),
        ("openai/gpt-5-2025-08-07", GPT_5),
        ("router/openai/gpt-5", GPT_5),
        ("anthropic/claude-sonnet-4-5-20250929", Price(3.0, 15.0, 0.3)),
        ("anthropic/claude-opus-4-1", Price(15.0, 75.0, 1.5)),
        ("openai/gpt-5-mini", Price(0.25, 2.0, 0.025)),
        ("openai/gpt-5-colossal", None),
        ("local/qwen3-8b", None),
        ("", None),
    ],
)
def test_common_models_have_a_price_whatever_their_date_and_whoever_routes_them(
    name: str, price: Price | None
) -> None:
    assert Prices().of(name) == price


def test_a_configured_price_comes_first_and_one_for_a_provider_before_one_for_all() -> None:
    prices = Prices(
        [
            PriceConfig(model="gpt-5", input=1.0, output=2.0),
            PriceConfig(model="cheap/gpt-5", input=0.5, output=1.0, cached=0.1),
        ]
    )
    assert prices.of("openai/gpt-5") == Price(1.0, 2.0, 1.0)
    assert prices.of("cheap/gpt-5") == Price(0.5, 1.0, 0.1)


def test_cached_tokens_are_part_of_the_input_and_cost_less() -> None:
    assert Price(1.0, 10.0, 0.1).cost(Usage(1_000_000, 100_000, 400_000)) == pytest.approx(
        0.6 + 0.04 + 1.0
    )

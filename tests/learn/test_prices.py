"""Prices: the configuration's first, then a small built-in table; a model that neither knows has none."""

import pytest

from metaclaw.config import PriceConfig
from metaclaw.domain.chat import Usage
from metaclaw.learn.budget import Price, Prices

GPT_5 = Price(1.25, 10.0, 0.125)


@pytest.mark.parametrize(
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
def test_common_models_have_a_price_whatever_their_date_and_whoever_routes_them(name: str, price: Price | None) -> None:
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
    assert Price(1.0, 10.0, 0.1).cost(Usage(1_000_000, 100_000, 400_000)) == pytest.approx(0.6 + 0.04 + 1.0)

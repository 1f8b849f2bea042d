"""Bets on gains: fair where the claim is true, and the same as on wins and losses where gains are
whole.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.training.bets import BETS, GainBets
from metaclaw.training.rollback import rate_at_least

GAINS = st.lists(st.floats(-1.0, 1.0), max_size=30)


def wealth(gains: list[float], margin: float = 0.0) -> float:
    bets = GainBets(margin)
    for gain in gains:
        bets.add(gain)
    return bets.e_value


@settings(deadline=None)
@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), max_size=40))
def test_whole_gains_are_wins_and_losses(gains: list[float]) -> None:
    wins, losses = gains.count(1.0), gains.count(-1.0)
    assert wealth(gains) == pytest.approx(
        sum((1 + bet) ** wins * (1 - bet) ** losses for bet in BETS) / len(BETS)
    )


@settings(deadline=None)
@given(GAINS, st.floats(0.0, 0.9), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_no_bet_is_favourable_where_the_mean_gain_is_at_most_minus_the_margin(
    seen: list[float], margin: float, up: float, down: float
) -> None:
    """A gain of `up` or of `-down`, mixed so that its mean is just minus the margin."""
    low, high = -max(down, margin), min(up, 1.0)
    if high <= -margin or low >= -margin:
        return
    chance = (-margin - low) / (high - low)
    expected = chance * wealth([*seen, high], margin) + (1 - chance) * wealth([*seen, low], margin)
    assert expected <= wealth(seen, margin) * (1 + 1e-9)


@settings(deadline=None)
@given(GAINS, st.randoms(use_true_random=False))
def test_the_order_of_gains_does_not_matter(gains: list[float], rng: random.Random) -> None:
    mixed = list(gains)
    rng.shuffle(mixed)
    assert wealth(mixed) == pytest.approx(wealth(gains))


@pytest.mark.parametrize("gain", [-1.01, float("nan")])
def test_what_is_no_gain_is_refused(gain: float) -> None:
    with pytest.raises(ValueError, match="not -1 or more"):
        GainBets().add(gain)


def test_wealth_stays_a_number() -> None:
    assert wealth([1.0] * 5_000) == pytest.approx(10.0**299.66, rel=0.2)


@pytest.mark.parametrize("rate", [0.3, 0.7, 0.95])
def test_the_rate_of_before_is_overestimated_no_more_often_than_said(rate: float) -> None:
    rng, runs, error = random.Random(5), 2_000, 0.05
    over = sum(
        rate_at_least(sum(rng.random() < rate for _ in range(40)), 40, error) > rate
        for _ in range(runs)
    )
    assert over / runs <= error + 3 * (error * (1 - error) / runs) ** 0.5
    assert rate_at_least(38, 40, error) > 0.8
    assert rate_at_least(0, 40, error) == 0.0

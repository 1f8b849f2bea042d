"""E-processes: no gambler gets rich on a true claim, whatever they look at and whenever they stop; on a false one they do."""

import random
from collections.abc import Callable, Iterator
from functools import lru_cache
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.skills.gate.evalue import Coin, CoinBets, e_below, e_value, rate_at_least, spend

ALPHA = 0.05
RUNS = 3_000
MARGIN = 3 * (ALPHA * (1 - ALPHA) / RUNS) ** 0.5  # three standard errors of a share of RUNS
counts = st.integers(0, 60)
shares = st.floats(0.05, 0.95)


@given(counts, counts, st.floats(0.0, 0.5))
def test_a_bet_on_pairs_is_never_favourable_where_a_win_is_no_likelier_than_a_loss(wins: int, losses: int, p_win: float) -> None:
    after = p_win * e_value(wins + 1, losses) + (1 - p_win) * e_value(wins, losses + 1)
    assert after <= e_value(wins, losses) * (1 + 1e-9)


@given(st.lists(st.tuples(st.booleans(), shares, st.booleans()), max_size=30), shares, shares, shares, st.booleans())
def test_a_bet_on_a_coin_is_never_favourable_where_the_claim_is_true(
    seen: list[tuple[bool, float, bool]], propensity: float, one: float, other: float, harm: bool
) -> None:
    placed_rate, withheld_rate = (max(one, other), min(one, other)) if harm else (min(one, other), max(one, other))

    def wealth(*more: Coin) -> float:
        bets = CoinBets(harm=harm)
        for coin in (*(Coin(*known) for known in seen), *more):
            bets.add(coin)
        return bets.e_value

    expected = 0.0
    for placed in (True, False):
        for passed in (True, False):
            rate = placed_rate if placed else withheld_rate
            chance = (propensity if placed else 1 - propensity) * (rate if passed else 1 - rate)
            expected += chance * wealth(Coin(placed, propensity, passed))
    assert expected <= wealth() * (1 + 1e-9)


@given(st.floats(0.05, 0.95), counts, counts, st.floats(0.0, 1.0))
def test_a_bet_on_a_rate_below_the_floor_is_never_favourable_at_or_above_it(
    floor: float, passes: int, failures: int, excess: float
) -> None:
    rate = floor + excess * (1 - floor)
    after = rate * e_below(floor, passes + 1, failures) + (1 - rate) * e_below(floor, passes, failures + 1)
    assert after <= e_below(floor, passes, failures) * (1 + 1e-9)


@given(counts, counts)
def test_evidence_for_help_and_for_harm_are_mirrors(wins: int, losses: int) -> None:
    if wins > losses:
        assert e_value(wins, losses) > e_value(losses, wins)
    assert e_value(0, 0) == 1.0


def pairs(rng: random.Random, p_win: float, most: int) -> Iterator[tuple[int, int]]:
    """Wins and losses after each discordant pair."""
    wins = losses = 0
    for _ in range(most):
        won = rng.random() < p_win
        wins, losses = wins + won, losses + (not won)
        yield wins, losses


def ever(rng: random.Random, p_win: float, rejects: Callable[[int, int], bool], most: int = 80) -> float:
    """How often a test that is looked at after every pair, and stops at its luckiest moment, rejects."""
    return sum(any(rejects(wins, losses) for wins, losses in pairs(rng, p_win, most)) for _ in range(RUNS)) / RUNS


@lru_cache(10_000)
def rejects_by_betting(wins: int, losses: int) -> bool:
    return e_value(wins, losses) >= 1 / ALPHA


def rejects_by_peeking(wins: int, losses: int) -> bool:
    """The usual test of proportions at the same level, as if it were looked at once."""
    return wins - losses > 1.645 * sqrt(wins + losses)


@pytest.mark.parametrize("p_win", [0.5, 0.4])
def test_stopping_at_the_luckiest_moment_is_wrong_in_at_most_one_run_of_twenty(p_win: float) -> None:
    assert ever(random.Random(11), p_win, rejects_by_betting) <= ALPHA + MARGIN


def test_the_simulation_would_notice_a_test_that_is_not_valid_under_peeking() -> None:
    assert ever(random.Random(11), 0.5, rejects_by_peeking) > 3 * ALPHA


def test_harm_is_called_wrongly_in_at_most_one_run_of_twenty() -> None:
    assert ever(random.Random(12), 0.5, lambda wins, losses: rejects_by_betting(losses, wins)) <= ALPHA + MARGIN


def test_a_real_effect_is_found() -> None:
    assert ever(random.Random(13), 0.85, rejects_by_betting, most=40) > 0.9


def coin_wealths(rng: random.Random, withheld: float, placed: float, propensities: tuple[float, ...], most: int) -> float:
    """The greatest wealth at any time of one run."""
    bets, greatest = CoinBets(), 1.0
    for number in range(most):
        propensity = propensities[number % len(propensities)]
        is_placed = rng.random() < propensity
        bets.add(Coin(is_placed, propensity, rng.random() < (placed if is_placed else withheld)))
        greatest = max(greatest, bets.e_value)
    return greatest


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.9])
def test_a_useless_canary_is_promoted_in_at_most_one_run_of_twenty_at_its_luckiest_moment(rate: float) -> None:
    rng, runs = random.Random(7), 400
    lucky = sum(coin_wealths(rng, rate, rate, (0.5, 0.9, 0.2), 80) >= 1 / ALPHA for _ in range(runs))
    assert lucky / runs <= ALPHA + 3 * (ALPHA * (1 - ALPHA) / runs) ** 0.5


def test_a_helpful_canary_gets_rich() -> None:
    rng = random.Random(8)
    assert sum(coin_wealths(rng, 0.4, 0.8, (0.5,), 150) >= 1 / ALPHA for _ in range(100)) > 90


def test_a_skill_that_is_always_placed_gives_no_evidence_by_chance() -> None:
    bets = CoinBets()
    for passed in (True, False, True):
        bets.add(Coin(True, 1.0, passed))
    assert bets.e_value == pytest.approx(1.0)


@pytest.mark.parametrize(("placed", "propensity"), [(True, 0.0), (True, 1.5), (False, 1.0)])
def test_an_impossible_draw_is_an_error(placed: bool, propensity: float) -> None:
    with pytest.raises(ValueError, match=r"propensity|always placed"):
        Coin(placed, propensity, True)


def test_the_error_spent_on_all_attempts_together_stays_within_alpha() -> None:
    assert sum(spend(ALPHA, attempt) for attempt in range(1, 10_000)) <= ALPHA
    assert spend(ALPHA, 1) > spend(ALPHA, 2)
    with pytest.raises(ValueError, match="from 1"):
        spend(ALPHA, 0)


@pytest.mark.parametrize("rate", [0.3, 0.7, 0.95])
def test_the_rate_of_before_is_overestimated_no_more_often_than_said(rate: float) -> None:
    rng = random.Random(5)
    over = sum(rate_at_least(sum(rng.random() < rate for _ in range(40)), 40, ALPHA) > rate for _ in range(RUNS))
    assert over / RUNS <= ALPHA + MARGIN
    assert rate_at_least(38, 40, ALPHA) > 0.8
    assert rate_at_least(0, 40, ALPHA) == 0.0


def test_overwhelming_evidence_is_still_a_number() -> None:
    assert e_value(100_000, 0) < float("inf")
    assert e_value(0, 100_000) < 1e-9

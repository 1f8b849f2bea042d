"""Calibration and the measures of it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.outcome import fit_isotonic

SCORES = st.floats(0.0, 1.0, allow_nan=False)
PAIRS = st.lists(st.tuples(SCORES, st.booleans()), max_size=60)


@given(PAIRS, SCORES, SCORES)
def test_a_fitted_map_rises_and_stays_between_0_and_1(
    pairs: list[tuple[float, bool]], one: float, other: float
) -> None:
    fitted = fit_isotonic(pairs)
    low, high = sorted((one, other))
    assert 0.0 < fitted.apply(low) <= fitted.apply(high) + 1e-12 < 1.0


@given(SCORES)
def test_with_no_evidence_the_map_is_near_the_identity(score: float) -> None:
    assert fit_isotonic([]).apply(score) == pytest.approx(score, abs=0.05)


@given(SCORES, st.booleans(), SCORES)
def test_one_piece_of_evidence_moves_nothing_far(score: float, failed: bool, asked: float) -> None:
    assert fit_isotonic([(score, failed)]).apply(asked) == pytest.approx(asked, abs=0.5)


def test_much_evidence_outweighs_the_prior() -> None:
    rng = random.Random(3)
    pairs = [(score, rng.random() < score**3) for score in (rng.random() for _ in range(4_000))]
    fitted = fit_isotonic(pairs)
    for score in (0.2, 0.5, 0.8):
        assert fitted.apply(score) == pytest.approx(score**3, abs=0.07)


def test_without_a_prior_the_map_is_the_pooled_means() -> None:
    fitted = fit_isotonic([(0.1, False), (0.2, True), (0.3, False), (0.9, True)], prior_weight=0)
    assert fitted.apply(0.25) == pytest.approx(0.5)
    assert fitted.apply(0.1) == pytest.approx(0.005)
    assert fitted.apply(0.95) == pytest.approx(0.995)


def test_a_score_that_is_no_probability_is_refused() -> None:
    with pytest.raises(ValueError, match="raw score"):
        fit_isotonic([(1.5, True)])

"""Intervals: they hold the truth about as often as they say, pairing makes them narrower, and the
same seed gives the same.
"""

import statistics
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaclaw_bench.stats import (
    Interval,
    Nested,
    Place,
    are_apart,
    bootstrap,
    nest,
    pair,
    student,
    wilson,
)

_TRUE = 0.4


def runs(rng: Random, seeds: int = 5, days: int = 20, rounds: int = 8) -> Nested:
    """Rounds that pass with a chance that differs from seed to seed and from day to day around the
    true one.
    """
    drawn = {}
    for seed in range(seeds):
        of_seed = rng.gauss(0.0, 0.02)
        chances = [_TRUE + of_seed + rng.gauss(0.0, 0.1) for _ in range(days)]
        drawn[seed] = {
            f"d{at}": [float(rng.random() < chance) for _ in range(rounds)]
            for at, chance in enumerate(chances)
        }
    return drawn


def test_an_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    rng = Random(1)
    found = [bootstrap(runs(rng), resamples=200) for _ in range(100)]
    covered = sum(one.low <= _TRUE <= one.high for one in found if one is not None)
    assert 88 <= covered <= 100
    widths = [one.high - one.low for one in found if one is not None]
    assert statistics.fmean(widths) < 0.15


def test_the_same_seed_gives_the_same_interval_and_the_value_is_the_plain_mean() -> None:
    values = runs(Random(2), seeds=3, days=4)
    assert bootstrap(values, resamples=50) == bootstrap(values, resamples=50)
    found = bootstrap(values, resamples=50)
    assert found is not None
    assert found.value == pytest.approx(
        statistics.fmean(one for days in values.values() for day in days.values() for one in day)
    )


@given(
    st.dictionaries(
        st.integers(0, 3),
        st.dictionaries(st.text(max_size=2), st.lists(st.floats(-1, 1), max_size=3), max_size=3),
    )
)
def test_an_interval_lies_around_values_that_exist(
    values: dict[int, dict[str, list[float]]],
) -> None:
    found = bootstrap(values, resamples=20)
    known = [one for days in values.values() for day in days.values() for one in day]
    if not known:
        assert found is None
        return
    assert found is not None
    assert min(known) - 1e-9 <= found.low <= found.high <= max(known) + 1e-9


def test_pairs_are_taken_question_by_question_and_only_where_both_answered() -> None:
    one: dict[Place, float] = {(0, "a", "r1"): 1.0, (0, "a", "r2"): 0.5, (1, "b", "r1"): 1.0}
    other: dict[Place, float] = {(0, "a", "r1"): 0.25, (1, "b", "r1"): 1.0, (1, "b", "r9"): 0.0}
    assert pair(one, other) == {0: {"a": [0.75]}, 1: {"b": [0.0]}}


def test_pairing_makes_the_difference_of_two_conditions_better_known() -> None:
    rng = Random(3)
    luck = {
        (seed, f"d{day}", f"r{at}"): rng.random()
        for seed in range(4)
        for day in range(15)
        for at in range(6)
    }
    base = {place: float(drawn < 0.4) for place, drawn in luck.items()}
    better = {place: float(drawn < 0.5) for place, drawn in luck.items()}
    paired, alone = (
        bootstrap(pair(better, base), resamples=300),
        bootstrap(nest(better.items()), resamples=300),
    )
    assert paired is not None
    assert alone is not None
    assert paired.low > 0.0
    assert paired.high - paired.low < alone.high - alone.low


def test_student_and_wilson_give_textbook_numbers() -> None:
    found = student([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found is not None
    assert [found.low, found.high] == pytest.approx([1.037, 4.963], abs=1e-3)
    share = wilson(8, 10)
    assert share is not None
    assert [share.low, share.high] == pytest.approx([0.4902, 0.9433], abs=1e-4)


def test_what_cannot_be_known_is_not_given() -> None:
    assert student([1.0]) is None
    assert wilson(0, 0) is None
    assert bootstrap({}) is None
    assert bootstrap({0: {"a": []}}) is None
    with pytest.raises(ValueError, match="3 hits in 2 tries"):
        wilson(3, 2)


@given(st.integers(0, 40), st.integers(1, 40))
def test_a_share_lies_in_its_own_interval(hits: int, more: int) -> None:
    found = wilson(hits, hits + more)
    assert found is not None
    assert 0.0 <= found.low <= found.value <= found.high <= 1.0


def test_intervals_are_apart_only_where_they_share_nothing() -> None:
    assert are_apart(Interval(0.1, 0.0, 0.2), Interval(0.4, 0.3, 0.5))
    assert not are_apart(Interval(0.1, 0.0, 0.3), Interval(0.4, 0.3, 0.5))

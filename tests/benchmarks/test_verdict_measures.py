"""The measures of probabilities of failure."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.failure_sense import interval
from benchmarks.verdict_measures import auroc, ece

SCORES = st.floats(0.0, 1.0)
PAIRS = st.lists(st.tuples(SCORES, st.booleans()), max_size=60)


@given(PAIRS)
def test_auroc_is_the_share_of_pairs_in_the_right_order(pairs: list[tuple[float, bool]]) -> None:
    failures = [score for score, failed in pairs if failed]
    others = [score for score, failed in pairs if not failed]
    if not failures or not others:
        assert auroc(pairs) is None
        return
    right = sum((a > b) + 0.5 * (a == b) for a in failures for b in others)
    assert auroc(pairs) == pytest.approx(right / (len(failures) * len(others)))


def test_ece_is_zero_for_honest_and_large_for_boastful_probabilities() -> None:
    assert ece([]) is None
    assert ece([(0.75, True)] * 3 + [(0.75, False)]) == pytest.approx(0.0)
    assert ece([(0.95, False)] * 4) == pytest.approx(0.95)


@given(st.lists(st.tuples(SCORES, st.booleans()), min_size=1, max_size=60))
def test_ece_is_a_distance(pairs: list[tuple[float, bool]]) -> None:
    value = ece(pairs)
    assert value is not None
    assert 0.0 <= value <= 1.0


def test_an_interval_holds_its_value_and_is_the_same_every_time() -> None:
    rng = random.Random(1)
    clusters = [[(rng.random(), rng.random() < 0.5) for _ in range(5)] for _ in range(20)]
    first, second = interval(auroc, clusters, rounds=200), interval(auroc, clusters, rounds=200)
    assert first == second
    assert first is not None
    assert first.low <= first.value <= first.high
    assert interval(auroc, [[(0.5, True)]], rounds=10) is None


def test_turns_that_err_together_widen_the_interval() -> None:
    together = [[(0.9, index % 2 == 0)] * 10 for index in range(20)]
    apart = [[pair] for cluster in together for pair in cluster]
    wide, narrow = interval(ece, together, rounds=300), interval(ece, apart, rounds=300)
    assert wide is not None
    assert narrow is not None
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)

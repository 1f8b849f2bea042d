"""The watch over a run: still water never alarms it, a number that is none always does, and
collapse is seen in time.
"""

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.training.records import (
    StepRecord,
    find_drift,
    weighted_mean,
)
from tests.support.cases import each


def step(reward: float | None = None, length: float = 40.0, **figures: float | None) -> StepRecord:
    return msgspec.structs.replace(StepRecord([], reward, True, [], length), **figures)


STILL = step(entropy=1.5, kl=0.02, ratio=1.0)
FIGURE = st.floats(0.0, 1e6)


def after(*steps: StepRecord) -> tuple[int, str | None]:
    """How many steps were made before the watch stopped the run, and why."""
    for number in range(1, len(steps) + 1):
        drift = find_drift(steps[:number])
        if drift is not None:
            return number, drift
    return len(steps), None


@settings(deadline=None)
@given(
    st.builds(
        step,
        st.none(),
        FIGURE,
        entropy=st.none() | FIGURE,
        kl=st.none() | FIGURE,
        ratio=st.none() | FIGURE,
    ),
    st.integers(1, 30),
)
def test_figures_that_stay_as_they_are_never_stop_a_run(still: StepRecord, steps: int) -> None:
    assert after(*[still] * steps) == (steps, None)


@settings(deadline=None)
@given(
    st.sampled_from(["entropy", "kl", "length", "ratio"]),
    st.sampled_from([math.nan, math.inf, -math.inf]),
    st.integers(0, 10),
)
def test_a_figure_that_is_no_number_stops_a_run_at_once(
    name: str, value: float, before: int
) -> None:
    bad = msgspec.structs.replace(STILL, **{name: value})
    number, drift = after(*[STILL] * before, bad, STILL)
    assert number == before + 1
    assert drift == f"the step's figures make no sense ({name} is not a finite number)"


@each(
    ("name", "value", "within"),
    [
        ("entropy", 0.01, 12),
        ("entropy", 9.0, 12),
        ("length", 2.0, 12),
        ("length", 400.0, 8),
        ("ratio", 3.0, 8),
        ("ratio", 0.1, 12),
        ("kl", 3.0, 8),
    ],
)
def test_a_run_that_goes_astray_is_stopped_within_a_few_steps_and_told_why(
    name: str, value: float, within: int
) -> None:
    astray = msgspec.structs.replace(STILL, **{name: value})
    number, drift = after(*[STILL] * 5, *[astray] * within)
    assert drift is not None
    assert f" ({name} went from " in drift
    assert number > 5


@each(
    "one",
    [
        step(entropy=1.0),
        step(length=70.0),
        step(kl=0.6),
        step(ratio=1.3),
        step(kl=0.0),
    ],
)
def test_ordinary_learning_goes_on(one: StepRecord) -> None:
    assert after(*[STILL] * 3, *[one] * 100) == (103, None)


def test_one_odd_step_is_smoothed_over() -> None:
    odd = step(entropy=1.5, kl=1.5, length=90.0, ratio=1.6)
    assert after(*[STILL] * 5, odd, *[STILL] * 5)[1] is None


def test_the_beginning_is_not_judged() -> None:
    assert after(step(ratio=1.0), step(ratio=6.0))[1] is None
    assert after(*[step(ratio=1.0)] * 3, step(ratio=6.0))[1] is not None


def test_steps_that_moved_nothing_do_not_count() -> None:
    astray = msgspec.structs.replace(STILL, ratio=9.0, moved=False)
    assert find_drift([*[STILL] * 5, *[astray] * 9]) is None


def test_answers_that_earn_more_may_become_short_and_sure() -> None:
    begun = step(entropy=1.5, length=200.0, reward=0.1)
    learned = step(entropy=0.01, length=8.0, reward=0.9)
    assert after(*[begun] * 5, *[learned] * 30)[1] is None
    collapsed = step(entropy=0.01, length=8.0, reward=0.1)
    assert after(*[begun] * 5, *[collapsed] * 30)[1] is not None


def test_where_something_is_rehearsed_forgetting_stops_a_run_and_not_the_distance_on_trained_prompts() -> (
    None
):
    begun = step(kl=0.0, forgotten=0.0)
    assert after(*[begun] * 5, *[step(kl=8.8, forgotten=0.1)] * 30)[1] is None
    drift = after(*[begun] * 5, *[step(kl=0.1, forgotten=3.0)] * 30)[1]
    assert drift is not None
    assert drift.startswith(
        "the model forgot how it answered ordinary questions (forgotten went from 0 to "
    )


def test_means_are_over_the_tokens_of_all_pieces_that_tell() -> None:
    assert weighted_mean([(1.0, 10), (2.0, 30), (99.0, 0)]) == pytest.approx(1.75)
    assert weighted_mean([(0.1, 10), (None, 30)]) == pytest.approx(0.1)
    assert weighted_mean([]) is None
    assert math.isnan(weighted_mean([(math.nan, 1)]) or 0.0)

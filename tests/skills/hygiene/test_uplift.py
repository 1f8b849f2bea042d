"""Uplift: unbiased whatever the propensity did, with an interval that may be looked at any time."""

import random
from collections.abc import Callable

import pytest

from metaclaw.domain.verdict import Outcome
from metaclaw.skills.gate import LiveTrial
from metaclaw.skills.hygiene import Uplift, measure_uplift, share_to_place

Rate = Callable[[int], float]


def draws(rng: random.Random, turns: int, withheld: Rate, placed: Rate, share: Rate, unknown: float = 0.2) -> list[LiveTrial]:
    trials = []
    for turn in range(turns):
        is_placed = rng.random() < share(turn)
        passed = rng.random() < (placed if is_placed else withheld)(turn)
        outcome = Outcome.UNKNOWN if rng.random() < unknown else Outcome.PASS if passed else Outcome.FAIL
        trials.append(LiveTrial(is_placed, share(turn), outcome))
    return trials


def in_a_drifting_world(rng: random.Random) -> list[LiveTrial]:
    """Bad times at an even coin, good times at nine in ten: the skill adds 15 points in both."""
    return draws(
        rng, 200, lambda t: 0.8 if t >= 100 else 0.3, lambda t: 0.95 if t >= 100 else 0.45, lambda t: 0.9 if t >= 100 else 0.5
    )


def test_the_estimate_is_unbiased_to_one_point_where_a_plain_comparison_is_far_off() -> None:
    rng = random.Random(1)
    worlds = [in_a_drifting_world(rng) for _ in range(1_500)]
    estimates = [measure_uplift(world).estimate for world in worlds]
    known = [estimate for estimate in estimates if estimate is not None]
    assert len(known) == len(worlds)
    assert abs(sum(known) / len(known) - 0.15) < 0.01
    plain = [_plain_difference(world) for world in worlds]
    assert abs(sum(plain) / len(plain) - 0.15) > 0.05


def _plain_difference(trials: list[LiveTrial]) -> float:
    decided = [trial for trial in trials if trial.outcome is not Outcome.UNKNOWN]
    rates = []
    for placed in (True, False):
        side = [trial.outcome is Outcome.PASS for trial in decided if trial.placed is placed]
        rates.append(sum(side) / max(1, len(side)))
    return rates[0] - rates[1]


def test_a_skill_that_does_nothing_measures_nothing_on_average() -> None:
    rng = random.Random(2)
    worlds = [draws(rng, 100, lambda t: 0.7, lambda t: 0.7, lambda t: 0.9) for _ in range(1_500)]
    estimates = [measure_uplift(world).estimate or 0.0 for world in worlds]
    assert abs(sum(estimates) / len(estimates)) < 0.01


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_the_interval_holds_at_all_times_at_once(share: float) -> None:
    rng, missed = random.Random(3), 0
    for _ in range(100):
        trials = draws(rng, 200, lambda t: 0.5, lambda t: 0.7, lambda t: share, unknown=0.0)
        intervals = [measure_uplift(trials[:turns]).interval for turns in range(20, 200, 12)]
        missed += any(interval is not None and not interval.low <= 0.2 <= interval.high for interval in intervals)
    assert missed / 100 <= 0.05


def test_the_interval_closes_in() -> None:
    trials = draws(random.Random(4), 2_000, lambda t: 0.4, lambda t: 0.7, lambda t: 0.5, unknown=0.0)
    interval = measure_uplift(trials).interval
    assert interval is not None
    assert interval.low > 0.0
    assert interval.low < 0.3 < interval.high
    assert interval.high - interval.low < 0.2


def test_where_nothing_was_withheld_nothing_is_known() -> None:
    uplift = measure_uplift([LiveTrial(True, 1.0, Outcome.PASS)] * 50)
    assert uplift == Uplift(None, None, 0.5, 0, 0, 0)
    placed_only = measure_uplift([LiveTrial(True, 0.9, Outcome.PASS)] * 5)
    assert placed_only.estimate is None
    assert placed_only.interval is None


def test_unknown_outcomes_are_counted_and_left_out() -> None:
    uplift = measure_uplift([LiveTrial(True, 0.5, Outcome.UNKNOWN), LiveTrial(False, 0.5, Outcome.FAIL)])
    assert (uplift.unknown, uplift.placed, uplift.withheld, uplift.turns) == (1, 0, 1, 1)


def test_a_skill_in_doubt_is_placed_on_half_of_its_turns_and_no_other_is() -> None:
    bad = measure_uplift([LiveTrial(True, 0.9, Outcome.FAIL), LiveTrial(False, 0.9, Outcome.PASS)])
    good = measure_uplift([LiveTrial(True, 0.9, Outcome.PASS), LiveTrial(False, 0.9, Outcome.FAIL)])
    assert share_to_place(bad, 0.9) == 0.5
    assert share_to_place(good, 0.9) == 0.9
    assert share_to_place(None, 0.9) == 0.9
    assert share_to_place(bad, 0.3) == 0.3

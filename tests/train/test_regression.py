"""What was lost on the golden set: item by item, with room for noise and none for a real loss."""

import math
import random

import pytest

from metaclaw.errors import TrainingError
from metaclaw.train.golden import GoldenScore
from metaclaw.train.regression import GoldenRules, chance_of_breaking, compare_golden, likelihood_points

ITEMS = 80


def score(passed: int, likelihood: float | None = None, items: int = ITEMS) -> GoldenScore:
    names = [f"i{at}" for at in range(items)]
    kept = None if likelihood is None else dict.fromkeys(names, likelihood)
    return GoldenScore({name: at < passed for at, name in enumerate(names)}, kept)


def swapped(score: GoldenScore, *names: str) -> GoldenScore:
    return GoldenScore({name: was != (name in names) for name, was in score.passed.items()}, score.likelihood)


@pytest.mark.parametrize(
    ("before", "after", "is_worse"),
    [(60, 60, False), (60, 70, False), (60, 58, False), (60, 57, False), (60, 54, True), (60, 30, True), (60, 0, True)],
)
def test_a_real_loss_is_told_from_noise(before: int, after: int, is_worse: bool) -> None:
    comparison = compare_golden(score(before), score(after))
    assert comparison.is_worse is is_worse
    assert comparison.points == pytest.approx(100 * (after - before) / ITEMS)


def test_what_is_broken_and_what_is_mended_is_named() -> None:
    before = score(40)
    comparison = compare_golden(before, swapped(before, "i1", "i50"))
    assert (comparison.broken, comparison.mended, comparison.points) == (("i1",), ("i50",), 0.0)
    assert "broken: i1" in comparison.words


def test_many_broken_are_named_only_to_a_point() -> None:
    assert "i4 …" in compare_golden(score(60), score(0)).words


def test_mended_items_make_up_for_broken_ones() -> None:
    before = score(40)
    both = swapped(before, *(f"i{at}" for at in range(32, 48)))
    assert not compare_golden(before, both).is_worse


def test_equal_versions_are_seldom_called_worse_and_a_loss_of_a_tenth_seldom_passes() -> None:
    """Each item is borderline with a quarter's chance to flip either way; the loss breaks a tenth of all on top."""
    rng = random.Random(5)

    def answers(lost: float) -> GoldenScore:
        rates = [0.95, 0.5] * (ITEMS // 2)
        return GoldenScore({f"i{at}": rng.random() < rate * (1 - lost) for at, rate in enumerate(rates)})

    equal = [compare_golden(answers(0.0), answers(0.0)).is_worse for _ in range(400)]
    lost = [compare_golden(answers(0.0), answers(0.4)).is_worse for _ in range(400)]
    assert sum(equal) / 400 <= 0.1
    assert sum(lost) / 400 >= 0.9


def test_a_weak_model_is_held_to_the_likelihood_of_the_references() -> None:
    weak, worse = score(2, likelihood=math.log(0.40)), score(2, likelihood=math.log(0.30))
    comparison = compare_golden(weak, worse)
    assert comparison.likelihood_points == pytest.approx(-10.0)
    assert comparison.is_worse
    assert "-10.0 points of likelihood" in comparison.words
    assert not compare_golden(weak, score(2, likelihood=math.log(0.395))).is_worse
    assert not compare_golden(weak, score(2, likelihood=math.log(0.6))).is_worse


def test_a_strong_model_is_not_held_to_likelihoods() -> None:
    comparison = compare_golden(score(60, likelihood=-0.1), score(60, likelihood=-3.0))
    assert comparison.likelihood_points is None
    assert not comparison.is_worse


def test_a_drop_of_likelihood_within_its_own_noise_is_none() -> None:
    rng = random.Random(3)
    before = {f"i{at}": math.log(rng.uniform(0.1, 0.9)) for at in range(40)}
    after = {name: min(0.0, value + rng.gauss(-0.02, 0.5)) for name, value in before.items()}
    points, error = likelihood_points(before, after)
    assert error > abs(points) / 3
    weak = dict.fromkeys(before, False)
    assert not compare_golden(GoldenScore(weak, before), GoldenScore(weak, after)).is_worse


def test_sets_of_other_items_cannot_be_compared() -> None:
    with pytest.raises(TrainingError, match="golden sets of 80 and 79 items"):
        compare_golden(score(1), score(1, items=79))


def test_nothing_changed_is_nothing_broken_and_a_margin_of_all_explains_all() -> None:
    assert chance_of_breaking(ITEMS, 0, 0, 1.0) == 1.0
    assert chance_of_breaking(ITEMS, 5, 0, 100.0) == pytest.approx(1.0)
    assert chance_of_breaking(ITEMS, 6, 0, 0.0) == pytest.approx(1 / 64)


def test_the_margin_is_a_setting() -> None:
    assert not compare_golden(score(60), score(52), GoldenRules(margin=10.0)).is_worse

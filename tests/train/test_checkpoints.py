"""Which weights are taken: the best on validation prompts, unless others are nearly as good and lose less of the golden set."""

from metaclaw.train.checkpoints import Checkpoint, choose_checkpoint, golden_subset, set_aside, to_measure
from metaclaw.train.curriculum import Prompt
from metaclaw.train.golden import golden_items

PROMPTS = [Prompt(f"t_{number}", "ab"[number % 2]) for number in range(120)]


def test_the_best_is_taken_unless_it_loses_what_one_that_is_nearly_as_good_does_not() -> None:
    best, whole, worse = Checkpoint(8, 1.0, 0.9, -3.0), Checkpoint(12, 1.0, 0.87, -1.0), Checkpoint(16, 1.0, 0.4, 0.0)
    assert choose_checkpoint([best, whole, worse], margin=1.0) is whole
    assert choose_checkpoint([best, worse], margin=1.0) is best
    assert choose_checkpoint([best, whole, worse], margin=3.0) is best


def test_smaller_sizes_are_measured_only_where_the_full_ones_lose_too_much() -> None:
    full = [Checkpoint(8, 1.0, 0.9, -3.0), Checkpoint(12, 1.0, 0.9, -4.0)]
    assert to_measure([8, 12], [], 1.0, scales=True) == (8, 1.0)
    assert to_measure([8, 12], full[:1], 1.0, scales=True) == (12, 1.0)
    assert to_measure([8, 12], full, 1.0, scales=False) is None
    assert to_measure([8, 12], full, 4.0, scales=True) is None
    assert to_measure([8, 12], full, 1.0, scales=True) == (8, 0.9)
    smaller = [Checkpoint(8, 0.9, 0.88, -0.5), Checkpoint(12, 0.9, 0.88, -2.0)]
    assert to_measure([8, 12], full + smaller, 1.0, scales=True) is None
    assert choose_checkpoint(full + smaller, 1.0) == smaller[0]


def test_a_sixth_of_each_key_validates_and_is_never_drawn() -> None:
    drawn, validating = set_aside(PROMPTS, 128)
    assert len(validating) == 20
    assert sum(prompt.key == "a" for prompt in validating) == 10
    assert not set(drawn) & set(validating)
    assert len(drawn) + len(validating) == 120
    assert set_aside(list(reversed(PROMPTS)), 128)[1] == validating
    assert len(set_aside(PROMPTS, 8)[1]) == 8


def test_a_small_batch_is_drawn_from_whole_and_validates_by_the_same_prompts() -> None:
    drawn, validating = set_aside(PROMPTS[:30], 24)
    assert drawn == PROMPTS[:30]
    assert len(validating) == 24


def test_a_subset_of_the_golden_set_is_spread_over_it() -> None:
    items = golden_items()
    subset = golden_subset(items, 10)
    assert len({item.name for item in subset}) == 10
    assert subset[0] is items[0]
    assert golden_subset(items[:4], 10) == items[:4]

"""Which weights are taken: of the best on validation prompts, those that keep most of the golden
set.
"""

from collections import Counter

from metaclaw.training.checkpoints import (
    Checkpoint,
    add_varied,
    choose_checkpoint,
    set_aside,
    split_golden,
)
from metaclaw.training.curriculum import TrainingPrompt
from metaclaw.training.golden import golden_items

PROMPTS = [TrainingPrompt(f"t_{number}", "ab"[number % 2]) for number in range(120)]


def test_of_those_nearly_as_good_as_the_best_the_one_is_taken_that_keeps_most_of_the_golden_set() -> (
    None
):
    best, whole, worse = (
        Checkpoint(8, 0.9, -3.0),
        Checkpoint(12, 0.88, -1.0),
        Checkpoint(16, 0.4, 0.0),
    )
    assert choose_checkpoint([best, whole, worse], margin=1.0) is whole
    assert choose_checkpoint([best, worse], margin=1.0) is best
    assert choose_checkpoint([best, whole, worse], margin=3.0) is whole


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


def test_a_small_batch_validates_by_varied_prompts_too_which_are_never_drawn() -> None:
    varied = [
        TrainingPrompt(f"{prompt.turn}~{number}", prompt.key)
        for prompt in PROMPTS[:30]
        for number in range(6)
    ]
    drawn, validating = add_varied(*set_aside(PROMPTS[:30], 24), varied, 24)
    apart = [prompt for prompt in validating if prompt in varied]
    assert (len(validating), len(apart)) == (24, 12)
    assert not set(apart) & set(drawn)
    assert set(drawn) >= set(PROMPTS[:30])
    assert len(drawn) == 30 + 150
    few = add_varied(*set_aside(PROMPTS[:30], 24), varied[:20], 24)
    assert few == (
        [*PROMPTS[:30], *varied[:20]],
        set_aside(PROMPTS[:30], 24)[1],
    ), "too few to set any aside"


def test_a_large_batch_draws_all_varied_prompts() -> None:
    drawn, validating = set_aside(PROMPTS, 128)
    varied = [TrainingPrompt(f"{prompt.turn}~1", prompt.key) for prompt in drawn]
    assert add_varied(drawn, validating, varied, 128) == ([*drawn, *varied], validating)


def test_items_that_choose_a_checkpoint_do_not_prove_it() -> None:
    items = golden_items()
    choosing, proving = split_golden(items, 1_000)
    assert {item.name for item in choosing} | {item.name for item in proving} == {
        item.name for item in items
    }
    assert not {item.name for item in choosing} & {item.name for item in proving}
    assert len(proving) == 901
    few, same = split_golden(items, 10)
    assert len({item.name for item in few} & {item.name for item in choosing}) == 10
    assert same == proving


def test_those_that_choose_and_those_that_prove_have_the_same_share_of_each_kind_and_answer() -> (
    None
):
    choosing, proving = split_golden(golden_items(), 1_000)
    shares = [
        Counter(
            (item.name.partition("-")[0], item.reference if item.reference in {"Yes", "No"} else "")
            for item in some
        )
        for some in (choosing, proving)
    ]
    for kind in shares[0] | shares[1]:
        of_all = shares[0][kind] + shares[1][kind]
        assert abs(shares[0][kind] - of_all / 4) < 2, kind

"""How long a run goes on and how fast: it ends when it has learned, stands still or has nothing to
learn from, and then settles.
"""

from collections.abc import Callable

import msgspec
import pytest

from metaclaw.training.progress import (
    Phase,
    checkpoint_steps,
    is_validation_due,
    learning_end,
    next_step,
    token_cap,
)
from metaclaw.training.recipe import Recipe
from metaclaw.training.records import GroupRecord, StepRecord

RULES = Recipe()


def step(
    reward: float, *, moved: bool = True, drift: str | None = None, earned: tuple[int, ...] = ()
) -> StepRecord:
    return StepRecord(
        [GroupRecord("t", "key", reward, 0.0)], reward, moved, list(earned), 10.0, drift=drift
    )


def rising(steps: int, to: float = 0.9) -> list[StepRecord]:
    return [step(to * (number + 1) / steps) for number in range(steps)]


def test_the_rate_rises_stays_and_falls_to_a_tenth() -> None:
    assert [next_step(rising(done), RULES).rate for done in (0, 4, 9, 30)] == [0.1, 0.5, 1.0, 1.0]
    learned = [*rising(20), *[step(0.98)] * 5]
    settling = [next_step([*learned, *[step(0.98)] * done], RULES) for done in range(16)]
    assert {one.phase for one in settling} == {Phase.SETTLE}
    assert settling[0].rate == pytest.approx(1.0 - 0.9 / 16)
    assert settling[-1].rate == pytest.approx(0.1)
    assert next_step([*learned, *[step(0.98)] * 16], RULES).phase is Phase.CHOOSE


def test_learning_ends_when_enough_is_learned_and_stays_ended() -> None:
    records = [*rising(10), *[step(0.98)] * 5]
    for later in range(3):
        end = learning_end([*records, *[step(0.2)] * later], RULES)
        assert end is not None
        assert (end.step, end.settles) == (15, True)
        assert end.reason.startswith("learned")


def test_learning_ends_when_nothing_has_become_better_for_long() -> None:
    records = [*rising(20, to=0.6), *[step(0.6)] * 60]
    end = learning_end(records, RULES)
    assert end is not None
    assert end.reason.startswith("no better for 25 steps")
    assert 40 < end.step < 70


def test_before_anything_is_learned_there_is_twice_as_much_patience() -> None:
    assert learning_end([step(0.1)] * 50, RULES) is None
    end = learning_end([step(0.1)] * 51, RULES)
    assert end is not None
    assert end.reason == "no better for 50 steps"


def test_a_run_without_any_gradient_ends_in_plain_words_and_keeps_nothing() -> None:
    records = [step(0.0, moved=False)] * 20
    assert next_step(records, RULES).phase is Phase.CHOOSE
    assert "nothing to learn from" in next_step(records, RULES).reason
    assert checkpoint_steps(records, RULES) == []


def test_the_most_steps_include_those_that_settle() -> None:
    rules = Recipe(steps=40)
    end = learning_end(rising(30), rules)
    assert end is not None
    assert end.step == 30
    assert next_step([*rising(30), *[step(0.9)] * 10], rules).phase is Phase.CHOOSE


def test_a_drift_ends_the_run_with_what_was_kept_before_it() -> None:
    records = [*rising(20), step(0.1, moved=False, drift="forgotten went from 0 to 3")]
    assert next_step(records, RULES).phase is Phase.CHOOSE
    assert checkpoint_steps(records, RULES) == [16]
    assert checkpoint_steps([step(0.5), step(0.1, moved=False, drift="kl")], RULES) == []


def test_the_best_point_the_end_of_learning_and_every_fourth_settling_step_are_kept() -> None:
    learning = [*rising(20), *[step(0.98)] * 5]
    assert checkpoint_steps(learning[:7], RULES) == []
    assert checkpoint_steps(learning[:9], RULES) == [8]
    settled = [*learning, *[step(0.98)] * 16]
    assert checkpoint_steps(settled, RULES) == [24, 25, 29, 33, 37, 41]
    assert all(
        set(checkpoint_steps(settled[:done], RULES)[1:]) <= {25, 29, 33, 37, 41}
        for done in range(25, 42)
    )


def test_answers_are_cut_at_twice_the_length_of_nearly_all_that_earned_something() -> None:
    assert token_cap([step(0.1, earned=(9,) * 15)], 256) == 256
    assert token_cap([step(0.1, earned=(9,) * 16)], 256) == 18
    assert token_cap([step(0.1, earned=(2,) * 16)], 256) == 16
    assert token_cap([step(0.1, earned=(2,) * 16)], 12) == 12
    assert token_cap([step(0.1, earned=(200,) * 16)], 256) == 256


ON_TWO_CORES = [
    *(
        0.006,
        0.002,
        0.014,
        0.012,
        0.060,
        0.045,
        0.050,
        0.129,
        0.254,
        0.410,
        0.490,
        0.726,
        0.716,
        0.608,
        0.893,
        0.927,
        0.769,
        0.714,
    ),
    *(
        0.829,
        0.871,
        1.000,
        0.815,
        0.827,
        0.960,
        0.803,
        0.945,
        0.849,
        1.000,
        1.000,
        0.827,
        0.718,
        0.632,
        0.964,
        0.985,
        1.000,
        0.940,
    ),
    *(1.000, 0.987, 1.000, 0.849, 0.986, 1.000, 0.961, 0.895, 0.850),
]
"""The mean rewards of a recorded run on two processor cores: one rule, steps of 4 prompts and 12
answers.
"""
SMALL_STEPS = Recipe(warm_up=4, settle=8, settle_every=8, validate_every=4)


def played(
    rewards: list[float], rules: Recipe, validated: Callable[[int], float]
) -> list[StepRecord]:
    """The run that these rewards make, with a validation reward by number of steps."""
    records: list[StepRecord] = []
    for reward in rewards:
        if next_step(records, rules).phase is Phase.CHOOSE:
            break
        records.append(step(reward))
        if is_validation_due(records, rules):
            records[-1] = msgspec.structs.replace(records[-1], validated=validated(len(records)))
    return records


def test_validation_prompts_end_a_run_of_small_steps_that_noise_would_keep_going() -> None:
    by_rewards = played(ON_TWO_CORES, Recipe(warm_up=4, settle=8), lambda done: 0.0)
    assert len(by_rewards) == 45
    records = played(ON_TWO_CORES, SMALL_STEPS, lambda done: 1.0)
    assert len(records) == 16
    assert [record.validated for record in records] == [None] * 15 + [1.0]
    following = next_step(records, SMALL_STEPS)
    assert (following.phase, following.reason) == (
        Phase.CHOOSE,
        "learned: the likeliest answers to the validation prompts earn 1.00",
    )
    assert checkpoint_steps(records, SMALL_STEPS) == [16]


def test_a_run_whose_rewards_and_validation_prompts_get_no_better_settles_and_ends() -> None:
    level = [*ON_TWO_CORES[:16], *[0.75] * 60]
    records = played(level, SMALL_STEPS, lambda done: 0.9)
    end = learning_end(records, SMALL_STEPS)
    assert end is not None
    assert (end.step, end.settles, end.reason) == (
        44,
        True,
        "no better on the validation prompts in 3 looks",
    )
    assert len(records) == 52
    assert checkpoint_steps(records, SMALL_STEPS) == [32, 44, 52]


def test_a_run_goes_on_while_its_rewards_or_its_validation_prompts_get_better() -> None:
    level = played(ON_TWO_CORES, SMALL_STEPS, lambda done: 0.9)
    assert len(level) == 45, "few validation prompts stay as they are while most others are learned"
    rising_still = played(ON_TWO_CORES, SMALL_STEPS, lambda done: 0.5 + done / 100)
    assert len(rising_still) == 45, (
        "while they get better the run goes on, here until its rewards end it"
    )


def test_prompts_that_go_badly_are_not_validated_and_large_steps_never_are() -> None:
    assert not any(is_validation_due([step(0.6)] * done, SMALL_STEPS) for done in range(1, 20))
    assert is_validation_due([step(0.8)] * 4, SMALL_STEPS)
    assert not is_validation_due([step(0.8)] * 5, SMALL_STEPS)
    assert not any(is_validation_due([step(0.8)] * done, RULES) for done in range(1, 20))

"""How long a run goes on and how fast: it ends when it has learned, stands still or has nothing to learn from, and then settles."""

import pytest

from metaclaw.train.records import GroupRecord, StepRecord
from metaclaw.train.schedule import Phase, ScheduleRules, checkpoint_steps, learning_end, next_step, token_cap

RULES = ScheduleRules()


def step(reward: float, *, moved: bool = True, drift: str | None = None, earned: tuple[int, ...] = ()) -> StepRecord:
    return StepRecord([GroupRecord("t", "key", reward, 0.0)], reward, moved, list(earned), 10.0, drift=drift)


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
    rules = ScheduleRules(most=40)
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
    assert all(set(checkpoint_steps(settled[:done], RULES)[1:]) <= {25, 29, 33, 37, 41} for done in range(25, 42))


def test_answers_are_cut_at_twice_the_length_of_nearly_all_that_earned_something() -> None:
    assert token_cap([step(0.1, earned=(9,) * 15)], 256) == 256
    assert token_cap([step(0.1, earned=(9,) * 16)], 256) == 18
    assert token_cap([step(0.1, earned=(2,) * 16)], 256) == 16
    assert token_cap([step(0.1, earned=(2,) * 16)], 12) == 12
    assert token_cap([step(0.1, earned=(200,) * 16)], 256) == 256

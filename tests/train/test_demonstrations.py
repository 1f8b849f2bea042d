"""How much a step learns from right answers that are known beforehand, and how long answers may be."""

import pytest

from metaclaw.train.demonstrations import Demonstration, demonstrate, demonstration_share, longest
from metaclaw.train.records import GroupRecord, StepRecord
from metaclaw.train.schedule import token_cap

KNOWN = [Demonstration("a", [[1], [2]], [5, 3]), Demonstration("a", [[4]], [6, 6, 3])]


def record(reward: float, earned: int = 0) -> StepRecord:
    return StepRecord([GroupRecord("t", "a", reward, 0.0)], reward, True, [earned] * 16 if earned else [], 1.0)


def test_they_weigh_less_the_more_is_earned_and_nothing_late_in_a_run() -> None:
    shares = [demonstration_share([record(reward)] * steps, "a") for reward, steps in ((0.0, 0), (0.0, 4), (0.2, 4), (0.3, 4))]
    assert shares == sorted(shares, reverse=True)
    assert (shares[0], shares[-1]) == (1.0, 0.0)
    assert demonstration_share([record(0.0)] * 24, "a") == 0.0


def test_their_tokens_share_the_weight_and_prompts_take_turns() -> None:
    data = demonstrate(KNOWN, [], 100.0)
    assert sum(sum(one.advantages_T) for one in data) == pytest.approx(100.0)
    assert [one.prompt for one in data] == [(1,), (4,)]
    assert demonstrate(KNOWN, [record(0.0)], 100.0)[0].prompt == (2,)
    assert {weight for one in demonstrate(KNOWN, [], 0.0) for weight in one.advantages_T} == {1.0}
    assert demonstrate(KNOWN, [record(0.5)], 100.0) == []


def test_the_first_answers_may_be_somewhat_longer_than_those_that_are_shown() -> None:
    assert longest(KNOWN) == 3
    assert token_cap([], 256) == 256
    assert token_cap([], 256, 14) == 23
    assert token_cap([], 20, 14) == 20
    assert token_cap([record(0.5, earned=21)], 256, 14) == 42

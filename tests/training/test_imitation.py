"""What is done against settling on answers that earn a part: the best answer is remembered, and few
lessons move little.
"""

import math

import pytest

from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Rollout
from metaclaw.training.advantages import ScoredGroup, group_advantages, normaliser, step_size
from metaclaw.training.imitation import (
    Demonstration,
    best_answers,
    better_answers,
    demonstrate,
    demonstration_share,
    habits,
    imitate_best,
    is_flat,
    is_settled,
    longest_demonstration,
)
from metaclaw.training.progress import token_cap
from metaclaw.training.records import BestAnswer, GroupRecord, StepRecord
from tests.support.cases import each


def group(*rewards: float, turn: str = "t") -> ScoredGroup:
    answers = tuple(
        Rollout((number, 3), (-1.0, -1.0), str(number), True)
        for number in range(1, len(rewards) + 1)
    )
    return ScoredGroup(TurnId(turn), (9, 9), answers, rewards)


@each(
    ("rewards", "flat", "settled"),
    [
        ((0.0, 0.0), True, False),
        ((0.4, 0.41), True, True),
        ((0.4, 0.9), False, False),
        ((1.0, 1.0), False, False),
    ],
)
def test_a_prompt_has_settled_where_all_answers_earn_the_same_part(
    rewards: tuple[float, ...], flat: bool, settled: bool
) -> None:
    assert (is_flat(group(*rewards)), is_settled(group(*rewards))) == (flat, settled)


def test_an_answer_is_remembered_that_is_better_than_its_group_and_all_before() -> None:
    (found,) = better_answers([group(0.1, 1.0, 0.2)], {})
    assert (found.tokens, found.reward) == ([2, 3], 1.0)
    assert better_answers([group(0.1, 0.5, 0.2)], {"t": found}) == []
    assert better_answers([group(0.4, 0.4)], {}) == []


def test_the_newest_of_the_remembered_answers_is_the_best() -> None:
    records = [
        StepRecord([], None, True, [], 1.0, found=[BestAnswer("t", [number], number / 10)])
        for number in (3, 5)
    ]
    assert best_answers(records)["t"].tokens == [5]


def test_the_best_answer_is_imitated_while_the_answers_of_today_are_worse() -> None:
    known = {"t": BestAnswer("t", [7, 3], 1.0)}
    (datum,) = imitate_best([group(0.3, 0.3)], known)
    assert datum.tokens_T == (7, 3)
    assert datum.advantages_T == (3.0, 3.0)
    assert imitate_best([group(0.3, 1.0)], known) == ()
    assert imitate_best([group(0.3, 0.3, turn="other")], known) == ()


def test_small_differences_are_not_stretched() -> None:
    near, far = (group_advantages([one]).data for one in (group(0.45, 0.46), group(0.0, 1.0)))
    assert [datum.advantages_T[0] for datum in near] == pytest.approx([-0.05, 0.05])
    assert [datum.advantages_T[0] for datum in far] == pytest.approx([-1.0, 1.0])


def test_one_group_of_many_moves_the_weights_less_than_all_of_them() -> None:
    groups = [group(0.0, 1.0), *(group(0.5, 0.5) for _ in range(15))]
    data = group_advantages(groups).data
    assert step_size(data, groups) == pytest.approx(normaliser(data) * math.sqrt(16))
    assert step_size(data, groups[:1]) == normaliser(data)


KNOWN = [Demonstration("a", [[1], [2]], [5, 3]), Demonstration("a", [[4]], [6, 6, 3])]


def record(reward: float, earned: int = 0) -> StepRecord:
    return StepRecord(
        [GroupRecord("t", "a", reward, 0.0)], reward, True, [earned] * 16 if earned else [], 1.0
    )


def test_they_weigh_less_the_more_is_earned_and_nothing_late_in_a_run() -> None:
    shares = [
        demonstration_share([record(reward)] * steps, "a")
        for reward, steps in ((0.0, 0), (0.0, 4), (0.2, 4), (0.3, 4))
    ]
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
    assert longest_demonstration(KNOWN) == 3
    assert token_cap([], 256) == 256
    assert token_cap([], 256, 14) == 23
    assert token_cap([], 20, 14) == 20
    assert token_cap([record(0.5, earned=21)], 256, 14) == 42


def test_good_answers_are_taught_behind_the_prompt_without_its_rules_so_that_they_become_habits() -> (
    None
):
    with_rules, without_any = group(0.2, 1.0, 0.95, turn="t"), group(1.0, turn="u")
    taught = habits([with_rules, without_any], {"t": (7, 7)}.get)
    assert [(one.prompt, one.tokens_T) for one in taught] == [((7, 7), (2, 3)), ((7, 7), (3, 3))]


def test_few_answers_to_a_prompt_become_habits_at_a_time() -> None:
    assert len(habits([group(*[1.0] * 16)], lambda turn: (7,))) == 4

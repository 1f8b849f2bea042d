"""Rewards become advantages against the group; what cannot teach is counted."""

import math
from collections import Counter

import pytest

from metaclaw.domain.ids import TurnId
from metaclaw.training.advantages import (
    ScoredGroup,
    Skip,
    TrainingData,
    group_advantages,
    normaliser,
)
from tests.support.cases import each
from tests.training.made import rollout, scored


def advantages(harvest: TrainingData) -> list[float]:
    return [one.advantages_T[0] for one in harvest.data]


def test_a_rollout_is_as_good_as_it_is_better_than_the_others_of_its_prompt() -> None:
    harvest = group_advantages([scored([1.0, 0.0, 0.0, 1.0]), scored([0.2, 0.4, 0.6], turn="t2")])
    far = math.sqrt(1.5)
    assert advantages(harvest) == pytest.approx([1.0, -1.0, -1.0, 1.0, -far, 0.0, far])
    assert harvest.skipped == Counter()


def test_every_drawn_token_carries_the_advantage_of_its_rollout_with_exact_tokens_and_logprobs() -> (
    None
):
    group = scored([0.0, 1.0])
    first, second = group_advantages([group]).data
    assert (first.tokens_T, second.tokens_T) == tuple(one.tokens_T for one in group.rollouts_G)
    assert second.logprobs_T == group.rollouts_G[1].logprobs_T
    assert second.advantages_T == (1.0, 1.0)
    assert (second.turn, second.prompt) == (group.turn, group.prompt)


@each(
    ("rewards", "reason"),
    [
        ((0.5, 0.5, 0.5), Skip.FLAT),
        ((0.5, 0.50005), Skip.FLAT),
        ((None, 1.0), Skip.ALONE),
        ((None, None), Skip.UNSCORED),
    ],
)
def test_a_group_that_says_nothing_gives_no_data_and_is_counted_with_its_reason(
    rewards: tuple[float | None, ...], reason: Skip
) -> None:
    harvest = group_advantages([scored(rewards), scored([0.0, 1.0], turn="t2")])
    assert {one.turn for one in harvest.data} == {"t2"}
    assert harvest.skipped[reason] > 0
    assert harvest.skipped.total() == len(rewards)


def test_a_rollout_that_nobody_could_score_is_left_out_of_the_mean_and_is_not_a_zero() -> None:
    harvest = group_advantages([scored([None, 2.0, 4.0])])
    assert advantages(harvest) == pytest.approx([-1.0, 1.0])
    assert harvest.skipped == Counter({Skip.UNSCORED: 1})


def test_what_does_not_line_up_is_no_group() -> None:
    with pytest.raises(
        ValueError, match=r"turn t1: a group cannot have 3 prompt tokens, 1 rollouts and 2 rewards"
    ):
        ScoredGroup(TurnId("t1"), (1, 2, 3), (rollout(),), (1.0, 0.0))
    with pytest.raises(ValueError, match=r"turn t1: a reward is not a finite number"):
        scored([math.nan, 1.0])


def test_a_step_is_divided_by_all_its_drawn_tokens() -> None:
    assert normaliser(group_advantages([scored([0.0, 1.0, 0.5])]).data) == 1 + 2 + 3

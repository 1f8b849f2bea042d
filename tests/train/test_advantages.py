"""Rewards become advantages against the group, or against the batch; what cannot teach is
counted.
"""

import json
import math
import random

import pytest

from metaclaw.domain.chat import Json
from metaclaw.domain.ids import TurnId
from metaclaw.errors import TrainingError
from metaclaw.train.advantages import (
    MOST_KEYS,
    ScoredGroup,
    Skip,
    Skipped,
    Tracker,
    TrainingData,
    ValueMemory,
    batch_advantages,
    group_advantages,
    normaliser,
)
from tests.support.cases import each
from tests.train.made import rollout, scored


def advantages(harvest: TrainingData) -> list[float]:
    return [one.advantages_T[0] for one in harvest.data]


def test_a_rollout_is_as_good_as_it_is_better_than_the_others_of_its_prompt() -> None:
    harvest = group_advantages([scored([1.0, 0.0, 0.0, 1.0]), scored([0.2, 0.4, 0.6], turn="t2")])
    far = math.sqrt(1.5)
    assert advantages(harvest) == pytest.approx([1.0, -1.0, -1.0, 1.0, -far, 0.0, far])
    assert harvest.skipped == Skipped()


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
    assert harvest.skipped.groups == {reason: 1}
    assert harvest.skipped.total == len(rewards)


def test_a_rollout_that_nobody_could_score_is_left_out_of_the_mean_and_is_not_a_zero() -> None:
    harvest = group_advantages([scored([None, 2.0, 4.0])])
    assert advantages(harvest) == pytest.approx([-1.0, 1.0])
    assert harvest.skipped == Skipped({Skip.UNSCORED: 1}, {})


def test_the_batch_is_the_baseline_where_each_prompt_was_answered_once() -> None:
    harvest = batch_advantages(
        [scored([reward], turn=f"t{at}") for at, reward in enumerate([1.0, 0.0, 0.0, 1.0])]
    )
    assert advantages(harvest) == pytest.approx([1.0, -1.0, -1.0, 1.0])


def test_an_outlier_of_the_batch_is_clipped() -> None:
    rewards = [0.0] * 99 + [1.0]
    harvest = batch_advantages(
        [scored([reward], turn=f"t{at}") for at, reward in enumerate(rewards)]
    )
    assert max(advantages(harvest)) == 3.0


@each(
    ("batch", "rollouts", "groups"),
    [
        (
            [[0.5], [0.5], [None]],
            {Skip.FLAT: 2, Skip.UNSCORED: 1},
            {Skip.FLAT: 2, Skip.UNSCORED: 1},
        ),
        ([[0.5]], {Skip.ALONE: 1}, {Skip.ALONE: 1}),
        ([[None]], {Skip.UNSCORED: 1}, {Skip.UNSCORED: 1}),
        ([], {}, {}),
    ],
)
def test_a_batch_without_variance_teaches_nothing_and_says_so(
    batch: list[list[float | None]], rollouts: dict[Skip, int], groups: dict[Skip, int]
) -> None:
    harvest = batch_advantages([scored(rewards, turn=f"t{at}") for at, rewards in enumerate(batch)])
    assert harvest == TrainingData((), Skipped(rollouts, groups))


def test_what_does_not_line_up_is_no_group() -> None:
    with pytest.raises(
        ValueError, match=r"turn t1: a group cannot have 3 prompt tokens, 1 rollouts and 2 rewards"
    ):
        ScoredGroup(TurnId("t1"), (1, 2, 3), (rollout(),), (1.0, 0.0))
    with pytest.raises(ValueError, match=r"turn t1: a reward is not a finite number"):
        scored([math.nan, 1.0])


def test_a_step_is_divided_by_all_its_drawn_tokens() -> None:
    assert normaliser(group_advantages([scored([0.0, 1.0, 0.5])]).data) == 1 + 2 + 3


def learned(batches: int, seed: int = 1) -> Tracker:
    """A tracker that has seen an easy and a hard kind of task."""
    rng, tracker = random.Random(seed), Tracker()
    for _ in range(batches):
        easy = [scored([float(rng.random() < 0.9)], key="easy") for _ in range(8)]
        hard = [scored([float(rng.random() < 0.1)], key="hard") for _ in range(8)]
        _, tracker = tracker.judge([*easy, *hard], moved=0.01)
    return tracker


def test_values_come_close_to_what_each_kind_of_task_is_worth() -> None:
    tracker = learned(60)
    assert tracker.value("easy") == pytest.approx(0.9, abs=0.1)
    assert tracker.value("hard") == pytest.approx(0.1, abs=0.1)


def test_a_hard_task_done_is_worth_more_than_an_easy_one_done() -> None:
    harvest, _ = learned(30).judge(
        [scored([1.0], turn="e", key="easy"), scored([1.0], turn="h", key="hard")], moved=0.0
    )
    by_turn = {one.turn: one.advantages_T[0] for one in harvest.data}
    assert by_turn == pytest.approx({"e": -1.0, "h": 1.0})


def test_no_rollout_is_its_own_baseline() -> None:
    tracker = learned(30)
    once, _ = tracker.judge(
        [scored([1.0], turn="e", key="easy"), scored([0.0], turn="h", key="hard")], moved=0.0
    )
    again, _ = tracker.judge(
        [scored([1.0], turn="e", key="easy"), scored([0.0], turn="h", key="hard")], moved=0.0
    )
    assert once == again


def test_a_key_never_seen_begins_at_the_mean_of_all() -> None:
    tracker = learned(30)
    assert tracker.value("new") == pytest.approx(0.5, abs=0.1)
    assert Tracker().value("new") is None


def test_a_policy_that_has_moved_far_forgets_faster() -> None:
    still = far = learned(30)
    for _ in range(3):
        _, still = still.judge([scored([0.0], key="easy")], moved=0.0)
        _, far = far.judge([scored([0.0], key="easy")], moved=1.0)
    value_still, value_far = still.value("easy"), far.value("easy")
    assert value_still is not None
    assert value_far is not None
    assert value_far < value_still


@each(("moved", "kept"), [(0.0, 0.96), (0.006, 2**-0.1), (0.06, 0.875), (1e9, 0.875)])
def test_what_is_kept_is_halved_by_distance_within_bounds(moved: float, kept: float) -> None:
    assert ValueMemory().kept(moved) == pytest.approx(kept)


def test_what_is_kept_as_json_goes_on_as_if_nothing_had_happened() -> None:
    tracker = learned(5)
    again = Tracker.of(json.loads(json.dumps(tracker.state())))
    batch = [scored([1.0], key="easy"), scored([0.0, 1.0], turn="h", key="hard")]
    assert again.judge(batch, moved=0.1)[0] == tracker.judge(batch, moved=0.1)[0]
    assert again.judge(batch, moved=0.1)[1].state() == tracker.judge(batch, moved=0.1)[1].state()


@each(
    "state",
    [
        {},
        {"clock": 0.0, "values": {"a": [1.0, 2.0]}},
        {"clock": 0.0, "values": {"a": [1.0, 0.0, 0.0]}},
        {"clock": True, "values": {}},
        {"clock": 0.0, "values": {"a": [1.0, math.nan, 0.0]}},
    ],
)
def test_a_state_that_is_none_is_refused(state: dict[str, Json]) -> None:
    with pytest.raises(TrainingError):
        Tracker.of(state)


@pytest.mark.parametrize("moved", [math.nan, -0.1, math.inf])
def test_an_impossible_distance_is_refused(moved: float) -> None:
    with pytest.raises(TrainingError):
        Tracker().judge([scored([1.0, 0.0])], moved)


def test_memory_is_bounded_and_drops_what_was_used_longest_ago() -> None:
    tracker = Tracker()
    _, tracker = tracker.judge([scored([1.0], key="old"), scored([1.0], key="used")], moved=0.0)
    _, tracker = tracker.judge(
        [scored([1.0], key=str(at)) for at in range(MOST_KEYS)] + [scored([1.0], key="used")],
        moved=0.0,
    )
    values = tracker.state()["values"]
    assert isinstance(values, dict)
    assert len(values) == MOST_KEYS
    assert "used" in values
    assert "old" not in values


@pytest.mark.parametrize(
    ("rewards", "rollouts"),
    [
        ([0.5, 0.5], {Skip.FLAT: 2}),
        ([None, 1.0], {Skip.UNSCORED: 1, Skip.ALONE: 1}),
        ([None], {Skip.UNSCORED: 1}),
    ],
)
def test_a_batch_that_says_nothing_is_counted_and_what_was_unknown_is_not_remembered(
    rewards: list[float | None], rollouts: dict[Skip, int]
) -> None:
    harvest, after = Tracker().judge([scored(rewards)], moved=0.0)
    assert harvest.data == ()
    assert harvest.skipped.rollouts == rollouts
    assert (after.value("") is None) == (rewards == [None])


def test_nothing_given_is_nothing_learned() -> None:
    harvest, after = Tracker().judge([], moved=0.5)
    assert harvest == TrainingData((), Skipped())
    assert after.value("any") is None

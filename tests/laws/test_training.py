"""Laws of training: advantages are relative, data are aligned, and whatever is given either teaches
or is counted.
"""

import math
from collections import Counter

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Rollout
from metaclaw.training.advantages import (
    LEAST_SPREAD,
    ScoredGroup,
    TrainingData,
    group_advantages,
    normaliser,
    spread,
)
from metaclaw.training.curriculum import cut_pieces
from metaclaw.training.imitation import distil

REWARDS = st.floats(-10.0, 10.0)
LOGPROBS = st.floats(-20.0, 0.0)
few = settings(max_examples=60, deadline=None)


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    logprobs = draw(st.lists(LOGPROBS, min_size=1, max_size=6))
    tokens = draw(st.lists(st.integers(0, 99), min_size=len(logprobs), max_size=len(logprobs)))
    return Rollout(tuple(tokens), tuple(logprobs), "", draw(st.booleans()))


@st.composite
def groups(draw: st.DrawFn, *, turn: int = 0) -> ScoredGroup:
    drawn = tuple(draw(st.lists(rollouts(), min_size=1, max_size=6)))
    rewards = draw(st.lists(st.none() | REWARDS, min_size=len(drawn), max_size=len(drawn)))
    prompt = tuple(draw(st.lists(st.integers(0, 99), min_size=1, max_size=5)))
    return ScoredGroup(
        TurnId(f"t{turn}"), prompt, drawn, tuple(rewards), draw(st.sampled_from(["", "a", "b"]))
    )


@st.composite
def batches(draw: st.DrawFn) -> list[ScoredGroup]:
    return [draw(groups(turn=turn)) for turn in range(draw(st.integers(0, 5)))]


def all_ways(batch: list[ScoredGroup]) -> list[TrainingData]:
    scored = [group for group in batch if group.known]
    return [group_advantages(batch), TrainingData(distil(scored, scored))]


@few
@given(groups())
def test_the_advantages_of_a_group_sum_to_zero(group: ScoredGroup) -> None:
    harvest = group_advantages([group])
    assert math.fsum(one.advantages_T[0] for one in harvest.data) == pytest.approx(0.0, abs=1e-6)


@few
@given(groups(), st.floats(-100.0, 100.0))
def test_a_shift_of_rewards_that_are_not_nearly_alike_changes_no_advantage(
    group: ScoredGroup, shift: float
) -> None:
    known = [reward for _, reward in group.known]
    assume(not known or spread(known)[1] > LEAST_SPREAD)
    rewards = tuple(None if reward is None else reward + shift for reward in group.rewards_G)
    moved = ScoredGroup(group.turn, group.prompt, group.rollouts_G, rewards)
    before, after = group_advantages([group]), group_advantages([moved])
    assert after.skipped == before.skipped
    for one, other in zip(before.data, after.data, strict=True):
        assert other.advantages_T == pytest.approx(one.advantages_T, abs=1e-6)


@few
@given(batches())
def test_every_rollout_that_is_given_either_teaches_or_is_counted(batch: list[ScoredGroup]) -> None:
    given_rollouts = sum(len(group.rollouts_G) for group in batch)
    harvest = group_advantages(batch)
    assert len(harvest.data) + harvest.skipped.total() == given_rollouts


@few
@given(batches())
def test_every_datum_is_a_rollout_token_for_token_and_no_prompt_token_carries_an_advantage(
    batch: list[ScoredGroup],
) -> None:
    drawn = Counter(
        (group.turn, group.prompt, rollout.tokens_T)
        for group in batch
        for rollout in group.rollouts_G
    )
    for harvest in all_ways(batch):
        taught = Counter((one.turn, one.prompt, one.tokens_T) for one in harvest.data)
        assert taught <= drawn
        for one in harvest.data:
            assert len(one.advantages_T) == len(one.tokens_T)
            assert one.logprobs_T is None or len(one.logprobs_T) == len(one.tokens_T)
            assert all(map(math.isfinite, one.advantages_T))
        assert normaliser(harvest.data) == sum(
            len(tokens) * count for (_, _, tokens), count in taught.items()
        )


@few
@given(batches(), st.integers(1, 40), st.integers(0, 5))
def test_cutting_into_pieces_loses_nothing_and_keeps_prompts_together(
    batch: list[ScoredGroup], most: int, seed: int
) -> None:
    data = group_advantages(batch).data
    pieces = cut_pieces(data, most, seed)
    assert Counter(one for piece in pieces for one in piece) == Counter(data)
    for piece in pieces:
        seen = [
            one.turn for at, one in enumerate(piece) if at == 0 or piece[at - 1].turn != one.turn
        ]
        assert len(seen) == len(set(seen))
        prompts = sum(len(prompt) for _, prompt in {(one.turn, one.prompt) for one in piece})
        assert len(piece) == 1 or prompts + normaliser(piece) <= most

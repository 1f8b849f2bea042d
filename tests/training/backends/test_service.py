"""Rows as they are sent: aligned, silent on the prompt, and scaled so that every service makes the
same gradient of them.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Datum, Loss, LossKind
from metaclaw.training.backends.service import (
    Objective,
    Reduction,
    lay_out,
    lay_out_step,
    objective,
)

tokens = st.integers(0, 127)


@st.composite
def data(draw: st.DrawFn) -> Datum:
    prompt = draw(st.lists(tokens, min_size=1, max_size=6))
    drawn = draw(
        st.lists(st.tuples(tokens, st.floats(-4, 4), st.floats(-9, 0)), min_size=1, max_size=6)
    )
    drawn_tokens, advantages, logprobs = zip(*drawn, strict=True)
    return Datum(TurnId("turn"), tuple(prompt), drawn_tokens, advantages, logprobs)


@given(data(), st.floats(0.1, 10))
def test_a_row_is_aligned_and_its_prompt_carries_nothing(datum: Datum, factor: float) -> None:
    row = lay_out(datum, factor)
    assert len(row.inputs) == len(row.targets) == len(row.logprobs) == len(row.advantages)
    assert (
        (*row.inputs, row.targets[-1])
        == (row.inputs[0], *row.targets)
        == datum.prompt + datum.tokens_T
    )
    drawn = len(datum.tokens_T)
    assert row.targets[-drawn:] == datum.tokens_T
    assert row.logprobs[-drawn:] == datum.logprobs_T
    assert row.advantages[-drawn:] == tuple(advantage * factor for advantage in datum.advantages_T)
    assert not any(row.logprobs[:-drawn])
    assert not any(row.advantages[:-drawn])


@given(
    st.lists(st.lists(data(), min_size=1, max_size=3), min_size=1, max_size=3), st.floats(0.5, 100)
)
def test_after_either_averaging_each_token_weighs_its_advantage_over_the_normaliser(
    pieces: list[list[Datum]], normaliser: float
) -> None:
    summed = [row for rows in lay_out_step(pieces, normaliser, Reduction.SUM) for row in rows]
    averaged = [row for rows in lay_out_step(pieces, normaliser, Reduction.MEAN) for row in rows]
    for datum, one, other in zip(
        (datum for piece in pieces for datum in piece), summed, averaged, strict=True
    ):
        wanted = [advantage / normaliser for advantage in datum.advantages_T]
        drawn = len(datum.tokens_T)
        assert one.advantages[-drawn:] == pytest.approx(wanted)
        # What a service that averages does with them.
        effect = [
            advantage / len(other.targets) / len(averaged)
            for advantage in other.advantages[-drawn:]
        ]
        assert effect == pytest.approx(wanted)


def test_clip_ranges_are_sent_as_ratios() -> None:
    sent = objective(Loss(LossKind.PPO, clip_low=0.2, clip_high=0.28), Reduction.SUM)
    assert sent == Objective("ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.28})


def test_cross_entropy_is_weighed_where_weights_are_summed_and_told_by_cispo_where_they_are_averaged() -> (
    None
):
    loss = Loss(LossKind.CROSS_ENTROPY)
    assert objective(loss, Reduction.SUM) == Objective("cross_entropy", None, sends_weights=True)
    assert objective(loss, Reduction.MEAN) == Objective(
        "cispo", {"clip_low_threshold": 1.0, "clip_high_threshold": 1.0}
    )

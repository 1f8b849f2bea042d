"""The losses against their formulas, their statistics, and the optimiser against that of torch."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from metaclaw.domain.training import Adam, Loss, LossKind
from metaclaw.engine.training.losses import AdamW, DrawnTokens, k3, piece_stats, sums, token_losses
from metaclaw.errors import TrainingError
from tests.support.cases import each

_logprobs = st.floats(-6.0, -0.01)
_tokens = st.lists(
    st.tuples(_logprobs, _logprobs, st.floats(-3, 3), _logprobs), min_size=1, max_size=6
)
Rows = list[tuple[float, float, float, float]]


def _drawn(rows: Rows, *, with_reference: bool = True) -> DrawnTokens:
    now, old, advantages, reference = (
        torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True)
    )
    return DrawnTokens(
        now.requires_grad_(),
        advantages,
        old,
        reference if with_reference else None,
    )


def _slopes(losses_D: Tensor, drawn: DrawnTokens) -> list[float]:
    (slopes,) = torch.autograd.grad(losses_D.sum(), drawn.logprobs_D)
    found: list[float] = slopes.tolist()
    return found


def _by_hand(kind: LossKind, now: float, old: float, advantage: float) -> tuple[float, float]:
    """A token's loss and its slope by the log-probability, with clips at 0.8 and 1.28."""
    ratio = math.exp(now - old)
    held = min(max(ratio, 0.8), 1.28)
    if kind is LossKind.CROSS_ENTROPY:
        return -advantage * now, -advantage
    is_held = (advantage > 0 and ratio > 1.28) or (advantage < 0 and ratio < 0.8)
    return -min(ratio * advantage, held * advantage), 0.0 if is_held else -ratio * advantage


@pytest.mark.parametrize("kind", LossKind)
@settings(deadline=None)
@given(rows=_tokens)
def test_each_kind_is_its_formula(kind: LossKind, rows: Rows) -> None:
    drawn = _drawn(rows)
    losses_D = token_losses(Loss(kind, 0.2, 0.28), drawn)
    expected = [_by_hand(kind, now, old, advantage) for now, old, advantage, _ in rows]
    assert losses_D.tolist() == pytest.approx([loss for loss, _ in expected], rel=1e-9, abs=1e-9)
    assert _slopes(losses_D, drawn) == pytest.approx(
        [slope for _, slope in expected], rel=1e-9, abs=1e-9
    )


@settings(deadline=None)
@given(st.floats(-20, 0), st.floats(-20, 0))
def test_the_distance_is_never_negative_and_zero_only_at_the_reference(
    one: float, two: float
) -> None:
    distance = float(
        k3(torch.tensor(one, dtype=torch.float64), torch.tensor(two, dtype=torch.float64))
    )
    assert distance >= 0
    assert (distance == 0) == (one == two) or abs(one - two) < 1e-6


def test_on_policy_all_policy_losses_have_the_same_gradient() -> None:
    rows = [(-1.0, -1.0, 0.7, -1.2), (-2.5, -2.5, -1.3, -2.0)]
    slopes = [
        _slopes(token_losses(Loss(kind), drawn), drawn)
        for kind in LossKind
        for drawn in [_drawn(rows)]
    ]
    assert all(slope == pytest.approx([-0.7, 1.3]) for slope in slopes)


def test_the_statistics_are_means_over_tokens_of_all_portions() -> None:
    rows = [(-1.0, -1.0, 1.0, -1.0), (-1.0, -3.0, 1.0, -1.5), (-3.0, -1.0, 1.0, -3.0)]
    portions = [
        sums(token_losses(loss, d), d).tolist()
        for loss in [Loss(LossKind.PPO)]
        for d in map(_drawn, (rows[:1], rows[1:]))
    ]
    stats = piece_stats(3, portions)
    ratios = [1.0, math.exp(2), math.exp(-2)]
    assert stats.tokens == 3
    assert stats.loss == pytest.approx(-(1.0 + 1.28 + ratios[2]) / 3)
    assert stats.ratio_mean == pytest.approx(sum(ratios) / 3)
    assert stats.kl == pytest.approx((math.exp(-0.5) + 0.5 - 1) / 3)


def test_what_a_loss_was_not_given_is_unknown_and_not_zero() -> None:
    drawn = DrawnTokens(torch.tensor([-1.0]), torch.tensor([1.0]), None, None)
    stats = piece_stats(
        1,
        [
            sums(
                token_losses(Loss(LossKind.CROSS_ENTROPY), drawn),
                drawn,
            ).tolist()
        ],
    )
    assert (stats.kl, stats.ratio_mean) == (None, None)
    with pytest.raises(ValueError, match="log-probabilities"):
        token_losses(Loss(LossKind.PPO), drawn)


@settings(max_examples=30, deadline=None)
@given(
    rate=st.floats(1e-5, 0.1),
    decay=st.floats(0, 0.3),
    betas=st.tuples(st.floats(0.5, 0.95), st.floats(0.8, 0.999)),
    clip=st.sampled_from([0.0, 0.5, 100.0]),
    normaliser=st.floats(0.5, 50),
    seed=st.integers(0, 99),
)
def test_it_makes_the_same_steps_as_torch(
    rate: float, decay: float, betas: tuple[float, float], clip: float, normaliser: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    mine = torch.randn(40, generator=generator)
    theirs = torch.nn.Parameter(mine.clone())
    adam = Adam(rate, *betas, weight_decay=decay, grad_clip_norm=clip)
    optimiser = torch.optim.AdamW(
        [theirs], lr=rate, betas=betas, eps=adam.eps, weight_decay=decay, foreach=False
    )
    adamw = AdamW(mine)
    for _ in range(4):
        gradient = torch.randn(40, generator=generator) * 5
        theirs.grad = gradient / normaliser
        norm = torch.nn.utils.clip_grad_norm_([theirs], clip or float("inf"))
        optimiser.step()
        assert adamw.apply(mine, gradient, adam, normaliser) == pytest.approx(float(norm), rel=1e-5)
        assert torch.allclose(mine, theirs.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing(bad: float) -> None:
    values = torch.ones(3)
    adamw = AdamW(values)
    adamw.apply(values, torch.tensor([1.0, 2.0, 3.0]), Adam(), 1.0)
    before = [tensor.clone() for tensor in (values, adamw.first, adamw.second)]
    with pytest.raises(TrainingError, match="not finite"):
        adamw.apply(values, torch.tensor([1.0, bad, 3.0]), Adam(), 1.0)
    assert all(
        torch.equal(*pair) for pair in zip(before, (values, adamw.first, adamw.second), strict=True)
    )
    assert adamw.steps == 1


@each("normaliser", [0.0, -1.0, float("nan"), float("inf")])
def test_a_normaliser_must_be_a_positive_number(normaliser: float) -> None:
    with pytest.raises(TrainingError, match="divided"):
        AdamW(torch.ones(1)).apply(torch.ones(1), torch.ones(1), Adam(), normaliser)

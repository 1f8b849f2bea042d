"""The optimiser against torch's own, and what it refuses."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.domain.training import Adam
from metaclaw.engine.training.losses import AdamW
from metaclaw.errors import TrainingError


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
    optimiser = torch.optim.AdamW([theirs], lr=rate, betas=betas, eps=adam.eps, weight_decay=decay, foreach=False)
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
    assert all(torch.equal(*pair) for pair in zip(before, (values, adamw.first, adamw.second), strict=True))
    assert adamw.steps == 1


@pytest.mark.parametrize("normaliser", [0.0, -1.0, float("nan"), float("inf")])
def test_a_normaliser_must_be_a_positive_number(normaliser: float) -> None:
    with pytest.raises(TrainingError, match="divided"):
        AdamW(torch.ones(1)).apply(torch.ones(1), torch.ones(1), Adam(), normaliser)

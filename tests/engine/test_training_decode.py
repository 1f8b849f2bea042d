"""Chance: a rollout's numbers are its own, and what is drawn with them follows the distribution."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.engine.drawing import Heat, choose, uniforms
from metaclaw.engine.training.decode_cuda import Recorder
from tests.support.cases import each

_SMALL = st.integers(0, 2**40)


def _uniforms(seed: int, pairs: list[tuple[int, int]], tokens: int) -> torch.Tensor:
    prompts, rollouts = (np.array(side, dtype=np.uint64) for side in zip(*pairs, strict=True))
    return uniforms(seed, prompts, rollouts, tokens)


@given(
    st.integers(-(2**70), 2**70),
    st.lists(st.tuples(_SMALL, _SMALL), min_size=1, max_size=8, unique=True),
)
def test_numbers_belong_to_their_rollout_and_not_to_its_company(
    seed: int, pairs: list[tuple[int, int]]
) -> None:
    together = _uniforms(seed, pairs, 6)
    for row, pair in zip(together, pairs, strict=True):
        assert torch.equal(_uniforms(seed, [pair], 6)[0], row)
        assert torch.equal(_uniforms(seed, [pair], 3)[0], row[:3])
    assert bool(((together >= 0.0) & (together < 1.0)).all())
    assert len(set(together.flatten().tolist())) == together.numel()


def test_numbers_are_spread_evenly_over_neighbours_of_every_kind() -> None:
    counts = torch.histc(
        _uniforms(
            0, [(prompt, rollout) for prompt in range(32) for rollout in range(32)], 64
        ).float(),
        64,
        0.0,
        1.0,
    )
    expected = 1024 * 64 / 64
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    # 63 degrees of freedom: the mean is 63, and six deviations of 11.2 above it are 130.
    assert chi_square < 130
    numbers = _uniforms(0, [(prompt, 0) for prompt in range(512)], 512)
    for one, other in ((numbers[:-1], numbers[1:]), (numbers[:, :-1], numbers[:, 1:])):
        assert (
            abs(float(torch.corrcoef(torch.stack((one.flatten(), other.flatten())))[0, 1])) < 0.01
        )


@settings(deadline=None, max_examples=15, derandomize=True)
@given(
    st.integers(0, 2**32),
    st.sampled_from([3, 64, 256, 300, 1000]),
    st.sampled_from([0.5, 1.0, 1.7]),
    st.floats(0.1, 6.0),
)
def test_what_is_drawn_follows_the_softmax(
    seed: int, vocabulary: int, temperature: float, spread: float
) -> None:
    draws = 10_000
    logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed)) * spread
    share = _uniforms(seed, [(0, rollout) for rollout in range(draws)], 1)[:, 0]
    tokens, logprobs = choose(logits.repeat(draws, 1), share, Heat.of(temperature))
    expected = (logits.double() / temperature).softmax(-1) * draws
    counts = torch.bincount(tokens, minlength=vocabulary).double()
    # Tokens expected less than five times are counted as one, as a chi-square test needs it.
    is_often = expected >= 5.0
    observed, wanted = (
        torch.cat((side[is_often], side[~is_often].sum(0, keepdim=True)))
        for side in (counts, expected)
    )
    freedom = max(int(is_often.sum()), 1)
    chi_square = float(((observed - wanted) ** 2 / wanted.clamp(min=1.0)).sum())
    assert chi_square < freedom + 6.0 * math.sqrt(2.0 * freedom) + 10.0
    assert torch.allclose(logprobs, logits.log_softmax(-1)[tokens], atol=1e-5)


@each("share", [0.0, 0.5, 1.0 - 2.0**-32])
@each("vocabulary", [256, 300, 1024])
def test_the_ends_of_the_range_never_draw_what_cannot_be(share: float, vocabulary: int) -> None:
    logits = torch.full((2, vocabulary), float("-inf"))
    logits[0, vocabulary // 2] = 3.0
    logits[1, [1, vocabulary - 2]] = -50.0
    tokens, logprobs = choose(logits, torch.full((2,), share, dtype=torch.float64), Heat.of(1.0))
    assert tokens.tolist() == [vocabulary // 2, 1 if share < 0.5 else vocabulary - 2]
    assert logprobs.tolist() == pytest.approx([0.0, -math.log(2.0)])


def test_the_number_decides_by_the_running_sum() -> None:
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    share = torch.tensor([0.05, 0.15, 0.29, 0.31, 0.59, 0.61, 0.99], dtype=torch.float64)
    tokens, _ = choose(logits.repeat(7, 1), share, Heat.of(1.0))
    assert tokens.tolist() == [0, 1, 1, 2, 2, 3, 3]


def test_numbers_that_are_not_finite_stay_in_range_and_show_in_the_logprob() -> None:
    logits = torch.zeros(3, 300)
    logits[0, 5] = float("nan")
    logits[1, 299] = float("inf")
    tokens, logprobs = choose(logits, torch.full((3,), 0.9, dtype=torch.float64), Heat.of(1.0))
    assert bool(((tokens >= 0) & (tokens < 300)).all())
    assert logprobs.isfinite().tolist() == [False, False, True]


def test_without_a_gpu_every_step_just_runs() -> None:
    runs: list[str] = []
    recorder = Recorder(torch.device("cpu"))
    for _ in range(3):
        recorder.run(("size", 1), lambda: runs.append("ran"))
    recorder.forget("size")
    assert runs == ["ran"] * 3

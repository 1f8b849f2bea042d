"""Attention with shared prompts: each kernel against plain per-sequence attention, outputs and
gradients.
"""

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor

from metaclaw.engine.checkpoint import Shape
from metaclaw.engine.training.attention import (
    FlashOnCpu,
    FlashOnCuda,
    Kernel,
    attend,
    rotary_angles,
    rotate,
)
from metaclaw.engine.training.packing import Packed, pack
from tests.engine.rows import seen_rows
from tests.support.cases import each

_SHAPE = Shape(
    layers=1,
    width=64,
    heads=6,
    kv_heads=2,
    head_width=16,
    vocabulary=64,
    positions=128,
    norm_epsilon=1e-5,
    rope_theta=10_000.0,
    end_ids=frozenset(),
)
_COLUMNS = 16 * (6 + 2 + 2)
_FEW = [
    ([1, 2, 3], [4, 5, 6]),
    ([9] * 40, [7] * 50),
    ([1, 2, 3], [7]),
    ([8, 8], [3]),
    ([1, 2, 3], [4, 5, 6, 7, 8]),
    ([9] * 40, []),
]
_ALIKE = [
    ([1] * 20 + [prompt] * 3, [4] * 6 + [last] * 4) for prompt in (5, 6) for last in (7, 8, 9)
] + [
    ([1] * 20, [2, 2]),
    ([3], [4]),
]
"""Prompts and rollouts that begin alike: four levels."""


def _one_by_one(
    mixed: Tensor, packed: Packed, sequences: list[tuple[list[int], list[int]]]
) -> Tensor:
    """The rows that predict drawn tokens, each sequence computed for itself from its own copy of
    its prompt's rows.
    """
    outs, rows_D, seen = [], packed.rows_D.tolist(), seen_rows(packed)
    border = 0
    for prompt, drawn in sequences:
        if not drawn:
            continue
        mine, border = rows_D[border : border + len(drawn)], border + len(drawn)
        rows = mixed[seen[mine[-1]]].view(-1, 10, 16)
        turned = _turned(rows[:, :8])
        q, k, v = (
            part.transpose(0, 1).unsqueeze(0)
            for part in (turned[:, :6], turned[:, 6:], rows[:, 8:])
        )
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        outs.append(out.squeeze(0).transpose(0, 1).flatten(1)[len(prompt) - 1 :])
    return torch.cat(outs)


def _turned(rows: Tensor) -> Tensor:
    """As transformers writes it."""
    exponents = torch.arange(0, 16, 2, device=rows.device) / 16
    angles = torch.outer(torch.arange(len(rows), device=rows.device), 10_000.0**-exponents)[
        :, None
    ].repeat(1, 1, 2)
    one, two = rows.chunk(2, dim=-1)
    return (rows * angles.cos() + torch.cat((-two, one), dim=-1) * angles.sin()).to(rows.dtype)


def _assert_same_as_alone(
    sequences: list[tuple[list[int], list[int]]],
    kernel: Kernel,
    device: torch.device,
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    packed = pack(sequences, device)
    start = torch.randn(len(packed.ids), _COLUMNS, generator=torch.Generator().manual_seed(3)).to(
        device, dtype
    )
    weights = torch.randn(len(packed.rows_D), 96, generator=torch.Generator().manual_seed(4)).to(
        device, dtype
    )
    results = []
    for shared in (True, False):
        mixed = start.clone().requires_grad_()
        rotations = rotary_angles(_SHAPE, packed.positions)
        out = (
            attend(mixed, rotations, packed, _SHAPE, kernel).index_select(0, packed.rows_D)
            if shared
            else _one_by_one(mixed, packed, sequences)
        )
        (out * weights).sum().backward()  # type: ignore[no-untyped-call]
        assert mixed.grad is not None
        results.append((out.detach(), mixed.grad))
    # Half precision has eight bits: large gradients differ by a whole step of theirs.
    step = 2**-7 if dtype is torch.bfloat16 else 1e-5
    for shared, alone in zip(*results, strict=True):
        assert torch.allclose(shared, alone, atol=tolerance, rtol=step)


@each("sequences", [_FEW, _ALIKE], ids=["few", "alike"])
def test_sequences_that_share_a_beginning_get_what_each_would_get_alone(
    sequences: list[tuple[list[int], list[int]]],
) -> None:
    _assert_same_as_alone(sequences, FlashOnCpu(), torch.device("cpu"), torch.float32, 2e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("sequences", [_FEW, _ALIKE], ids=["few", "alike"])
def test_the_same_on_a_gpu_in_half_precision(sequences: list[tuple[list[int], list[int]]]) -> None:
    device = torch.device("cuda")
    _assert_same_as_alone(sequences, FlashOnCuda(device), device, torch.bfloat16, 0.06)


def test_turning_back_undoes_turning() -> None:
    rows = torch.randn(5, 3, 16, generator=torch.Generator().manual_seed(1))
    rotations = rotary_angles(_SHAPE, torch.arange(5) * 7)
    assert torch.allclose(rotate(rotate(rows, rotations), rotations, back=True), rows, atol=1e-5)
    assert not torch.allclose(rotate(rows, rotations), rows, atol=1e-1)


def test_alike_is_what_it_says() -> None:
    assert len(pack(_ALIKE, torch.device("cpu")).levels) == 4


def test_prompts_whose_rollouts_have_one_token_need_no_tails() -> None:
    packed = pack([([1, 2, 3], [4]), ([5, 6], [7])], torch.device("cpu"))
    chance = torch.Generator().manual_seed(0)
    mixed = torch.randn(5, _COLUMNS, generator=chance, requires_grad=True)
    out = attend(mixed, rotary_angles(_SHAPE, packed.positions), packed, _SHAPE, FlashOnCpu())
    out.sum().backward()  # type: ignore[no-untyped-call]
    assert out.shape == (5, 96)
    assert mixed.grad is not None
    assert bool(mixed.grad[:, 128:].abs().sum(1).gt(0).all())

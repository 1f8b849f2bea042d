"""Attention over packed sequences in which the rollouts of a prompt share its keys and values,
forward and backward.

A row attends to all nodes above its own, such as its prompt, and to its own node up to itself. Each
of these is one ordinary attention call, and the outputs O and log-sum-exps L of the calls are
joined exactly:

    L = log(exp(L_1) + exp(L_2))        O = exp(L_1 - L) * O_1 + exp(L_2 - L) * O_2

In the backward pass, a call with the joined O and L instead of its own computes its part of the
joined gradient: its probabilities are then exp(score - L), and O is used only in its product with
the gradient. The keys of a prompt are not copied for its rollouts."""

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from metaclaw.engine.checkpoint import Shape
from metaclaw.engine.training.packing import Level, Packed, Spans
from metaclaw.errors import TrainingError

Rotations: TypeAlias = tuple[Tensor, Tensor]
"""Cosines and sines of each row's position."""


class Heads(NamedTuple):
    """Queries, keys and values by row and head; several query heads may share a key head."""

    q: Tensor
    k: Tensor
    v: Tensor


class AttentionCall(NamedTuple):
    """One attention call over segments of rows: the queries of segment i attend to the keys of
    segment i, with `causal` only up to themselves.
    """

    heads: Heads
    queries: Spans
    keys: Spans
    causal: bool


class FlashOnCpu:
    """Torch's flash attention for CPUs, one segment at a time."""

    def forward(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        q = call.heads.q
        out = torch.empty_like(q)
        lse = torch.empty(q.shape[1], q.shape[0], dtype=torch.promote_types(q.dtype, torch.float32))
        for rows, batch in _segments(call):
            part, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                *batch, 0.0, call.causal
            )
            out[rows.q] = part.squeeze(0).transpose(0, 1)
            lse[:, rows.q] = sums.squeeze(0)
        return out, lse

    def backward(
        self, call: AttentionCall, grad: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        grads = Heads(*(torch.zeros_like(side) for side in call.heads))
        for rows, batch in _segments(call):
            parts = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                _as_batch(grad, rows.q),
                *batch,
                _as_batch(out, rows.q),
                lse[:, rows.q].unsqueeze(0),
                0.0,
                call.causal,
            )
            for side, which, part in zip(grads, rows, parts, strict=True):
                side[which] = part.squeeze(0).transpose(0, 1)
        return grads


class _Rows(NamedTuple):
    """The rows of the queries, keys and values of a segment."""

    q: slice
    k: slice
    v: slice


def _segments(call: AttentionCall) -> Iterator[tuple[_Rows, tuple[Tensor, ...]]]:
    """The rows of each segment that has queries, and its heads as a batch of one."""
    for queries, keys in zip(call.queries.slices(), call.keys.slices(), strict=True):
        if queries.start < queries.stop:
            rows = _Rows(queries, keys, keys)
            yield rows, tuple(map(_as_batch, call.heads, rows))


def _as_batch(side: Tensor, rows: slice) -> Tensor:
    return side[rows].transpose(0, 1).unsqueeze(0)


class FlashOnCuda:
    """Flash attention over all segments in one launch; half precision only."""

    def __init__(self, device: torch.device) -> None:
        # The backward kernel takes the state of a random generator, which only dropout would use.
        self._randomness = torch.zeros(2, dtype=torch.uint64, device=device)
        self._unused = torch.empty(0, device=device)

    def forward(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            *call.heads,
            call.queries.cumulative,
            call.keys.cumulative,
            # With a maximum of one row per query, the kernel assumes that every query has one.
            max(2, call.queries.longest),
            call.keys.longest,
            0.0,
            call.causal,
            False,
        )
        return out, lse

    def backward(
        self, call: AttentionCall, grad: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = torch.ops.aten._flash_attention_backward(
            grad,
            *call.heads,
            out,
            lse,
            call.queries.cumulative,
            call.keys.cumulative,
            call.queries.longest,
            call.keys.longest,
            0.0,
            call.causal,
            self._randomness,
            self._unused,
        )
        return q, k, v


Kernel: TypeAlias = FlashOnCpu | FlashOnCuda
"""Attention: `forward` returns the output by row and head, and the log-sum-exp by head and row;
`backward` the gradients of queries, keys and values.
"""


def choose_kernel(device: torch.device, dtype: torch.dtype) -> Kernel:
    """The kernel of a device. Raises TrainingError for single precision on a GPU, which has
    none.
    """
    if device.type == "cpu":
        return FlashOnCpu()
    if dtype == torch.float32:
        raise TrainingError(f"training on {device.type} needs bfloat16, not float32")
    return FlashOnCuda(device)


def rotary_angles(shape: Shape, positions: Tensor) -> Rotations:
    """Cosines and sines for these positions, by row, in single precision."""
    angles = shape.rotary_angles(positions).unsqueeze(1)
    return angles.cos(), angles.sin()


def rotate(rows: Tensor, rotations: Rotations, *, back: bool = False) -> Tensor:
    """Rotate rows of heads by their position; the pairs of a head are its two halves."""
    cosines, sines = rotations
    one, two = rows.chunk(2, dim=-1)
    turned = torch.empty(rows.shape, dtype=cosines.dtype, device=rows.device)
    sign = -1.0 if back else 1.0
    torch.mul(one, cosines, out=turned[..., : one.shape[-1]]).addcmul_(two, sines, value=-sign)
    torch.mul(two, cosines, out=turned[..., one.shape[-1] :]).addcmul_(one, sines, value=sign)
    return turned.to(rows.dtype)


def attend(
    mixed: Tensor, rotations: Rotations, packed: Packed, shape: Shape, kernel: Kernel
) -> Tensor:
    """Attention's output for rows of queries, keys and values (not rotated, side by side)."""
    out: Tensor = _Attention.apply(mixed, rotations, packed, shape, kernel)  # type: ignore[no-untyped-call]
    return out


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        mixed: Tensor,
        rotations: Rotations,
        packed: Packed,
        shape: Shape,
        kernel: Kernel,
    ) -> Tensor:
        by_head = mixed.view(len(mixed), -1, shape.head_width)
        turned = rotate(by_head[:, : shape.heads + shape.kv_heads], rotations)
        heads = Heads(
            turned[:, : shape.heads],
            turned[:, shape.heads :],
            by_head[:, shape.heads + shape.kv_heads :],
        )
        out, lse = _forward(heads, packed, kernel)
        ctx.save_for_backward(*heads, out, lse, *rotations)
        ctx.plan = (packed, kernel)
        return out.flatten(1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse, *rotations = ctx.saved_tensors
        packed, kernel = ctx.plan
        heads = Heads(q, k, v)
        by_head = _backward(grads[0].view_as(out), heads, out, lse, packed, kernel)
        turned = rotate(
            torch.cat((by_head.q, by_head.k), dim=1), (rotations[0], rotations[1]), back=True
        )
        return torch.cat((turned, by_head.v), dim=1).flatten(1), None, None, None, None


def _forward(heads: Heads, packed: Packed, kernel: Kernel) -> tuple[Tensor, Tensor]:
    outs, sums = [], []
    for level in packed.levels:
        out, lse = kernel.forward(_own_call(heads, level))
        for call, _ in _calls_above(heads, packed, level):
            out, lse = _join(out, lse, *kernel.forward(call))
        outs.append(out)
        sums.append(lse)
    return torch.cat(outs), torch.cat(sums, dim=1)


def _join(one: Tensor, one_sum: Tensor, two: Tensor, two_sum: Tensor) -> tuple[Tensor, Tensor]:
    share = torch.sigmoid(two_sum - one_sum).to(one.dtype).mT.unsqueeze(-1)
    return torch.lerp(one, two, share), torch.logaddexp(one_sum, two_sum)


def _backward(
    grad: Tensor, heads: Heads, out: Tensor, lse: Tensor, packed: Packed, kernel: Kernel
) -> Heads:
    grads = Heads(*(torch.empty_like(side) for side in heads))
    for level in packed.levels:
        of_level = grad[level.rows], out[level.rows], lse[:, level.rows].contiguous()
        for side, part in zip(
            grads, kernel.backward(_own_call(heads, level), *of_level), strict=True
        ):
            side[level.rows] = part
        for call, above in _calls_above(heads, packed, level):
            q, k, v = kernel.backward(call, *of_level)
            grads.q[level.rows] += q
            grads.k[above.rows] += k
            grads.v[above.rows] += v
    return grads


def _own_call(heads: Heads, level: Level) -> AttentionCall:
    """Each node of a level attends to itself."""
    return AttentionCall(_mixed(heads, level, level), level.nodes, level.nodes, causal=True)


def _calls_above(
    heads: Heads, packed: Packed, level: Level
) -> Iterator[tuple[AttentionCall, Level]]:
    """The rows of a level attend to each level above it."""
    for above, hanging in zip(packed.levels, level.hanging, strict=False):
        yield AttentionCall(_mixed(heads, level, above), hanging, above.nodes, causal=False), above


def _mixed(heads: Heads, query_level: Level, key_level: Level) -> Heads:
    return Heads(heads.q[query_level.rows], heads.k[key_level.rows], heads.v[key_level.rows])

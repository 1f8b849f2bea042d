"""Attention over packed sequences in which the rollouts of a prompt share its keys and values,
forward and backward.

A row attends to all nodes above its own, such as its prompt, and to its own node up to itself. Each
of these is one ordinary attention call, and the outputs O and log-sum-exps L of the calls are
joined exactly:

    L = log(exp(L_1) + exp(L_2))        O = exp(L_1 - L) * O_1 + exp(L_2 - L) * O_2

In the backward pass, a call with the joined O and L instead of its own computes its part of the
joined gradient: its probabilities are then exp(score - L), and O is used only in its product with
the gradient. The keys of a prompt are not copied for its rollouts."""

from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from metaclaw.engine.checkpoint import Shape
from metaclaw.engine.training.packing import Level, Packed, Spans


class Context(Protocol):
    """The context of an autograd function, in which its forward pass saves values for its backward
    pass.
    """

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: Tensor) -> None: ...
    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...


Rotations: TypeAlias = tuple[Tensor, Tensor]
"""Cosines and sines of each row's position."""


class Heads(NamedTuple):
    """Queries, keys and values by row and head; several query heads may share a key head."""

    q: Tensor
    k: Tensor
    v: Tensor


class Kernel(Protocol):
    """One attention call over segments of rows: the queries of segment i attend to the keys of
    segment i.
    """

    def forward(
        self, heads: Heads, query_spans: Spans, key_spans: Spans, *, causal: bool
    ) -> tuple[Tensor, Tensor]:
        """The output by row and head, and the log-sum-exp by head and row."""

    def backward(
        self,
        grad: Tensor,
        heads: Heads,
        out: Tensor,
        lse: Tensor,
        query_spans: Spans,
        key_spans: Spans,
        *,
        causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of queries, keys and values."""


class FlashOnCpu:
    """Torch's flash attention for CPUs, one segment at a time."""

    def forward(
        self, heads: Heads, query_spans: Spans, key_spans: Spans, *, causal: bool
    ) -> tuple[Tensor, Tensor]:
        out = torch.empty_like(heads.q)
        lse = torch.empty(
            heads.q.shape[1],
            heads.q.shape[0],
            dtype=torch.promote_types(heads.q.dtype, torch.float32),
        )
        for q_rows, k_rows in _segments(query_spans, key_spans):
            part, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                *_batch(heads, q_rows, k_rows), 0.0, causal
            )
            out[q_rows] = part.squeeze(0).transpose(0, 1)
            lse[:, q_rows] = sums.squeeze(0)
        return out, lse

    def backward(
        self,
        grad: Tensor,
        heads: Heads,
        out: Tensor,
        lse: Tensor,
        query_spans: Spans,
        key_spans: Spans,
        *,
        causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        grads = Heads(*(torch.zeros_like(side) for side in heads))
        for q_rows, k_rows in _segments(query_spans, key_spans):
            parts = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                _as_batch(grad, q_rows),
                *_batch(heads, q_rows, k_rows),
                _as_batch(out, q_rows),
                lse[:, q_rows].unsqueeze(0),
                0.0,
                causal,
            )
            for side, rows, part in zip(grads, (q_rows, k_rows, k_rows), parts, strict=True):
                side[rows] = part.squeeze(0).transpose(0, 1)
        return grads


def _segments(query_spans: Spans, key_spans: Spans) -> list[tuple[slice, slice]]:
    pairs = zip(query_spans.slices(), key_spans.slices(), strict=True)
    return [(q_rows, k_rows) for q_rows, k_rows in pairs if q_rows.start < q_rows.stop]


def _as_batch(rows: Tensor, which: slice) -> Tensor:
    return rows[which].transpose(0, 1).unsqueeze(0)


def _batch(heads: Heads, q_rows: slice, k_rows: slice) -> tuple[Tensor, Tensor, Tensor]:
    return _as_batch(heads.q, q_rows), _as_batch(heads.k, k_rows), _as_batch(heads.v, k_rows)


class FlashOnCuda:
    """Flash attention over all segments in one launch; half precision only."""

    def __init__(self, device: torch.device) -> None:
        # The backward kernel takes the state of a random generator, which only dropout would use.
        self._randomness = torch.zeros(2, dtype=torch.uint64, device=device)
        self._unused = torch.empty(0, device=device)

    def forward(
        self, heads: Heads, query_spans: Spans, key_spans: Spans, *, causal: bool
    ) -> tuple[Tensor, Tensor]:
        # With a maximum of one row per query, the kernel assumes that every query has exactly one.
        spans = (
            query_spans.cumulative,
            key_spans.cumulative,
            max(2, query_spans.longest),
            key_spans.longest,
        )
        out, lse, *_ = torch.ops.aten._flash_attention_forward(*heads, *spans, 0.0, causal, False)
        return out, lse

    def backward(
        self,
        grad: Tensor,
        heads: Heads,
        out: Tensor,
        lse: Tensor,
        query_spans: Spans,
        key_spans: Spans,
        *,
        causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        spans = (
            query_spans.cumulative,
            key_spans.cumulative,
            query_spans.longest,
            key_spans.longest,
        )
        q, k, v = torch.ops.aten._flash_attention_backward(
            grad, *heads, out, lse, *spans, 0.0, causal, self._randomness, self._unused
        )
        return q, k, v


class Plain:
    """Attention in plain operations, for devices and dtypes without flash attention, and for tests
    of the other kernels.
    """

    def forward(
        self, heads: Heads, query_spans: Spans, key_spans: Spans, *, causal: bool
    ) -> tuple[Tensor, Tensor]:
        out = torch.empty_like(heads.q)
        lse = torch.empty(
            heads.q.shape[1], heads.q.shape[0], dtype=heads.q.dtype, device=heads.q.device
        )
        for q_rows, k_rows in _segments(query_spans, key_spans):
            scores = _scores(heads, q_rows, k_rows, causal=causal)
            lse[:, q_rows] = scores.logsumexp(-1)
            out[q_rows] = (scores.softmax(-1) @ _widened(heads.v[k_rows], heads)).transpose(0, 1)
        return out, lse

    def backward(
        self,
        grad: Tensor,
        heads: Heads,
        out: Tensor,
        lse: Tensor,
        query_spans: Spans,
        key_spans: Spans,
        *,
        causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        grads = Heads(*(torch.zeros_like(side) for side in heads))
        for q_rows, k_rows in _segments(query_spans, key_spans):
            down = grad[q_rows].transpose(0, 1)
            probabilities = (
                _scores(heads, q_rows, k_rows, causal=causal) - lse[:, q_rows, None]
            ).exp()
            slopes = down @ _widened(heads.v[k_rows], heads).mT - (
                down * out[q_rows].transpose(0, 1)
            ).sum(-1, keepdim=True)
            change = probabilities * slopes / heads.q.shape[2] ** 0.5
            grads.q[q_rows] = (change @ _widened(heads.k[k_rows], heads)).transpose(0, 1)
            grads.k[k_rows] = _narrowed(change.mT @ heads.q[q_rows].transpose(0, 1), heads)
            grads.v[k_rows] = _narrowed(probabilities.mT @ down, heads)
        return grads


def _scores(heads: Heads, q_rows: slice, k_rows: slice, *, causal: bool) -> Tensor:
    scores: Tensor = (
        heads.q[q_rows].transpose(0, 1)
        @ _widened(heads.k[k_rows], heads).mT
        / heads.q.shape[2] ** 0.5
    )
    if causal:
        scores = scores.masked_fill(
            torch.ones_like(scores[0], dtype=torch.bool).triu(1), float("-inf")
        )
    return scores


def _widened(rows: Tensor, heads: Heads) -> Tensor:
    by_head: Tensor = rows.transpose(0, 1)
    return by_head.repeat_interleave(heads.q.shape[1] // heads.k.shape[1], dim=0)


def _narrowed(by_query_head: Tensor, heads: Heads) -> Tensor:
    return by_query_head.view(heads.k.shape[1], -1, *by_query_head.shape[1:]).sum(1).transpose(0, 1)


def choose_kernel(device: torch.device, dtype: torch.dtype) -> Kernel:
    """The fastest exact kernel."""
    if device.type == "cpu":
        return FlashOnCpu()
    return FlashOnCuda(device) if device.type == "cuda" and dtype != torch.float32 else Plain()


def rotary_angles(shape: Shape, positions: Tensor) -> Rotations:
    """Cosines and sines for these positions, by row, in single precision."""
    exponents = (
        torch.arange(0, shape.head_width, 2, dtype=torch.float32, device=positions.device)
        / shape.head_width
    )
    angles = torch.outer(positions.float(), 1.0 / shape.rope_theta**exponents).unsqueeze(1)
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


class _Context(Context, Protocol):
    plan: tuple[Packed, Kernel]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context,
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
    def backward(ctx: _Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
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
        out, lse = kernel.forward(
            _mixed(heads, level, level), level.nodes, level.nodes, causal=True
        )
        for above, hanging in zip(packed.levels, level.hanging, strict=False):
            out, lse = _join(
                out,
                lse,
                *kernel.forward(_mixed(heads, level, above), hanging, above.nodes, causal=False),
            )
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
        joined = (out[level.rows], lse[:, level.rows].contiguous())
        parts = kernel.backward(
            grad[level.rows],
            _mixed(heads, level, level),
            *joined,
            level.nodes,
            level.nodes,
            causal=True,
        )
        for side, part in zip(grads, parts, strict=True):
            side[level.rows] = part
        for above, hanging in zip(packed.levels, level.hanging, strict=False):
            q, k, v = kernel.backward(
                grad[level.rows],
                _mixed(heads, level, above),
                *joined,
                hanging,
                above.nodes,
                causal=False,
            )
            grads.q[level.rows] += q
            grads.k[above.rows] += k
            grads.v[above.rows] += v
    return grads


def _mixed(heads: Heads, query_level: Level, key_level: Level) -> Heads:
    return Heads(heads.q[query_level.rows], heads.k[key_level.rows], heads.v[key_level.rows])

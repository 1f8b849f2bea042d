"""The trainable forward pass: a frozen Llama-type model with LoRA on every projection, over packed
sequences.

Products use merged weights (base + scale * B @ A), which also draw the rollouts, so a forward pass
costs the same as the base model's. Only the backward pass uses A and B. With dY the gradient of an
output Y = X W^T, for each projection:

    dX = dY W        dB = dY^T (X (scale A)^T)        dA = (dY (scale B))^T X
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from metaclaw.engine.checkpoint import Shape
from metaclaw.engine.stack import BUNDLES, PRODUCTS, fuse
from metaclaw.engine.training.attention import (
    Rotations,
    attend,
    choose_kernel,
    rotary_angles,
)
from metaclaw.engine.training.lora import Adapter, Bundle, Parameters, add_change
from metaclaw.engine.training.packing import Packed

_CHUNK_BYTES: Final = {"cpu": 24 << 20, "cuda": 1 << 30}
"""The size of one chunk of logits: about a cache on a CPU, a small part of the memory on a GPU."""


def drawn_logprobs(rows_D: Tensor, targets_D: Tensor, head: Tensor) -> Tensor:
    """The natural log-probabilities of the targets after these rows, at temperature 1."""
    out: Tensor = _DrawnLogprobs.apply(rows_D, targets_D, head)  # type: ignore[no-untyped-call]
    return out


class _DrawnLogprobs(torch.autograd.Function):
    """Log-probabilities of drawn tokens, a chunk of rows at a time, so that the logits of all rows
    are never in memory together.

    For every loss the gradient of a log-probability by its row is E[target] - sum_v p_v E[v]. The
    forward pass saves it and drops the logits, so nothing is computed twice."""

    @staticmethod
    def forward(ctx: Any, rows_D: Tensor, targets_D: Tensor, head: Tensor) -> Tensor:
        chunk = max(1, _CHUNK_BYTES.get(rows_D.device.type, 24 << 20) // (4 * head.shape[0]))
        is_learning = ctx.needs_input_grad[0]
        logprobs, logprob_grads = [], []
        for rows, targets in zip(
            torch.split(rows_D, chunk), torch.split(targets_D, chunk), strict=True
        ):
            logits = _logits(rows, head)
            logits -= logits.logsumexp(-1, keepdim=True)
            logprobs.append(logits.gather(1, targets.unsqueeze(1)).squeeze(1))
            if is_learning:
                spread = logits.exp().to(head.dtype) @ head
                logprob_grads.append(torch.sub(functional.embedding(targets, head), spread))
        ctx.save_for_backward(torch.cat(logprob_grads) if is_learning else torch.empty(0))
        return torch.cat(logprobs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (logprob_grads,) = ctx.saved_tensors
        return (grads[0].unsqueeze(1) * logprob_grads).to(logprob_grads.dtype), None, None


def _logits(rows: Tensor, head: Tensor) -> Tensor:
    if rows.is_cuda and rows.dtype != torch.float32:
        # In half precision, logits around 20 would be wrong by several hundredths.
        return torch.mm(rows, head.mT, out_dtype=torch.float32)
    return functional.linear(rows, head).float()


@dataclass(frozen=True, slots=True)
class _Working:
    """A bundle in the dtype of the run: the merged weight, and A and B times the scale, with the B
    of each projection in its own columns."""

    weight: Tensor
    a: Tensor
    b: Tensor
    scale: float
    bundle: Bundle

    def take(self) -> None:
        """Copy the trained values, rounded to the dtype of the run."""
        self.a.copy_(self.bundle.a * self.scale)
        row, column = 0, 0
        for b in self.bundle.bs:
            self.b[row : row + b.shape[0], column : column + b.shape[1]] = b * self.scale
            row, column = row + b.shape[0], column + b.shape[1]


class TrainedModel:
    """The frozen base, the adapter, and the merged weights of both."""

    def __init__(
        self,
        shape: Shape,
        tensors: Mapping[str, Tensor],
        parameters: Parameters,
        dtype: torch.dtype,
    ) -> None:
        self.shape, self.dtype, self.parameters = shape, dtype, parameters
        self.device = parameters.values.device
        self._kernel = choose_kernel(self.device, dtype)
        self._base = fuse(
            shape,
            lambda name: self._placed(tensors[name], name.removesuffix(".weight")),
            has_head="lm_head.weight" in tensors,
        )
        """By the names of a `Stack`; the weights that are adapted are as exact as in the files."""
        self.embedding = self._base["embedding"]
        self.head = self._base.get("head", self.embedding)
        self._layers = [self._working(number) for number in range(shape.layers)]
        self.refresh(parameters)

    def _placed(self, tensor: Tensor, module: str) -> Tensor:
        dtype = self.dtype
        if module in self.parameters.shapes:
            # On a GPU a weight is stored as in the files, since memory is short. On a CPU merging
            # is faster in single precision.
            is_half = self.device.type == "cuda" and tensor.itemsize < torch.float32.itemsize
            dtype = tensor.dtype if is_half else torch.float32
        return tensor.to(self.device, dtype)

    def _frozen(self, number: int, which: int) -> Tensor:
        return self._base[f"{number}.{PRODUCTS[which]}"]

    def _working(self, number: int) -> list[_Working]:
        bundles = self.parameters.bundles[number * len(BUNDLES) : (number + 1) * len(BUNDLES)]
        return [
            _Working(
                weight=torch.empty_like(self._frozen(number, which), dtype=self.dtype),
                a=torch.empty_like(bundle.a, dtype=self.dtype, requires_grad=False),
                b=torch.zeros(
                    sum(map(len, bundle.bs)), len(bundle.a), dtype=self.dtype, device=self.device
                ),
                scale=self.parameters.scale,
                bundle=bundle,
            )
            for which, bundle in enumerate(bundles)
        ]

    @torch.no_grad()
    def refresh(self, adapter: Adapter | Parameters) -> None:
        """Merge again, in place: the trained values, or an adapter that is used only for drawing
        and scoring.
        """
        for number, layer in enumerate(self._layers):
            for which, working in enumerate(layer):
                working.take()
                sizes = [len(b) for b in working.bundle.bs]
                for module, weight, merged in zip(
                    working.bundle.modules,
                    torch.split(self._frozen(number, which), sizes),
                    torch.split(working.weight, sizes),
                    strict=True,
                ):
                    merged.copy_(add_change(weight, *adapter.pairs[module], adapter.scale))

    def fused(self) -> dict[str, Tensor]:
        """The merged weights as a `Stack` takes them. They change with every
        refresh.
        """
        return self._base | {
            f"{number}.{name}": working.weight
            for number, layer in enumerate(self._layers)
            for name, working in zip(PRODUCTS, layer, strict=True)
        }

    def hidden(self, packed: Packed, *, is_base: bool = False, recomputes: bool = False) -> Tensor:
        """The normalised last rows that predict the drawn tokens; those of the untrained model if
        `is_base`.

        With `recomputes` only the input of each layer is saved for the backward pass, and each
        layer runs twice."""
        rotations = rotary_angles(self.shape, packed.positions)
        rows = functional.embedding(packed.ids, self.embedding)
        for number in range(self.shape.layers):
            if recomputes and torch.is_grad_enabled() and not is_base:
                rows = checkpoint(
                    self._layer,
                    number,
                    rows,
                    rotations,
                    packed,
                    is_base,
                    use_reentrant=False,
                    preserve_rng_state=False,
                )
            else:
                rows = self._layer(number, rows, rotations, packed, is_base)
        return self._normalise(rows.index_select(0, packed.rows_D), "norm")

    def _layer(
        self, number: int, rows: Tensor, rotations: Rotations, packed: Packed, is_base: bool
    ) -> Tensor:
        mixed = self._project(number, 0, self._normalise(rows, f"{number}.attention_norm"), is_base)
        if (head_norms := self._base.get(f"{number}.head_norms")) is not None:
            mixed = _with_head_norms(mixed, head_norms, self.shape)
        attended = attend(mixed, rotations, packed, self.shape, self._kernel)
        rows = rows + self._project(number, 1, attended, is_base)
        gate_up = self._project(number, 2, self._normalise(rows, f"{number}.mlp_norm"), is_base)
        return rows + self._project(number, 3, _gated(gate_up), is_base)

    def _project(self, number: int, which: int, rows: Tensor, is_base: bool) -> Tensor:
        bias = self._base.get(f"{number}.{PRODUCTS[which]}.bias")
        if is_base:
            return functional.linear(rows, self._frozen(number, which).to(self.dtype), bias)
        working = self._layers[number][which]
        trained = working.bundle.a, *working.bundle.bs
        out: Tensor = _Projection.apply(  # type: ignore[no-untyped-call]
            rows, working.weight, bias, working.a, working.b, *trained
        )
        return out

    def _normalise(self, rows: Tensor, norm: str) -> Tensor:
        return torch.rms_norm(rows, (self.shape.width,), self._base[norm], self.shape.norm_epsilon)


def _with_head_norms(mixed: Tensor, weights: Tensor, shape: Shape) -> Tensor:
    """Rows of queries, keys and values with all query heads and key heads normalised."""
    heads = mixed.view(len(mixed), -1, shape.head_width)
    turned = len(weights)
    normed = torch.rms_norm(heads[:, :turned], (shape.head_width,), None, shape.norm_epsilon)
    return torch.cat((normed * weights, heads[:, turned:]), dim=1).flatten(1)


class _Projection(torch.autograd.Function):
    """A product with merged weights; its backward pass gives the gradients of A and B."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        a: Tensor,
        b: Tensor,
        *trained: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(rows, weight, a, b)
        ctx.sizes = [len(up) for up in trained[1:]]
        return functional.linear(rows, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, a, b = ctx.saved_tensors
        inner = (rows @ a.mT).chunk(len(ctx.sizes), dim=1)
        ups = [
            (grad.mT @ part).float()
            for grad, part in zip(torch.split(grads[0], ctx.sizes, dim=1), inner, strict=True)
        ]
        down = ((grads[0] @ b).mT @ rows).float()
        grad_input = grads[0] @ weight if ctx.needs_input_grad[0] else None
        return grad_input, None, None, None, None, down, *ups


def _gated(gate_up: Tensor) -> Tensor:
    out: Tensor = _Gated.apply(gate_up)  # type: ignore[no-untyped-call]
    return out


class _Gated(torch.autograd.Function):
    """silu(gate) * up; saves only its input for the backward pass."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        grad_input = torch.empty_like(gate_up)
        grad_gate, grad_up = grad_input.chunk(2, dim=-1)
        torch.mul(functional.silu(gate), grads[0], out=grad_up)
        torch.ops.aten.silu_backward.grad_input(grads[0] * up, gate, grad_input=grad_gate)
        return grad_input

"""Log-probabilities of drawn tokens from last rows, a chunk of rows at a time: the whole vocabulary is never held for all of them.

A log-probability's gradient by its row is E[target] - sum_v p_v E[v], whatever the loss does with it. So the forward pass keeps
that one small row and lets the logits go; nothing is computed twice.
"""

from typing import Final, NamedTuple

import torch
import torch.nn.functional as functional
from torch import Tensor

from metaclaw.engine.training.context import Context

_CHUNK_BYTES: Final = {"cpu": 24 << 20, "cuda": 1 << 30}
"""How large one chunk of logits may be: about a cache on a CPU, a small part of the memory on a GPU."""


class Drawn(NamedTuple):
    """Each drawn token's natural log-probability, and the entropy of the distribution it was drawn from (without gradient)."""

    logprobs_D: Tensor
    entropy_D: Tensor


def drawn_logprobs(rows_D: Tensor, targets_D: Tensor, head: Tensor) -> Drawn:
    """The log-probabilities of the targets after these rows, at temperature 1."""
    return Drawn(*_DrawnLogprobs.apply(rows_D, targets_D, head))  # type: ignore[no-untyped-call]


class _DrawnLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, rows_D: Tensor, targets_D: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
        chunk = max(1, _CHUNK_BYTES.get(rows_D.device.type, 24 << 20) // (4 * head.shape[0]))
        is_learning = ctx.needs_input_grad[0]
        logprobs, entropies, slopes = [], [], []
        for rows, targets in zip(torch.split(rows_D, chunk), torch.split(targets_D, chunk), strict=True):
            logits = _logits(rows, head)
            logits -= logits.logsumexp(-1, keepdim=True)
            logprobs.append(logits.gather(1, targets.unsqueeze(1)).squeeze(1))
            probabilities = logits.exp()
            entropies.append(-torch.linalg.vecdot(probabilities, logits.clamp_(min=torch.finfo(logits.dtype).min)))
            if is_learning:
                slopes.append(torch.sub(functional.embedding(targets, head), probabilities.to(head.dtype) @ head))
        entropy_D = torch.cat(entropies)
        ctx.mark_non_differentiable(entropy_D)
        ctx.save_for_backward(torch.cat(slopes) if is_learning else torch.empty(0))
        return torch.cat(logprobs), entropy_D

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (slopes,) = ctx.saved_tensors
        return (grads[0].unsqueeze(1) * slopes).to(slopes.dtype), None, None


def _logits(rows: Tensor, head: Tensor) -> Tensor:
    if rows.is_cuda and rows.dtype != torch.float32:
        # Rounded to half precision, logits around 20 would be wrong by several hundredths.
        return torch.mm(rows, head.mT, out_dtype=torch.float32)
    return functional.linear(rows, head).float()

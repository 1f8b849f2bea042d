"""Losses as sums over drawn tokens, and the optimiser.

With l a token's log-probability now and o when it was drawn, r = exp(l - o), A its advantage and
clip(r) = r limited to [1 - clip_low, 1 + clip_high]:

    ppo                   -min(r A, clip(r) A)
    cross_entropy         -A l                       A is the token's weight

AdamW (Loshchilov and Hutter) on one vector, to the same numbers as `torch.optim.AdamW`. With g the
gradient, at step t:

m = b1 m + (1 - b1) g           v = b2 v + (1 - b2) g^2
x = x - lr * decay * x          x = x - lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from metaclaw.domain.training import Adam, Loss, LossKind, PieceStats
from metaclaw.errors import TrainingError


@dataclass(frozen=True, slots=True)
class DrawnTokens:
    """The inputs of a loss, by drawn token. `old_D` may be None for cross entropy, `reference_D` if
    the KL is not needed.
    """

    logprobs_D: Tensor
    advantages_D: Tensor
    old_D: Tensor | None
    reference_D: Tensor | None


def token_losses(loss: Loss, drawn: DrawnTokens) -> Tensor:
    """The loss of each drawn token."""
    if loss.kind is LossKind.CROSS_ENTROPY:
        return -drawn.advantages_D * drawn.logprobs_D
    ratio_D = _ratio(drawn)
    clipped_D = ratio_D.clamp(1.0 - loss.clip_low, 1.0 + loss.clip_high)
    return -torch.minimum(ratio_D * drawn.advantages_D, clipped_D * drawn.advantages_D)


def _ratio(drawn: DrawnTokens) -> Tensor:
    if drawn.old_D is None:
        raise ValueError("this loss needs the log-probabilities with which the tokens were drawn")
    return (drawn.logprobs_D - drawn.old_D).exp()


def k3(logprobs_D: Tensor, reference_D: Tensor) -> Tensor:
    """An unbiased estimate of each token's share in the KL divergence from the reference, never
    negative.
    """
    apart_D = reference_D - logprobs_D
    return torch.expm1(apart_D) - apart_D


def sums(losses_D: Tensor, drawn: DrawnTokens) -> Tensor:
    """The sums over drawn tokens for the statistics of a piece; nan if there is none."""
    with torch.no_grad():
        nothing = torch.full((), float("nan"), device=losses_D.device)
        kl = nothing if drawn.reference_D is None else k3(drawn.logprobs_D, drawn.reference_D).sum()
        ratio = nothing if drawn.old_D is None else _ratio(drawn).sum()
        return torch.stack([part.float() for part in (losses_D.sum(), kl, ratio)])


def piece_stats(tokens: int, portions: list[list[float]]) -> PieceStats:
    """The statistics of a piece from the sums of its portions."""
    means = (_known(sum(column) / tokens) for column in zip(*portions, strict=True))
    return PieceStats(tokens, *means)


def _known(value: float) -> float | None:
    return None if value != value else value


class AdamW:
    """The moments of one vector, and the number of steps."""

    def __init__(self, values: Tensor) -> None:
        self.first = torch.zeros_like(values)
        self.second = torch.zeros_like(values)
        self.steps = 0

    @torch.no_grad()
    def apply(self, values: Tensor, gradient: Tensor, adam: Adam, normaliser: float) -> float:
        """Make one step on the values, in place, with the gradient divided by the normaliser;
        return its norm before clipping.

        Raises TrainingError and changes nothing if the gradient is not finite.
        """
        if not (normaliser > 0.0 and math.isfinite(normaliser)):
            raise TrainingError(f"a gradient cannot be divided by {normaliser}")
        norm = float(gradient.norm()) / normaliser
        if not math.isfinite(norm):
            raise TrainingError("the gradient is not finite; nothing was changed")
        shrink = min(1.0, adam.grad_clip_norm / (norm + 1e-6)) if adam.grad_clip_norm > 0.0 else 1.0
        self._step(values, gradient * (shrink / normaliser), adam)
        return norm

    def _step(self, values: Tensor, gradient: Tensor, adam: Adam) -> None:
        self.steps += 1
        values.mul_(1.0 - adam.learning_rate * adam.weight_decay)
        self.first.lerp_(gradient, 1.0 - adam.beta1)
        self.second.mul_(adam.beta2).addcmul_(gradient, gradient, value=1.0 - adam.beta2)
        first_bias, second_bias = 1.0 - adam.beta1**self.steps, 1.0 - adam.beta2**self.steps
        spread = self.second.sqrt().div_(math.sqrt(second_bias)).add_(adam.eps)
        values.addcdiv_(self.first, spread, value=-adam.learning_rate / first_bias)


def save_state(values: Tensor, gradient: Tensor, adamw: AdamW) -> dict[str, Tensor]:
    """The adapter, the moments, the gradient and the steps, as copies on the CPU."""
    copies = {
        name: vector.detach().cpu().clone()
        for name, vector in _vectors(values, gradient, adamw).items()
    }
    return copies | {"steps": torch.tensor(adamw.steps)}


def restore_state(
    values: Tensor, gradient: Tensor, adamw: AdamW, state: Mapping[str, Tensor]
) -> None:
    """Restore a state of `save_state` in place. Raises TrainingError if its shape differs."""
    vectors = _vectors(values, gradient, adamw)
    if not {*vectors, "steps"} <= set(state):
        raise TrainingError(
            f"a learner's state cannot consist of {', '.join(sorted(state)) or 'nothing'}"
        )
    for name, vector in vectors.items():
        if state[name].shape != vector.shape or not bool(state[name].isfinite().all()):
            raise TrainingError(f"the state's {name} is not of this learner's size, or not finite")
    for name, vector in vectors.items():
        vector.copy_(state[name])
    adamw.steps = int(state["steps"])


def _vectors(values: Tensor, gradient: Tensor, adamw: AdamW) -> dict[str, Tensor]:
    return {
        "adapter": values,
        "moment_1": adamw.first,
        "moment_2": adamw.second,
        "gradient": gradient,
    }

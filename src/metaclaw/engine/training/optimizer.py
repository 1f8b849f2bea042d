"""AdamW (Loshchilov and Hutter) on one vector, to the same numbers as `torch.optim.AdamW`. With g the gradient, at step t:

m = b1 m + (1 - b1) g           v = b2 v + (1 - b2) g^2
x = x - lr * decay * x          x = x - lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from metaclaw.domain.training import Adam
from metaclaw.errors import TrainingError


class AdamW:
    """The moments of one vector, and how many steps were made with them."""

    def __init__(self, values: Tensor) -> None:
        self.first = torch.zeros_like(values)
        self.second = torch.zeros_like(values)
        self.steps = 0

    @torch.no_grad()
    def apply(self, values: Tensor, gradient: Tensor, adam: Adam, normaliser: float) -> float:
        """One step on the values, in place, with the gradient divided by the normaliser; returns that gradient's norm, unclipped.

        A gradient that is not finite raises TrainingError and changes nothing.
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


def save_state(values: Tensor, gradient: Tensor, adamw: AdamW, pieces: int) -> dict[str, Tensor]:
    """Everything that was learned and accumulated, as copies on the CPU."""
    copies = {name: vector.detach().cpu().clone() for name, vector in _vectors(values, gradient, adamw).items()}
    return copies | {"steps": torch.tensor(adamw.steps), "pieces": torch.tensor(pieces)}


def restore_state(values: Tensor, gradient: Tensor, adamw: AdamW, state: Mapping[str, Tensor]) -> int:
    """Fill all of it from a state that `save` gave, in place, and return the pieces; one of another shape is refused."""
    vectors = _vectors(values, gradient, adamw)
    if set(state) != {*vectors, "steps", "pieces"}:
        raise TrainingError(f"a learner's state does not consist of {', '.join(sorted(state)) or 'nothing'}")
    for name, vector in vectors.items():
        if state[name].shape != vector.shape or not bool(state[name].isfinite().all()):
            raise TrainingError(f"the state's {name} is not of this learner's size, or not finite")
    for name, vector in vectors.items():
        vector.copy_(state[name])
    adamw.steps = int(state["steps"])
    return int(state["pieces"])


def _vectors(values: Tensor, gradient: Tensor, adamw: AdamW) -> dict[str, Tensor]:
    return {"adapter": values, "moment_1": adamw.first, "moment_2": adamw.second, "gradient": gradient}

"""Full weights from a base model and an adapter: what sampling and serving run, with nothing of LoRA left in them."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor


class LowRank(Protocol):
    """Low-rank changes by the name of the module they change: for each a down projection `a` and an up projection `b`."""

    @property
    def scale(self) -> float: ...
    @property
    def pairs(self) -> Mapping[str, tuple[Tensor, Tensor]]: ...


def merged(base: Mapping[str, Tensor], adapter: LowRank) -> dict[str, Tensor]:
    """Every tensor of the base by its Hugging Face name, those that the adapter changes with the change added.

    The sum is made in single precision and rounded once to the base's dtype. What no change touches is shared with the base.
    """
    weights = dict(base)
    for module, (down, up) in adapter.pairs.items():
        name = f"{module}.weight"
        weights[name] = add_change(base[name], down, up, adapter.scale).to(base[name].dtype)
    return weights


def add_change(weight: Tensor, down: Tensor, up: Tensor, scale: float) -> Tensor:
    """The weight plus `scale * up @ down`, in single precision."""
    down, up = (side.to(weight.device, torch.float32) for side in (down, up))
    return torch.addmm(weight.float(), up, down, alpha=scale)

"""What a version of the weights is made from: the model's own tensors, and an adapter that is merged into them step by step."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from metaclaw.engine.checkpoint import read_tensors
from metaclaw.engine.llama import Llama, Steps
from metaclaw.engine.training.lora import Adapter, Shapes, projection_shapes
from metaclaw.engine.training.merged import add_change
from metaclaw.engine.training.peft import read_adapter
from metaclaw.errors import TrainingError


class Recipe:
    """What a version is made from: the model's own tensors and an adapter that fits them."""

    def __init__(self, folder: Path, dtype: torch.dtype, adapter: Path) -> None:
        """Read both; raises TrainingError if the adapter is unusable."""
        self._tensors = read_tensors(folder, dtype)
        self._adapter = read_adapter(adapter)
        _check_fit(self._adapter, projection_shapes(self._tensors))

    def build(self, base: Llama) -> Steps[Llama]:
        """The model with the adapter merged into its weights. Raises TrainingError."""
        return base.rebuild(_Merged(self._tensors, self._adapter))


class _Merged(Mapping[str, Tensor]):
    """A model's tensors, those that an adapter changes with the change added when they are asked for."""

    def __init__(self, tensors: Mapping[str, Tensor], adapter: Adapter) -> None:
        self._tensors = tensors
        self._adapter = adapter

    def __getitem__(self, name: str) -> Tensor:
        weight = self._tensors[name]
        pair = self._adapter.pairs.get(name.removesuffix(".weight"))
        if pair is None:
            return weight
        changed = add_change(weight, *pair, self._adapter.scale).to(weight.dtype)
        # Finite factors can have a product that is not.
        if not changed.sum(dtype=torch.float32).isfinite():
            raise TrainingError(f"the adapter makes {name} infinite")
        return changed

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _check_fit(adapter: Adapter, shapes: Shapes) -> None:
    """An adapter may change some projections and not others, but none that is not there."""
    for module, (down, up) in adapter.pairs.items():
        if shapes.get(module) != (up.shape[0], down.shape[1]):
            raise TrainingError(f"{module}: a change of {up.shape[0]} × {down.shape[1]} fits no weight of the model's")

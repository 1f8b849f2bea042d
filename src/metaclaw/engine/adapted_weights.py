"""What a version of the weights is made from: the model that is there, and an adapter.

A version answers as soon as its adapter is read: every product has the adapter's small factors added. Then, step by step beside the
answers, layers of its own take their place, with the adapter merged into their weights. That makes tokens come a little faster, and
changes them by no more than rounding does.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from metaclaw.engine.checkpoint import Shape, Steps
from metaclaw.engine.llama import Changes, Llama, LowRankChange, interleave
from metaclaw.engine.training.lora import Adapter, Pair, Shapes, add_change, projection_shapes
from metaclaw.engine.training.peft import reading_adapter
from metaclaw.errors import TrainingError


class AdaptedWeights:
    """A version in the making: `base` with the adapter in a folder. `tensors` are the base's own, in any dtype."""

    def __init__(self, base: Llama, tensors: Mapping[str, Tensor], folder: Path) -> None:
        self._base = base
        self._tensors = tensors
        self._folder = folder
        self._adapter: Adapter | None = None
        self._model: Llama | None = None

    def warm(self) -> None:
        """Have the adapter's files in memory, so that nothing waits for a disk later. What is wrong with them is found then."""
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                if path.is_file():
                    path.read_bytes()

    def prepare(self) -> Steps[Llama]:
        """The model with the adapter beside its weights; raises TrainingError if the adapter is unusable."""
        base, adapter = self._base, (yield from reading_adapter(self._folder))
        _check_fit(adapter, projection_shapes(self._tensors))
        changes = (_changes(adapter, base.shape, base.dtype, number) for number in range(base.shape.layers))
        self._adapter, self._model = adapter, (yield from base.changed(changes))
        return self._model

    def merge(self) -> Steps[None]:
        """Merge the adapter of the prepared model into weights that are the model's own."""
        assert self._model is not None
        assert self._adapter is not None
        return self._model.merge(_Merged(self._tensors, self._adapter, self._base.dtype))


class _Merged(Mapping[str, Tensor]):
    """A model's tensors in one dtype, those that an adapter changes with the change added when they are asked for."""

    def __init__(self, tensors: Mapping[str, Tensor], adapter: Adapter, dtype: torch.dtype) -> None:
        self._tensors = tensors
        self._adapter = adapter
        self._dtype = dtype

    def __getitem__(self, name: str) -> Tensor:
        weight = self._tensors[name].to(self._dtype)
        pair = self._adapter.pairs.get(name.removesuffix(".weight"))
        return weight if pair is None else add_change(weight, *pair, self._adapter.scale).to(self._dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _changes(adapter: Adapter, shape: Shape, dtype: torch.dtype, number: int) -> Changes:
    prefix = f"model.layers.{number}."
    queries, keys, values, out = (adapter.pairs.get(f"{prefix}self_attn.{name}_proj") for name in "qkvo")
    gate, up, down = (adapter.pairs.get(f"{prefix}mlp.{name}_proj") for name in ("gate", "up", "down"))
    side = shape.kv_width // 2
    wide = next((pair.b.shape[0] for pair in (gate, up) if pair is not None), 0)
    mixed = [_in_order(queries, shape.heads), _in_order(keys, shape.kv_heads), values]
    return Changes(
        _joined(mixed, [shape.query_width, side, side], adapter.scale, dtype),
        _joined([out], [shape.width], adapter.scale, dtype),
        _joined([gate, up], [wide, wide], adapter.scale, dtype),
        _joined([down], [shape.width], adapter.scale, dtype),
    )


def _in_order(pair: Pair | None, heads: int) -> Pair | None:
    return pair and Pair(pair.a, interleave(pair.b, heads))


def _joined(pairs: Sequence[Pair | None], rows: Sequence[int], scale: float, dtype: torch.dtype) -> LowRankChange | None:
    """The changes of several products behind one another as a single one; None where nothing is changed."""
    present = [(sum(rows[:place]), pair) for place, pair in enumerate(pairs) if pair is not None]
    if not present:
        return None
    ranks, columns = sum(pair.a.shape[0] for _, pair in present), present[0][1].a.shape[1]
    inwards, outwards = torch.empty(columns, ranks, dtype=dtype), torch.zeros(ranks, sum(rows), dtype=dtype)
    rank = 0
    for start, pair in present:
        end = rank + pair.a.shape[0]
        inwards[:, rank:end] = pair.a.t()
        torch.mul(pair.b.t(), scale, out=outwards[rank:end, start : start + pair.b.shape[0]])
        rank = end
    return LowRankChange(inwards, outwards)


def _check_fit(adapter: Adapter, shapes: Shapes) -> None:
    """An adapter may change some projections and not others, but none that is not there."""
    for module, (down, up) in adapter.pairs.items():
        if shapes.get(module) != (up.shape[0], down.shape[1]):
            raise TrainingError(f"{module}: a change of {up.shape[0]} × {down.shape[1]} fits no weight of the model's")

"""LoRA adapters for a frozen model: as named pairs of matrices, as one vector for an optimiser, and
on disk in PEFT's format.

The weight W of a module becomes W + scale * B @ A, where A has `rank` rows, B has `rank` columns,
and scale = alpha / rank. B starts at zero, so a fresh adapter changes nothing."""

import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor
from torch.linalg import vector_norm

from metaclaw.domain.chat import Json
from metaclaw.durable_files import sync_path, write_file
from metaclaw.engine.stack import BUNDLES
from metaclaw.engine.training.run_files import CONFIG_FILE, WEIGHTS_FILE
from metaclaw.engine.vocabulary import read_json
from metaclaw.errors import EngineError, TrainingError

Shapes = Mapping[str, tuple[int, int]]
"""Rows and columns of each weight that is adapted, by the name of its module."""


class Pair(NamedTuple):
    """The change of a module: `a` is rank × columns, `b` is rows × rank."""

    a: Tensor
    b: Tensor


@dataclass(frozen=True, slots=True)
class Adapter:
    """The changes of all adapted modules, by name."""

    rank: int
    alpha: float
    pairs: Mapping[str, Pair]

    @property
    def scale(self) -> float:
        """The factor of B @ A."""
        return self.alpha / self.rank


def projection_shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    """The shapes of the seven projections of every layer, by module, in the order of the layers."""
    ends = [projection for bundle in BUNDLES for projection in bundle]
    layers = sorted(
        {int(name.split(".")[2]) for name in tensors if name.startswith("model.layers.")}
    )
    shapes = {}
    for layer in layers:
        for module in (f"model.layers.{layer}.{end}" for end in ends):
            weight = tensors.get(f"{module}.weight")
            if weight is None:
                raise TrainingError(f"the model's weights lack {module}.weight")
            shapes[module] = (weight.shape[0], weight.shape[1])
    return shapes


def fresh_adapter(shapes: Shapes, rank: int, alpha: float, seed: int) -> Adapter:
    """An adapter that changes nothing yet; the same for the same seed on every device."""
    generator = torch.Generator().manual_seed(seed)
    pairs = {}
    for module, (rows, columns) in shapes.items():
        # Kaiming's uniform distribution as LoRA uses it: bounded by one over the root of the
        # columns.
        bound = 1.0 / math.sqrt(columns)
        a = torch.empty(rank, columns).uniform_(-bound, bound, generator=generator)
        pairs[module] = Pair(a, torch.zeros(rows, rank))
    return Adapter(rank, alpha, pairs)


def refitted(adapter: Adapter, shapes: Shapes, rank: int, alpha: float, seed: int) -> Adapter:
    """The same change with another scale and rank; added ranks begin like those of a fresh adapter.

    Raises TrainingError if the adapter belongs to another model or has more ranks.
    """
    check_modules(adapter, shapes)
    if adapter.rank > rank:
        raise TrainingError(
            f"the adapter's rank is {adapter.rank}, which does not fit into rank {rank}"
        )
    if (adapter.rank, adapter.alpha) == (rank, alpha):
        return adapter
    fresh = fresh_adapter(shapes, rank, alpha, seed)
    pairs = {}
    for module, (a, b) in adapter.pairs.items():
        wider = fresh.pairs[module]
        widened_b = torch.cat(
            (b.cpu() * (adapter.scale / fresh.scale), wider.b[:, adapter.rank :]), dim=1
        )
        pairs[module] = Pair(torch.cat((a.cpu(), wider.a[adapter.rank :])), widened_b)
    return Adapter(rank, alpha, pairs)


def check_modules(adapter: Adapter, shapes: Shapes) -> None:
    """Raises TrainingError unless the adapter changes exactly these modules."""
    differing = sorted(set(adapter.pairs) ^ set(shapes))
    if differing:
        raise TrainingError(
            f"adapter and model differ in {len(differing)} modules, such as {differing[0]}"
        )
    check_fit(adapter, shapes)


def check_fit(adapter: Adapter, shapes: Shapes) -> None:
    """Raise TrainingError if the adapter changes a projection that the model does not have."""
    for module, (down, up) in adapter.pairs.items():
        if shapes.get(module) != (up.shape[0], down.shape[1]):
            raise TrainingError(
                f"{module}: a change of {up.shape[0]} × {down.shape[1]} fits no weight of the model"
            )


class Parameters:
    """An adapter as one vector in single precision, its gradient as another, and views of both for
    each module. The A matrices of a bundle are adjacent, so they are one matrix, too.
    """

    def __init__(self, shapes: Shapes, rank: int, alpha: float, device: torch.device) -> None:
        self.shapes, self.rank, self.alpha = shapes, rank, alpha
        size = sum(rank * (rows + columns) for rows, columns in shapes.values())
        self.values = torch.zeros(size, device=device)
        self.gradient = torch.zeros(size, device=device)
        self.pairs: dict[str, Pair] = {}
        """Views of the current values, by module."""
        self.bundles: list[Bundle] = []
        names, place = iter(shapes), 0
        for _ in range(len(shapes) // sum(map(len, BUNDLES))):
            for bundle in BUNDLES:
                place = self._add_bundle(tuple(next(names) for _ in bundle), place)

    def _add_bundle(self, modules: tuple[str, ...], place: int) -> int:
        a, place = self._leaf(place, (len(modules) * self.rank, self.shapes[modules[0]][1]))
        bs = []
        for number, module in enumerate(modules):
            b, place = self._leaf(place, (self.shapes[module][0], self.rank))
            bs.append(b)
            self.pairs[module] = Pair(
                a.detach()[number * self.rank : (number + 1) * self.rank], b.detach()
            )
        self.bundles.append(Bundle(modules, a, tuple(bs)))
        return place

    def _leaf(self, place: int, shape: tuple[int, int]) -> tuple[Tensor, int]:
        """A matrix at a place of the vector, and the place after it. Its gradient accumulates in
        the gradient vector.
        """
        end = place + shape[0] * shape[1]
        leaf = self.values[place:end].view(shape).requires_grad_()
        leaf.grad = self.gradient[place:end].view(shape)
        return leaf, end

    @property
    def scale(self) -> float:
        """The factor of B @ A."""
        return self.alpha / self.rank

    def adapter(self) -> Adapter:
        """A copy of the current values, on the CPU."""
        pairs = {
            module: Pair(*(side.detach().cpu().clone() for side in pair))
            for module, pair in self.pairs.items()
        }
        return Adapter(self.rank, self.alpha, pairs)

    @torch.no_grad()
    def adopt(self, adapter: Adapter) -> None:
        """Take the values of an adapter of the same modules and rank."""
        for module, pair in self.pairs.items():
            pair.a.copy_(adapter.pairs[module].a)
            pair.b.copy_(adapter.pairs[module].b)


@dataclass(frozen=True, slots=True)
class Bundle:
    """The trained matrices of projections that run as one product: their A matrices stacked, and
    each B.
    """

    modules: Sequence[str]
    a: Tensor
    bs: tuple[Tensor, ...]


def add_change(weight: Tensor, down: Tensor, up: Tensor, scale: float) -> Tensor:
    """The weight plus `scale * up @ down`, in single precision."""
    down, up = (side.to(weight.device, torch.float32) for side in (down, up))
    return torch.addmm(weight.float(), up, down, alpha=scale)


_PREFIX: Final = "base_model.model."
_ENDS: Final = {".lora_A.weight": "a", ".lora_B.weight": "b"}
_LARGEST: Final = torch.finfo(torch.float32).max / 2
_CHANGES_NUMBERS: Final = (
    "use_dora",
    "use_rslora",
    "fan_in_fan_out",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
)
"""Settings that change an adapter to something else than scale * B @ A."""


def write_adapter(folder: Path, adapter: Adapter, base: str) -> None:
    """Write an adapter of the model `base` to a new folder, atomically."""
    if folder.exists():
        raise TrainingError(f"{folder} exists already; an adapter is never overwritten")
    making = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    tensors = {
        f"{_PREFIX}{module}{end}": (
            getattr(pair, side).detach().to("cpu", torch.float32).contiguous()
        )
        for module, pair in adapter.pairs.items()
        for end, side in _ENDS.items()
    }
    try:
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        write_file(making / WEIGHTS_FILE, save(tensors, metadata={"format": "pt"}))
        write_file(
            making / CONFIG_FILE,
            json.dumps(_config(adapter, base), indent=2, sort_keys=True).encode(),
        )
        sync_path(making)
        making.rename(folder)
        sync_path(folder.parent)
    except OSError as error:
        raise TrainingError(f"cannot write the adapter {folder}: {error}") from error


def _config(adapter: Adapter, base: str) -> dict[str, Json]:
    targets = sorted({module.rpartition(".")[2] for module in adapter.pairs})
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "target_modules": list(targets),
        "bias": "none",
    }


def read_adapter(folder: Path) -> Adapter:
    """Read the adapter in a folder. Raises TrainingError if it is unreadable, incomplete, not
    finite or more than plain LoRA.
    """
    weights = folder / WEIGHTS_FILE
    try:
        config, tensors = read_json(folder / CONFIG_FILE), load_file(weights)
    except EngineError as error:
        raise TrainingError(str(error)) from error
    except (OSError, SafetensorError) as error:
        raise TrainingError(f"cannot read {weights}: {error}") from error
    rank, alpha = _plain_lora(config, folder)
    pairs = _pair_up(tensors, folder)
    for module, pair in pairs.items():
        _check(module, pair, rank, alpha / rank)
    missing = sorted(_expected_modules(pairs) - set(pairs))
    if missing:
        raise TrainingError(f"{folder} lacks {len(missing)} modules, such as {missing[0]}")
    return Adapter(rank, alpha, pairs)


def _plain_lora(config: Mapping[str, Json], folder: Path) -> tuple[int, float]:
    odd = [key for key in _CHANGES_NUMBERS if config.get(key)]
    if config.get("peft_type") != "LORA" or config.get("bias", "none") != "none" or odd:
        raise TrainingError(
            f"{folder} holds more than a plain LoRA adapter:"
            f" {', '.join(odd) or config.get('peft_type')}"
        )
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
        raise TrainingError(f"{folder} has no usable rank and alpha: {rank!r}, {alpha!r}")
    return rank, float(alpha)


def _pair_up(tensors: Mapping[str, Tensor], folder: Path) -> dict[str, Pair]:
    sides: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        end = next((end for end in _ENDS if name.endswith(end)), None)
        if end is None or not name.startswith(_PREFIX):
            raise TrainingError(
                f"{folder} has the tensor {name}, which is not part of a LoRA adapter"
            )
        sides.setdefault(name.removeprefix(_PREFIX).removesuffix(end), {})[_ENDS[end]] = (
            tensor.float()
        )
    incomplete = sorted(module for module, pair in sides.items() if len(pair) < len(_ENDS))
    if incomplete or not sides:
        raise TrainingError(f"{folder} lacks tensors: {', '.join(incomplete[:3]) or 'it has none'}")
    return {module: Pair(**pair) for module, pair in sides.items()}


def _check(module: str, pair: Pair, rank: int, scale: float) -> None:
    if pair.a.dim() != 2 or pair.b.dim() != 2 or pair.a.shape[0] != rank or pair.b.shape[1] != rank:
        raise TrainingError(
            f"{module}: {tuple(pair.b.shape)} × {tuple(pair.a.shape)} is not a change of rank"
            f" {rank}"
        )
    # No number of the change is larger than this product, which can be infinite for finite factors.
    largest = float(vector_norm(pair.a)) * float(vector_norm(pair.b)) * abs(scale)
    if not largest <= _LARGEST:
        raise TrainingError(f"{module}: the adapter has, or leads to, numbers that are not finite")


def _expected_modules(modules: Iterable[str]) -> set[str]:
    """The modules of all layers: an adapter that changes a module in one layer changes it in
    all.
    """
    parts = [re.split(r"\.(\d+)\.", module, maxsplit=1) for module in modules]
    layers = {part[1] for part in parts if len(part) > 1}
    return {f"{part[0]}.{layer}.{part[2]}" for part in parts if len(part) > 1 for layer in layers}

"""Adapters on disk in PEFT's format, which other trainers and servers read: a configuration and the matrices by module."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.linalg import vector_norm

from metaclaw.domain.chat import Json
from metaclaw.engine.adapter_check import CONFIG_FILE, WEIGHTS_FILE
from metaclaw.engine.checkpoint import Steps, finish
from metaclaw.engine.training.lora import Adapter, Pair, Shapes
from metaclaw.errors import TrainingError

_PREFIX: Final = "base_model.model."
_ENDS: Final = {".lora_A.weight": "a", ".lora_B.weight": "b"}
_AT_ONCE: Final = 14
_LARGEST: Final = torch.finfo(torch.float32).max / 2
_CHANGES_NUMBERS: Final = ("use_dora", "use_rslora", "fan_in_fan_out", "modules_to_save", "rank_pattern", "alpha_pattern")
"""Settings that make an adapter mean something else than scale * B @ A on whole modules of one rank."""


def write_adapter(folder: Path, adapter: Adapter, base: str) -> None:
    """Write an adapter of the model `base`. The folder appears whole or not at all; one that is already there is left alone."""
    if folder.exists():
        raise TrainingError(f"{folder} is already there; an adapter that was written is never changed")
    making = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    tensors = {
        f"{_PREFIX}{module}{end}": getattr(pair, side).detach().to("cpu", torch.float32).contiguous()
        for module, pair in adapter.pairs.items()
        for end, side in _ENDS.items()
    }
    try:
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        _write(making / WEIGHTS_FILE, save(tensors, metadata={"format": "pt"}))
        _write(making / CONFIG_FILE, json.dumps(_config(adapter, base), indent=2, sort_keys=True).encode())
        _sync(making)
        making.rename(folder)
        _sync(folder.parent)
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
        "lora_dropout": 0.0,
        "target_modules": list(targets),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "use_dora": False,
        "use_rslora": False,
        "modules_to_save": None,
    }


def _write(path: Path, body: bytes) -> None:
    with path.open("wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    if os.name == "posix":  # elsewhere a folder cannot be opened
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read_adapter(folder: Path, shapes: Shapes | None = None) -> Adapter:
    """The adapter in a folder, for exactly these modules if their shapes are given.

    Raises TrainingError if it is unreadable, incomplete, not finite, of other shapes or more than plain LoRA.
    """
    return finish(reading_adapter(folder, shapes))


def reading_adapter(folder: Path, shapes: Shapes | None = None) -> Steps[Adapter]:
    """The same in small steps."""
    config = _read_config(folder / CONFIG_FILE)
    rank, alpha = _plain_lora(config, folder)
    tensors = yield from _read_tensors(folder / WEIGHTS_FILE)
    pairs = _pair_up(tensors, folder)
    for number, (module, pair) in enumerate(pairs.items()):
        _check(module, pair, rank, None if shapes is None else shapes.get(module), alpha / rank)
        if number % _AT_ONCE == 0:
            yield
    targets = {module.rpartition(".")[2] for module in pairs}
    _refuse_gaps(set(pairs), _promised(targets, pairs) if shapes is None else set(shapes), folder)
    return Adapter(rank, alpha, pairs)


def _read_tensors(path: Path) -> Steps[dict[str, Tensor]]:
    tensors: dict[str, Tensor] = {}
    try:
        with safe_open(path, "pt") as file:
            for number, name in enumerate(file.keys()):
                tensors[name] = file.get_tensor(name)
                if number % _AT_ONCE == 0:
                    yield
    except (OSError, SafetensorError) as error:
        raise TrainingError(f"cannot read {path}: {error}") from error
    return tensors


def _read_config(path: Path) -> dict[str, Json]:
    try:
        config: Json = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TrainingError(f"cannot read {path}: {error}") from error
    if not isinstance(config, dict):
        raise TrainingError(f"{path} does not hold a JSON object")
    return config


def _plain_lora(config: Mapping[str, Json], folder: Path) -> tuple[int, float]:
    odd = [key for key in _CHANGES_NUMBERS if config.get(key)]
    if config.get("peft_type") != "LORA" or config.get("bias", "none") != "none" or odd:
        raise TrainingError(f"{folder} holds more than a plain LoRA adapter: {', '.join(odd) or config.get('peft_type')}")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
        raise TrainingError(f"{folder} says no usable rank and alpha: {rank!r}, {alpha!r}")
    return rank, float(alpha)


def _pair_up(tensors: Mapping[str, Tensor], folder: Path) -> dict[str, Pair]:
    sides: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        end = next((end for end in _ENDS if name.endswith(end)), None)
        if end is None or not name.startswith(_PREFIX):
            raise TrainingError(f"{folder} holds the tensor {name}, which is no part of a LoRA adapter")
        sides.setdefault(name.removeprefix(_PREFIX).removesuffix(end), {})[_ENDS[end]] = tensor.float()
    lonely = sorted(module for module, found in sides.items() if len(found) < len(_ENDS))
    if lonely or not sides:
        raise TrainingError(f"{folder} lacks tensors: {', '.join(lonely[:3]) or 'it has none'}")
    return {module: Pair(**found) for module, found in sides.items()}


def _check(module: str, pair: Pair, rank: int, shape: tuple[int, int] | None, scale: float) -> None:
    if pair.a.dim() != 2 or pair.b.dim() != 2 or pair.a.shape[0] != rank or pair.b.shape[1] != rank:
        raise TrainingError(f"{module}: {tuple(pair.b.shape)} × {tuple(pair.a.shape)} is no change of rank {rank}")
    if shape is not None and (pair.b.shape[0], pair.a.shape[1]) != shape:
        raise TrainingError(f"{module}: a change of {pair.b.shape[0]} × {pair.a.shape[1]} does not fit a weight of {shape}")
    # No number of the change is larger than this product. Finite factors can have one that is not.
    largest = float(vector_norm(pair.a)) * float(vector_norm(pair.b)) * abs(scale)
    if not largest <= _LARGEST:
        raise TrainingError(f"{module}: the adapter holds numbers that are not finite, or makes such")


def _promised(targets: set[str], pairs: Mapping[str, Pair]) -> set[str]:
    # What an adapter does to one layer it does to all: a layer that lacks a target which others have was lost.
    layers = {tuple(part for part in module.split(".") if part.isdigit()): module for module in pairs}
    ends = {_unnumbered(module) for module in pairs if module.rpartition(".")[2] in targets}
    return {_numbered(end, layer) for end in ends for layer in layers if end.count("#") == len(layer)}


def _unnumbered(module: str) -> str:
    return ".".join("#" if part.isdigit() else part for part in module.split("."))


def _numbered(end: str, numbers: tuple[str, ...]) -> str:
    rest = iter(numbers)
    return ".".join(next(rest) if part == "#" else part for part in end.split("."))


def _refuse_gaps(found: set[str], wanted: set[str], folder: Path) -> None:
    missing, odd = sorted(wanted - found), sorted(found - wanted)
    if missing:
        raise TrainingError(f"{folder} lacks {len(missing)} modules, such as {missing[0]}")
    if odd:
        raise TrainingError(f"{folder} changes {len(odd)} modules that the model does not have, such as {odd[0]}")

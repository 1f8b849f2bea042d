"""A model small enough to start in a moment, adapters for any model, and what both together should
say.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from metaclaw.domain.policy import Weights

_PREFIX = "base_model.model."
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def make_small_model(whole: Path, folder: Path, *, seed: int = 0) -> Path:
    """A Llama of two thin layers with random weights and the real model's words."""
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(whole / name, folder / name)
    config = json.loads((whole / "config.json").read_text())
    sizes = {
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    (folder / "config.json").write_text(
        json.dumps(config | sizes | {"head_dim": 12, "max_position_embeddings": 4096})
    )
    save_file(
        _small_tensors(config["vocab_size"], torch.Generator().manual_seed(seed)),
        folder / "model.safetensors",
    )
    return folder


def _small_tensors(vocabulary: int, generator: torch.Generator) -> dict[str, Tensor]:
    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * 0.3

    tensors = {
        "model.embed_tokens.weight": matrix(vocabulary, 48),
        "model.norm.weight": torch.ones(48),
    }
    for number in range(2):
        layer = f"model.layers.{number}."
        tensors |= {
            f"{layer}{norm}.weight": torch.ones(48)
            for norm in ("input_layernorm", "post_attention_layernorm")
        }
        tensors |= {
            f"{layer}self_attn.{name}_proj.weight": matrix(rows, 48)
            for name, rows in (("q", 48), ("k", 24), ("v", 24), ("o", 48))
        }
        tensors |= {
            f"{layer}mlp.gate_proj.weight": matrix(96, 48),
            f"{layer}mlp.up_proj.weight": matrix(96, 48),
        }
        tensors[f"{layer}mlp.down_proj.weight"] = matrix(48, 96)
    return tensors


def write_adapter(
    model: Path,
    folder: Path,
    *,
    seed: int,
    size: float,
    rank: int = 4,
    change: "Change | None" = None,
) -> Weights:
    """A random adapter for every projection, in PEFT's files; `size` is that of the change relative
    to each weight.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, weight in load_file(model / "model.safetensors").items():
        if name.split(".")[-2] in _PROJECTIONS and name.endswith(".weight"):
            rows, columns = weight.shape
            module = _PREFIX + name.removesuffix(".weight")
            down, up = (
                torch.randn(rank, columns, generator=generator),
                torch.randn(rows, rank, generator=generator),
            )
            # Alpha is twice the rank, so the change is 2 * up @ down, whose entries have a
            # deviation of 2 * sqrt(rank).
            tensors[f"{module}.lora_A.weight"] = down
            tensors[f"{module}.lora_B.weight"] = up * (size * float(weight.std()) / (2 * rank**0.5))
    config: dict[str, object] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model.name,
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(_PROJECTIONS),
    }
    if change is not None:
        change(tensors, config)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return Weights("embedded", str(folder))


Change = Callable[[dict[str, Tensor], dict[str, object]], None]
"""What is spoilt in an adapter before it is written."""


def merge(model: Path, weights: Weights, folder: Path) -> Path:
    """A model folder whose weights have the adapter in them, computed here in double precision and
    not by the code under test.
    """
    folder.mkdir(parents=True)
    for path in model.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, folder / path.name)
    adapter = load_file(Path(weights.adapter) / "adapter_model.safetensors")
    config = json.loads((Path(weights.adapter) / "adapter_config.json").read_text())
    tensors = load_file(model / "model.safetensors")
    for name in tensors:
        module = _PREFIX + name.removesuffix(".weight")
        if (down := adapter.get(f"{module}.lora_A.weight")) is not None:
            up = adapter[f"{module}.lora_B.weight"]
            change = config["lora_alpha"] / config["r"] * (up.double() @ down.double())
            tensors[name] = (tensors[name].double() + change).float()
    save_file(tensors, folder / "model.safetensors")
    return folder

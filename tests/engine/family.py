"""Random models of every kind that the engine runs, so small that a pass takes milliseconds."""

import json
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file
from torch import Tensor

FAMILY: Final = ("llama", "llama3", "mistral", "qwen2", "qwen3")
VOCABULARY: Final = 64
_WIDTH, _LAYERS, _HEADS, _KV_HEADS, _HEAD, _FEED = 32, 2, 4, 2, 16, 48
_LLAMA3: Final = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def write_member(kind: str, folder: Path) -> Path:
    """Write the model's folder; the same weights each time. Nothing in it is left at a one or a
    zero that would hide where it is used.
    """
    folder.mkdir(parents=True)
    tensors = _tensors(kind)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "model_type": "llama" if kind == "llama3" else kind,
        "hidden_size": _WIDTH,
        "intermediate_size": _FEED,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
        "rope_parameters": (
            _LLAMA3 if kind == "llama3" else {"rope_type": "default", "rope_theta": 50_000.0}
        ),
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _tensors(kind: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(11)
    tensors: dict[str, Tensor] = {}

    def matrix(name: str, rows: int, columns: int) -> None:
        tensors[f"{name}.weight"] = torch.randn(rows, columns, generator=generator) * 0.25

    def vector(name: str, size: int, mean: float) -> None:
        tensors[name] = torch.randn(size, generator=generator) * 0.3 + mean

    matrix("model.embed_tokens", VOCABULARY, _WIDTH)
    matrix("lm_head", VOCABULARY, _WIDTH)
    vector("model.norm.weight", _WIDTH, 1.0)
    for number in range(_LAYERS):
        layer = f"model.layers.{number}."
        rows = {"q": _HEADS * _HEAD, "k": _KV_HEADS * _HEAD, "v": _KV_HEADS * _HEAD}
        for name, count in rows.items():
            matrix(f"{layer}self_attn.{name}_proj", count, _WIDTH)
            if kind == "qwen2":
                vector(f"{layer}self_attn.{name}_proj.bias", count, 0.0)
        matrix(f"{layer}self_attn.o_proj", _WIDTH, _HEADS * _HEAD)
        for name in ("gate", "up"):
            matrix(f"{layer}mlp.{name}_proj", _FEED, _WIDTH)
        matrix(f"{layer}mlp.down_proj", _WIDTH, _FEED)
        for name in ("input", "post_attention"):
            vector(f"{layer}{name}_layernorm.weight", _WIDTH, 1.0)
        if kind == "qwen3":
            for name in "qk":
                vector(f"{layer}self_attn.{name}_norm.weight", _HEAD, 1.0)
    return tensors

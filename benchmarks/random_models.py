"""Models with random weights: tiny ones of every kind that the engine runs, and the shapes of models
that people run, made on the device.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor

FAMILY: Final = ("llama", "llama3", "mistral", "qwen2", "qwen3")
VOCABULARY: Final = 64
_ROPE: Final = {"rope_type": "default", "rope_theta": 50_000.0}
_LLAMA3: Final = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_TINY: Final = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
}
_TEMPLATE: Final = (
    "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)
SIZES: Final[dict[str, dict[str, object]]] = {
    "tiny": _TINY | {"model_type": "llama", "vocab_size": 512, "max_position_embeddings": 4096},
    "135M": {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49_152,
    },
    "1.5B": {
        "model_type": "qwen2",
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "vocab_size": 151_936,
    },
    "4B": {
        "model_type": "qwen3",
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
    },
    "8B": {
        "model_type": "qwen3",
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "tie_word_embeddings": False,
    },
}
"""The shapes of SmolLM2-135M, Qwen2.5-1.5B, Qwen3-4B and Qwen3-8B."""


def write_member(kind: str, folder: Path) -> Path:
    """Write a tiny model's folder; the same weights each time. Nothing in it is left at a one or a
    zero that would hide where it is used.
    """
    generator = torch.Generator().manual_seed(11)
    config = _TINY | {
        "model_type": "llama" if kind == "llama3" else kind,
        "tie_word_embeddings": False,
        "rope_parameters": _LLAMA3 if kind == "llama3" else _ROPE,
    }
    tensors = random_tensors(
        config,
        lambda *size: torch.randn(*size, generator=generator) * 0.25,
        lambda size, mean: torch.randn(size, generator=generator) * 0.3 + mean,
    )
    # Numbers that bfloat16 holds exactly, so that a GPU computes with the same weights.
    exact = {name: tensor.bfloat16().float() for name, tensor in tensors.items()}
    write_folder(folder, config)
    save_file(exact, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def large_tensors(size: str, device: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights of one of `SIZES`, made on the device."""

    def draw(*shape: int) -> Tensor:
        return torch.empty(*shape, device=device, dtype=dtype).normal_(0.0, 0.02)

    return random_tensors(SIZES[size], draw, lambda length, mean: draw(length) + mean)


def write_folder(folder: Path, config: dict[str, object]) -> None:
    """Everything of a model folder but the weights; each token is a word."""
    folder.mkdir(parents=True)
    whole = {
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "rope_parameters": _ROPE,
        "eos_token_id": 2,
    } | config
    (folder / "config.json").write_text(json.dumps(whole))
    count = whole["vocab_size"]
    assert isinstance(count, int)
    tokenizer = Tokenizer(
        WordLevel({f"w{number}": number for number in range(count)}, unk_token="w0")
    )
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": _TEMPLATE}))


def random_tensors(
    config: dict[str, object],
    matrix: Callable[..., Tensor],
    vector: Callable[[int, float], Tensor],
) -> dict[str, Tensor]:
    """Tensors of this configuration by their Hugging Face names."""
    sizes = {name: value for name, value in config.items() if isinstance(value, int)}
    width, feed, head = sizes["hidden_size"], sizes["intermediate_size"], sizes["head_dim"]
    heads, kv_heads = sizes["num_attention_heads"], sizes["num_key_value_heads"]
    kind = config["model_type"]
    tensors = {
        "model.embed_tokens.weight": matrix(sizes["vocab_size"], width),
        "model.norm.weight": vector(width, 1.0),
    }
    if config.get("tie_word_embeddings") is False:
        tensors["lm_head.weight"] = matrix(sizes["vocab_size"], width)
    for number in range(sizes["num_hidden_layers"]):
        layer = f"model.layers.{number}."
        for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            tensors[f"{layer}self_attn.{name}_proj.weight"] = matrix(count * head, width)
            if kind == "qwen2":
                tensors[f"{layer}self_attn.{name}_proj.bias"] = vector(count * head, 0.0)
            if kind == "qwen3" and name != "v":
                tensors[f"{layer}self_attn.{name}_norm.weight"] = vector(head, 1.0)
        tensors[f"{layer}self_attn.o_proj.weight"] = matrix(width, heads * head)
        for name in ("gate", "up"):
            tensors[f"{layer}mlp.{name}_proj.weight"] = matrix(feed, width)
        tensors[f"{layer}mlp.down_proj.weight"] = matrix(width, feed)
        for name in ("input", "post_attention"):
            tensors[f"{layer}{name}_layernorm.weight"] = vector(width, 1.0)
    return tensors

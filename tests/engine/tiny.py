"""A model folder so small that a step takes milliseconds: random weights of the Llama family, and a
vocabulary of single words.
"""

import json
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

VOCABULARY: Final = 64
END: Final = 2
_WIDTH, _LAYERS, _HEADS, _KV_HEADS, _FEED = 32, 2, 4, 2, 48


def make_tiny_model(folder: Path) -> Path:
    """Write the folder; the same weights each time."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(7)
    head = _WIDTH // _HEADS
    rows = {"q": _HEADS * head, "k": _KV_HEADS * head, "v": _KV_HEADS * head}
    shapes = {
        "model.embed_tokens.weight": (VOCABULARY, _WIDTH),
        "model.norm.weight": (_WIDTH,),
        "lm_head.weight": (VOCABULARY, _WIDTH),
    }
    for layer in range(_LAYERS):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.self_attn.{name}_proj.weight": (count, _WIDTH) for name, count in rows.items()
        }
        shapes |= {
            f"{at}.self_attn.o_proj.weight": (_WIDTH, _HEADS * head),
            f"{at}.mlp.down_proj.weight": (_WIDTH, _FEED),
        }
        shapes |= {f"{at}.mlp.{name}_proj.weight": (_FEED, _WIDTH) for name in ("gate", "up")}
        shapes |= {
            f"{at}.{name}.weight": (_WIDTH,)
            for name in ("input_layernorm", "post_attention_layernorm")
        }
    tensors = {
        name: torch.ones(shape)
        if len(shape) == 1
        else torch.randn(shape, generator=generator) * 0.2
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "model_type": "llama",
        "hidden_size": _WIDTH,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "intermediate_size": _FEED,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "eos_token_id": END,
    }
    (folder / "config.json").write_text(json.dumps(config))
    words = {f"w{number}": number for number in range(VOCABULARY)}
    Tokenizer(WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return folder

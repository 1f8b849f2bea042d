"""A real model folder in miniature, made on the spot: a random two-layer Llama whose tokens are
bytes, with a ChatML template.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

START: Final = 256
END: Final = 257
TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content"
    " }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tiny_model(folder: Path) -> Path:
    """The folder, with the model in it."""
    folder.mkdir(parents=True, exist_ok=True)
    make_tokenizer(folder)
    sizes = {
        "vocab_size": END + 1,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,  # vLLM's attention on a CPU knows none smaller than 32
    }
    tokens = {"bos_token_id": START, "eos_token_id": END, "pad_token_id": END}
    more = {"max_position_embeddings": 1024, "tie_word_embeddings": True, **tokens}
    write_llama(folder, sizes, more, seed=0, spread=0.02)
    return folder


def write_llama(
    folder: Path,
    sizes: Mapping[str, int],
    more: Mapping[str, object],
    *,
    seed: int,
    spread: float,
) -> None:
    """Configuration and random weights of a Llama. transformers would take seconds to import."""
    import torch  # only who makes a model waits for it
    from safetensors.torch import save_file

    width, feed, head = sizes["hidden_size"], sizes["intermediate_size"], sizes["head_dim"]
    rows = {
        "q": sizes["num_attention_heads"] * head,
        "k": sizes["num_key_value_heads"] * head,
        "v": sizes["num_key_value_heads"] * head,
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (sizes["vocab_size"], width),
        "model.norm.weight": (width,),
    }
    if not more["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (sizes["vocab_size"], width)
    for layer in range(sizes["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.self_attn.{name}_proj.weight": (count, width) for name, count in rows.items()
        }
        shapes |= {
            f"{at}.self_attn.o_proj.weight": (width, rows["q"]),
            f"{at}.mlp.down_proj.weight": (width, feed),
        }
        shapes |= {f"{at}.mlp.{name}_proj.weight": (feed, width) for name in ("gate", "up")}
        shapes |= {
            f"{at}.{name}.weight": (width,)
            for name in ("input_layernorm", "post_attention_layernorm")
        }
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.ones(shape)
        if len(shape) == 1
        else torch.randn(shape, generator=generator) * spread
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "float32",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
    }
    (folder / "config.json").write_text(json.dumps({**config, **sizes, **more}))


def make_opinionated_model(folder: Path) -> Path:
    """The same with weights large enough to have opinions, and with room for the golden set's
    tools.
    """
    from safetensors.torch import load_file, save_file

    config, weights = make_tiny_model(folder) / "config.json", folder / "model.safetensors"
    config.write_text(
        json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 4096})
    )
    larger = {
        name: tensor * (4 if tensor.dim() > 1 else 1) * (2 if "embed" in name else 1)
        for name, tensor in load_file(weights).items()
    }
    save_file(larger, weights, metadata={"format": "pt"})
    return folder


def make_speaking_model(folder: Path) -> Path:
    """The same, taught to answer anything with four random letters from a to l; with room for the
    golden set's tools.

    Teaching takes seconds, so it is done once and kept in the cache that later runs and other
    processes find."""
    cache = (
        Path(
            os.environ.get("METACLAW_TEST_CACHE") or Path(__file__).resolve().parents[2] / ".cache"
        )
        / "miniature"
    )
    taught = cache / hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not taught.exists():
            with TemporaryDirectory(dir=cache) as unfinished:
                _teach_to_speak(Path(unfinished) / "model").rename(taught)
    return Path(shutil.copytree(taught, folder))


def _teach_to_speak(folder: Path) -> Path:
    import torch
    from transformers import AutoModelForCausalLM

    config = make_tiny_model(folder) / "config.json"
    config.write_text(
        json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 4096})
    )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    opening = tokenizer.encode("<|im_end|>\n<|im_start|>assistant\n").ids
    letters = torch.tensor(tokenizer.encode("abcdefghijkl").ids)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    chance = torch.Generator().manual_seed(0)

    def draw(most: int, size: int) -> torch.Tensor:
        return torch.randint(most, (size,), generator=chance)

    for _ in range(80):
        asked = 8 + int(draw(40, 1))
        rows = [
            torch.cat(
                (draw(256, asked), torch.tensor(opening), letters[draw(12, 4)], torch.tensor([END]))
            )
            for _ in range(16)
        ]
        ids = torch.stack(rows)
        labels = ids.clone()
        labels[:, : asked + len(opening)] = -100
        model(input_ids=ids, labels=labels).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    model.save_pretrained(folder)
    return folder


def make_tokenizer(folder: Path) -> None:
    """Its tokenizer and chat template alone."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True) for text in ("<|im_start|>", "<|im_end|>")]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))

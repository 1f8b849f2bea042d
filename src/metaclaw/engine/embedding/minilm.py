"""all-MiniLM-L6-v2 in numpy: six layers of BERT, mean of the tokens, unit length.

Importing numpy takes 30 ms and 30 MB, torch seconds and 200 MB, and for one short text numpy's
products are as fast.

A text must be embedded within milliseconds on one slow core. Two thirds of the work are the 1,536
neurons of each layer, most of which hardly vary between texts. `trim` keeps the 640 neurons of each
layer that matter most for a set of short texts, and approximates the others by them (ridge
regression). That saves a third of the work; the ranking on `benchmarks/meaning` is the same."""

import json
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]

DIMENSIONS: Final = 384
_LAYERS: Final = 6
_HEADS: Final = 12
_HEAD_SIZE: Final = DIMENSIONS // _HEADS
_KEPT_NEURONS: Final = 640
_RIDGE: Final = 0.1
_MOST_TOKENS: Final = 64
_EPSILON: Final = 1e-12


class _Layer(NamedTuple):
    qkv: Floats
    qkv_bias: Floats
    out: Floats
    out_bias: Floats
    norm: Floats
    norm_bias: Floats
    up: Floats
    up_bias: Floats
    down: Floats
    down_bias: Floats
    last_norm: Floats
    last_norm_bias: Floats


class MiniLM:
    """The model of a folder with `tokenizer.json` and `model.safetensors`. Word embeddings stay in
    the file until they are used.
    """

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        tensors = _read_tensors(folder / "model.safetensors")
        self._embedding = tensors["embeddings.word_embeddings.weight"]
        self._position = (
            tensors["embeddings.position_embeddings.weight"]
            + tensors["embeddings.token_type_embeddings.weight"][0]
        )
        self._norm = tensors["embeddings.LayerNorm.weight"], tensors["embeddings.LayerNorm.bias"]
        self._layers = [
            _read_layer(tensors, f"encoder.layer.{number}.") for number in range(_LAYERS)
        ]

    def encode(self, text: str, most: int) -> list[int]:
        """The tokens of a text. If there are more than `most`, two thirds are from its beginning
        and one third from its end.
        """
        # Half of a surrogate pair is no text for the library.
        ids = self._tokenizer.encode(text.encode("utf-8", "replace").decode()).ids
        tail = (most - 2) // 3 + 1
        return ids if len(ids) <= most else ids[: most - tail] + ids[-tail:]

    def trim(self, texts: Sequence[str]) -> None:
        """Remove the neurons that matter least for these texts."""
        seen: list[list[Floats]] = [[] for _ in self._layers]
        for text in texts:
            self._run(np.array([self.encode(text, _MOST_TOKENS)]), seen)
        self._layers = [
            _trim(layer, np.concatenate(parts))
            for layer, parts in zip(self._layers, seen, strict=True)
        ]

    def save(self, path: Path) -> None:
        """Write the layers to a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".part.npz")
        np.savez(
            partial,
            **{
                f"{at}.{name}": part
                for at, layer in enumerate(self._layers)
                for name, part in layer._asdict().items()
            },
        )
        partial.replace(path)

    def restore(self, path: Path) -> None:
        """Read saved layers. Raises OSError, KeyError or ValueError if the file is absent or
        damaged.
        """
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            self._layers = [
                _Layer(*(stored[f"{at}.{name}"] for name in _Layer._fields))
                for at in range(_LAYERS)
            ]

    def embed_tokens(self, tokens: Sequence[int]) -> Floats:
        """The unit vector of one text."""
        vector: Floats = self._run(np.array([tokens]))[0]
        return vector

    def embed_many(self, texts: Sequence[str]) -> Floats:
        """The unit vectors of several texts; those of equal length are computed together."""
        tokens = [self.encode(text, _MOST_TOKENS) for text in texts]
        vectors = np.empty((len(texts), DIMENSIONS), np.float32)
        for length in set(map(len, tokens)):
            rows = [row for row, encoded in enumerate(tokens) if len(encoded) == length]
            vectors[rows] = self._run(np.array([tokens[row] for row in rows]))
        return vectors

    def _run(
        self, tokens: npt.NDArray[np.int_], seen: "list[list[Floats]] | None" = None
    ) -> Floats:
        count, length = tokens.shape
        x = _normalise(
            (self._embedding[tokens] + self._position[:length]).reshape(-1, DIMENSIONS), *self._norm
        )
        for at, layer in enumerate(self._layers):
            mixed = x @ layer.qkv
            mixed += layer.qkv_bias
            query, key, value = mixed.reshape(count, length, 3, _HEADS, _HEAD_SIZE).transpose(
                2, 0, 3, 1, 4
            )
            scores = query @ key.transpose(0, 1, 3, 2)
            scores -= scores.max(-1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(-1, keepdims=True)
            attended = (scores @ value).transpose(0, 2, 1, 3).reshape(-1, DIMENSIONS) @ layer.out
            attended += layer.out_bias
            attended += x
            x = _normalise(attended, layer.norm, layer.norm_bias)
            hidden = x @ layer.up
            hidden += layer.up_bias
            active = _gelu(hidden)
            if seen is not None:
                seen[at].append(active)
            y = active @ layer.down
            y += layer.down_bias
            y += x
            x = _normalise(y, layer.last_norm, layer.last_norm_bias)
        vectors: Floats = x.reshape(count, length, DIMENSIONS).mean(1)
        vectors /= np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, None]
        return vectors


def _normalise(x: Floats, weight: Floats, bias: Floats) -> Floats:
    x -= x.mean(-1, keepdims=True)
    variance = np.einsum("ij,ij->i", x, x) / DIMENSIONS
    x *= (1 / np.sqrt(variance + _EPSILON))[:, None]
    x *= weight
    x += bias
    return x


def _gelu(x: Floats) -> Floats:
    """GELU in its tanh form; the vectors differ from those of the exact form by less than 1e-3."""
    inner = x * x
    inner *= 0.0356774081
    inner += 0.7978845608
    inner *= x
    np.tanh(inner, out=inner)
    inner += 1
    inner *= x
    inner *= 0.5
    return inner


def _trim(layer: _Layer, active: Floats) -> _Layer:
    mean = active.mean(0)
    varying = active - mean
    importance = np.sqrt((varying * varying).mean(0)) * np.linalg.norm(layer.down, axis=1)
    order = np.argsort(-importance)
    kept, gone = np.sort(order[:_KEPT_NEURONS]), order[_KEPT_NEURONS:]
    gram = varying[:, kept].T @ varying[:, kept]
    gram[np.diag_indices(len(kept))] += _RIDGE * np.trace(gram) / len(kept)
    fitted = np.linalg.solve(gram, varying[:, kept].T @ (varying[:, gone] @ layer.down[gone]))
    bias = layer.down_bias + mean[gone] @ layer.down[gone] - mean[kept] @ fitted
    return layer._replace(
        up=np.ascontiguousarray(layer.up[:, kept]),
        up_bias=layer.up_bias[kept],
        down=(layer.down[kept] + fitted).astype(np.float32),
        down_bias=bias.astype(np.float32),
    )


def _read_tensors(path: Path) -> dict[str, Floats]:
    """The tensors of a safetensors file, mapped into memory."""
    with path.open("rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    start = 8 + int.from_bytes(content[:8], "little")
    tensors = {}
    for name, entry in json.loads(content[8:start]).items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            begin, end = entry["data_offsets"]
            flat = np.frombuffer(content, np.float32, (end - begin) // 4, start + begin)
            tensors[name] = flat.reshape(entry["shape"])
    return tensors


def _read_layer(tensors: dict[str, Floats], at: str) -> _Layer:
    def dense(name: str) -> tuple[Floats, Floats]:
        return np.ascontiguousarray(tensors[f"{at}{name}.weight"].T), tensors[f"{at}{name}.bias"]

    parts = [dense(f"attention.self.{name}") for name in ("query", "key", "value")]
    qkv, qkv_bias = (
        np.concatenate([part[0] for part in parts], 1),
        np.concatenate([part[1] for part in parts]),
    )
    scale = np.float32(_HEAD_SIZE**-0.5)
    qkv[:, :DIMENSIONS] *= scale
    qkv_bias[:DIMENSIONS] *= scale
    norm, last = (f"{at}{name}.LayerNorm" for name in ("attention.output", "output"))
    return _Layer(
        qkv,
        qkv_bias,
        *dense("attention.output.dense"),
        tensors[f"{norm}.weight"],
        tensors[f"{norm}.bias"],
        *dense("intermediate.dense"),
        *dense("output.dense"),
        tensors[f"{last}.weight"],
        tensors[f"{last}.bias"],
    )

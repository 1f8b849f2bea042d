"""The forward pass: spans of tokens from many requests run as one ragged batch, which returns the
logits of the wanted rows.

Prompts, decode steps and teacher-forced scoring are all spans of this pass, so their numbers agree.
No row is padded: the projections run over all tokens of all spans at once, only attention runs
separately for each request."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
import torch.nn.functional as functional
from torch import Tensor

from metaclaw.engine.attention import AttentionWindow, Cache, Span, plan_windows
from metaclaw.engine.batch import DrawnToken, Sampler, draw
from metaclaw.engine.checkpoint import Shape, Steps, finish
from metaclaw.errors import EngineError

Linear: TypeAlias = Callable[[Tensor], Tensor]
"""Multiplies rows by a transposed weight, and adds the bias if there is one."""
Tensors: TypeAlias = Callable[[str], Tensor]
"""The weights of a model by their Hugging Face names."""

MAX_CONTEXT: Final = 8192
CHUNK_TOKENS: Final = 64
"""Prompt tokens of one pass: enough to be efficient, and few enough not to delay the running
answers.
"""


def make_linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """The fastest exact product with this weight on this machine."""
    if can_pack(weight.dtype):
        return pack(weight, bias)
    return lambda rows: functional.linear(rows, weight, bias)


def can_pack(dtype: torch.dtype) -> bool:
    """Whether packed weights are faster: in single precision, where this torch has Arm's compute
    library.

    OpenBLAS, the alternative there, packs the weight again on every call, which for a few rows
    costs more than the product."""
    has_library = bool(getattr(torch._C, "_has_mkldnn_acl", False))
    return dtype == torch.float32 and has_library and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def pack(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """A product with a packed copy. From two rows on, the result of a row does not depend on the
    number of rows.

    A single row uses the unpacked weight: a plain matrix-vector product reads memory nearly twice
    as fast."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
    product = torch.ops.mkldnn._linear_pointwise.default

    def multiply(rows: Tensor) -> Tensor:
        if rows.shape[0] == 1:
            return functional.linear(rows, weight, bias)
        out: Tensor = product(rows, packed, bias, "none", [], "")
        return out

    return multiply


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: Tensor
    query_key_value: Linear
    head_norms: Tensor | None
    attention_out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


class Llama:
    """A model of the Llama family: plain tensors in one dtype, no quantisation."""

    chunk_tokens: int = CHUNK_TOKENS

    def __init__(self, shape: Shape, tensors: Mapping[str, Tensor]) -> None:
        try:
            self.embedding = tensors["model.embed_tokens.weight"]
            self._norm = tensors["model.norm.weight"]
            self._layers = [
                finish(_build_layer(shape, tensors.__getitem__, f"model.layers.{number}."))
                for number in range(shape.layers)
            ]
        except KeyError as error:
            raise EngineError(f"the model's weights lack the tensor {error}") from error
        self._head = make_linear(tensors.get("lm_head.weight", self.embedding))
        self.shape = shape
        self.context = min(shape.positions, MAX_CONTEXT)
        self._rotations = rotary_angles(shape, self.context)

    def with_layers(self, tensor: Tensors) -> "Steps[Llama]":
        """A model with layers of these weights, built one after the other. The rest is shared."""
        other = copy(self)
        other._layers = []
        for number in range(self.shape.layers):
            layer = yield from _build_layer(self.shape, tensor, f"model.layers.{number}.")
            other._layers.append(layer)
        return other

    def dissolve(self) -> Steps[None]:
        """Free the memory of the layers step by step. After that the model cannot run."""
        while self._layers:
            self._layers.pop()
            yield

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of every weight and activation."""
        return self.embedding.dtype

    def new_cache(self, slots: int, positions: int | None = None) -> Cache:
        """An empty cache for this model."""
        return Cache(self.shape, slots, positions or self.context, self.dtype)

    @torch.inference_mode()
    def run(self, cache: Cache, spans: Sequence[Span], wanted: Sequence[int]) -> Tensor:
        """Run the spans, write their keys and values, and return the logits of the wanted rows in
        single precision.

        Rows are numbered in the order of the spans. Spans of one token should come first, by
        ascending slot."""
        ids = torch.tensor([token for span in spans for token in span.tokens])
        positions = torch.tensor(
            [span.start + offset for span in spans for offset in range(len(span.tokens))]
        )
        homes = torch.tensor(
            [
                span.slot * cache.positions + span.start + offset
                for span in spans
                for offset in range(len(span.tokens))
            ]
        )
        rotations = self._rotations[positions].unsqueeze(1)
        windows = plan_windows(cache, spans)
        rows = self.embedding[ids]
        for number, layer in enumerate(self._layers):
            normed = self._normalise(rows, layer.attention_norm)
            rows = rows + layer.attention_out(
                self._attend(layer, normed, rotations, homes, cache, number, windows)
            )
            gate, up = layer.gate_up(self._normalise(rows, layer.mlp_norm)).chunk(2, dim=-1)
            rows = rows + layer.down(functional.silu(gate) * up)
        last = rows if len(wanted) == len(rows) else rows[torch.tensor(wanted)]
        return self._head(self._normalise(last, self._norm)).float()

    def draw(self, logits: Tensor, samplers: Sequence[Sampler]) -> list[DrawnToken]:
        """One token per row."""
        return draw(logits, samplers)

    def _normalise(self, rows: Tensor, weight: Tensor) -> Tensor:
        return torch.rms_norm(rows, (self.shape.width,), weight, self.shape.norm_epsilon)

    def _attend(
        self,
        layer: _Layer,
        rows: Tensor,
        rotations: Tensor,
        homes: Tensor,
        cache: Cache,
        number: int,
        windows: Sequence[AttentionWindow],
    ) -> Tensor:
        shape = self.shape
        mixed = layer.query_key_value(rows)
        turned = shape.query_width + shape.kv_width // 2
        if layer.head_norms is not None:
            normalise_heads(mixed, layer.head_norms, shape)
        pairs = torch.view_as_complex(
            mixed[:, :turned].float().view(len(mixed), -1, shape.head_width // 2, 2)
        ).mul_(rotations)
        if self.dtype != torch.float32:
            mixed[:, :turned] = torch.view_as_real(pairs).flatten(1)
        cache.rows[number].index_copy_(0, homes, mixed[:, shape.query_width :])
        queries = mixed[:, : shape.query_width]
        outs = [window.attend(queries, number) for window in windows]
        return outs[0] if len(outs) == 1 else torch.cat(outs)


def _build_layer(shape: Shape, tensor: Tensors, prefix: str) -> Steps[_Layer]:
    def mixed(end: str) -> Iterator[Tensor]:
        yield interleave(tensor(f"{prefix}self_attn.q_proj.{end}"), shape.heads)
        yield interleave(tensor(f"{prefix}self_attn.k_proj.{end}"), shape.kv_heads)
        yield tensor(f"{prefix}self_attn.v_proj.{end}")

    def plain(*names: str) -> Iterator[Tensor]:
        return (tensor(f"{prefix}{name}_proj.weight") for name in names)

    biases = torch.cat(list(mixed("bias"))) if shape.has_biases else None
    return _Layer(
        attention_norm=tensor(f"{prefix}input_layernorm.weight"),
        query_key_value=(yield from _join(mixed("weight"), biases)),
        head_norms=head_norms(shape, tensor, prefix) if shape.has_head_norms else None,
        attention_out=(yield from _join(plain("self_attn.o"))),
        mlp_norm=tensor(f"{prefix}post_attention_layernorm.weight"),
        gate_up=(yield from _join(plain("mlp.gate", "mlp.up"))),
        down=(yield from _join(plain("mlp.down"))),
    )


def _join(weights: Iterator[Tensor], bias: Tensor | None = None) -> Steps[Linear]:
    """One product of several weights, stacked."""
    parts = []
    for weight in weights:
        parts.append(weight)
        yield
    joined = parts[0] if len(parts) == 1 else torch.cat(parts)
    yield
    return make_linear(joined, bias)


def head_norms(shape: Shape, tensor: Tensors, prefix: str) -> Tensor:
    """The weights of the norms of all query heads and all key heads, interleaved."""
    query, key = (
        interleave(tensor(f"{prefix}self_attn.{name}_norm.weight"), 1) for name in ("q", "k")
    )
    return torch.cat((query.expand(shape.heads, -1), key.expand(shape.kv_heads, -1)))


def normalise_heads(rows: Tensor, weights: Tensor, shape: Shape) -> None:
    """Normalise all query heads and key heads of rows of queries, keys and values, in place."""
    turned = shape.query_width + shape.kv_width // 2
    heads = rows[:, :turned].view(len(rows), -1, shape.head_width)
    heads.copy_(torch.rms_norm(heads, (shape.head_width,), None, shape.norm_epsilon) * weights)


def interleave(rows: Tensor, heads: int) -> Tensor:
    """The rows of a projection with the two halves of each rotary pair side by side."""
    # Such pairs are complex numbers, rotated by one multiplication. Queries and keys are reordered
    # alike, so scores stay the same.
    return rows.view(heads, 2, rows.shape[0] // heads // 2, -1).transpose(1, 2).reshape(rows.shape)


def rotary_angles(shape: Shape, positions: int) -> Tensor:
    """The rotation of each pair at each position, as complex numbers of length one."""
    angles = shape.rotary_angles(torch.arange(positions))
    return torch.polar(torch.ones_like(angles), angles)

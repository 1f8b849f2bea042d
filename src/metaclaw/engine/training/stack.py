"""The weights rollouts are drawn with: Hugging Face tensors fused for decoding, replaceable in place, and the layers' arithmetic.

The buffers keep their addresses when new weights come, so that recorded CUDA graphs go on reading the right ones.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as functional
from torch import Tensor

from metaclaw.engine.checkpoint import Shape
from metaclaw.engine.llama import Linear, can_pack, make_linear
from metaclaw.errors import TrainingError

AddTo: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Sums and rows: the rows times the transposed weight are added to the sums, in place, and the sums returned."""

Attend: TypeAlias = Callable[[int, Tensor], Tensor]
"""Given a layer's number and its rows of queries, keys and values (turned), the attention's output rows."""


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: Tensor
    query_key_value: Linear
    attention_out: AddTo
    mlp_norm: Tensor
    gate_up: Linear
    down: AddTo


class Stack:
    """A Llama-type model's weights on one device in one dtype, given as full Hugging Face tensors in any dtype.

    Each weight is rounded once, from what it is given in: merged weights should come in single precision.
    """

    def __init__(self, shape: Shape, tensors: Mapping[str, Tensor], device: str, dtype: torch.dtype) -> None:
        if shape.has_biases or shape.has_head_norms:
            raise TrainingError("rollouts cannot be drawn here from a model with biases or norms of single heads")
        self.shape = shape
        self.device = torch.device(device)
        self.dtype = dtype
        self._packs = self.device.type == "cpu" and can_pack(dtype)
        self._head = "head" if "lm_head.weight" in tensors else "embedding"
        self._sizes = {name: tensor.shape for name, tensor in tensors.items()}
        self._held: dict[str, Tensor] = {}
        self._products: dict[str, Linear] = {}
        self._turns = _rotary_turns(shape).to(self.device)
        self.replace(tensors)

    @torch.inference_mode()
    def replace(self, tensors: Mapping[str, Tensor]) -> None:
        """Take new weights into the same buffers. Raises TrainingError, and changes nothing, if their shapes do not fit."""
        self._refuse_misfits(tensors)
        try:
            for name, weight in _fused(self.shape, tensors):
                self._hold(name, weight)
        except KeyError as error:
            raise TrainingError(f"the weights to draw with lack the tensor {error}") from error
        self._layers = [self._layer(f"{number}.") for number in range(self.shape.layers)]

    def embed(self, tokens: Tensor) -> Tensor:
        """The rows with which tokens enter."""
        return self._held["embedding"][tokens]

    def turns(self, positions: Tensor) -> Tensor:
        """What turns the queries and keys at these positions: one complex number a pair."""
        return self._turns[positions].unsqueeze(1)

    def run(self, rows: Tensor, turns: Tensor, attend: Attend) -> Tensor:
        """All layers over the rows, in place; before attention each layer's queries and keys are turned to their places."""
        for number, layer in enumerate(self._layers):
            mixed = layer.query_key_value(self._normalise(rows, layer.attention_norm))
            self._turn(mixed, turns)
            rows = layer.attention_out(rows, attend(number, mixed))
            gate, up = layer.gate_up(self._normalise(rows, layer.mlp_norm)).chunk(2, dim=-1)
            rows = layer.down(rows, functional.silu(gate).mul_(up))
        return rows

    def logits(self, rows: Tensor) -> Tensor:
        """Single-precision logits of rows that have been through all layers; never rounded to less on a GPU."""
        normed = self._normalise(rows, self._held["norm"])
        if self.device.type == "cuda" and self.dtype != torch.float32:
            return torch.mm(normed, self._held[self._head].t(), out_dtype=torch.float32)
        return self._products[self._head](normed).float()

    def _turn(self, mixed: Tensor, turns: Tensor) -> None:
        turned = self.shape.query_width + self.shape.kv_width // 2
        pairs = torch.view_as_complex(mixed[:, :turned].float().view(len(mixed), -1, self.shape.head_width // 2, 2)).mul_(turns)
        if self.dtype != torch.float32:
            mixed[:, :turned] = torch.view_as_real(pairs).flatten(1)

    def _normalise(self, rows: Tensor, weight: Tensor) -> Tensor:
        return torch.rms_norm(rows, (self.shape.width,), weight, self.shape.norm_epsilon)

    def _refuse_misfits(self, tensors: Mapping[str, Tensor]) -> None:
        for name, size in self._sizes.items():
            if name not in tensors or tensors[name].shape != size:
                given = f"of {tuple(tensors[name].shape)}" if name in tensors else "missing"
                raise TrainingError(f"these weights cannot replace the present ones: {name} is {given}, not of {tuple(size)}")

    def _hold(self, name: str, weight: Tensor) -> None:
        held = self._held.get(name)
        if held is None:
            held = self._held[name] = torch.empty(weight.shape, dtype=self.dtype, device=self.device)
        elif self._packs and (weight.dtype, weight.device) == (held.dtype, held.device) and torch.equal(held, weight):
            return  # packing costs more than comparing, and a LoRA never touches the head
        held.copy_(weight)
        if weight.dim() == 2 and (name != "embedding" or name == self._head):
            self._products[name] = make_linear(held) if self._packs else _plain(held)

    def _layer(self, prefix: str) -> _Layer:
        return _Layer(
            attention_norm=self._held[f"{prefix}attention_norm"],
            query_key_value=self._products[f"{prefix}query_key_value"],
            attention_out=self._add_to(f"{prefix}attention_out"),
            mlp_norm=self._held[f"{prefix}mlp_norm"],
            gate_up=self._products[f"{prefix}gate_up"],
            down=self._add_to(f"{prefix}down"),
        )

    def _add_to(self, name: str) -> AddTo:
        if not self._packs:
            return _plain_sum(self._held[name])
        product = self._products[name]
        return lambda sums, rows: sums.add_(product(rows))


def _plain(weight: Tensor) -> Linear:
    return lambda rows: functional.linear(rows, weight)


def _plain_sum(weight: Tensor) -> AddTo:
    # One kernel, and one rounding, instead of two.
    return lambda sums, rows: sums.addmm_(rows, weight.t())


def _fused(shape: Shape, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    yield "embedding", tensors["model.embed_tokens.weight"]
    if "lm_head.weight" in tensors:
        yield "head", tensors["lm_head.weight"]
    yield "norm", tensors["model.norm.weight"]
    for number in range(shape.layers):
        prefix, attention, mlp = f"{number}.", f"model.layers.{number}.self_attn.", f"model.layers.{number}.mlp."
        query = _interleave(tensors[f"{attention}q_proj.weight"], shape.heads)
        key = _interleave(tensors[f"{attention}k_proj.weight"], shape.kv_heads)
        yield f"{prefix}query_key_value", torch.cat((query, key, tensors[f"{attention}v_proj.weight"]))
        yield f"{prefix}attention_out", tensors[f"{attention}o_proj.weight"]
        yield f"{prefix}gate_up", torch.cat((tensors[f"{mlp}gate_proj.weight"], tensors[f"{mlp}up_proj.weight"]))
        yield f"{prefix}down", tensors[f"{mlp}down_proj.weight"]
        yield f"{prefix}attention_norm", tensors[f"model.layers.{number}.input_layernorm.weight"]
        yield f"{prefix}mlp_norm", tensors[f"model.layers.{number}.post_attention_layernorm.weight"]


def _interleave(weight: Tensor, heads: int) -> Tensor:
    # Rotary pairs side by side are complex numbers, and turning them is one multiplication. Queries and keys are reordered alike,
    # so every attention score stays what it was.
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def _rotary_turns(shape: Shape) -> Tensor:
    exponents = torch.arange(0, shape.head_width, 2, dtype=torch.float32) / shape.head_width
    angles = torch.outer(torch.arange(shape.positions, dtype=torch.float32), 1.0 / shape.rope_theta**exponents)
    return torch.polar(torch.ones_like(angles), angles)

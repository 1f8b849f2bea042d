"""The layers of the Llama family: the one forward pass of serving and drawing, on a CPU and on a GPU.

How rows attend is given by the caller. The trainer runs the same weights, with gradients
(`training.forward`)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import torch
import torch.nn.functional as functional
from torch import Tensor

from metaclaw.engine.checkpoint import Shape
from metaclaw.errors import EngineError

Linear: TypeAlias = Callable[[Tensor], Tensor]
"""Multiplies rows by a transposed weight, and adds the bias if there is one."""
AddTo: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Takes sums and rows, adds the rows times the transposed weight to the sums in place, and returns
the sums.
"""
Tensors: TypeAlias = Callable[[str], Tensor]
"""The weights of a model by their Hugging Face names; raises KeyError."""
Attend: TypeAlias = Callable[[int, Tensor], Tensor]
"""Takes a layer's number and its rows of rotated queries and keys, and values; returns the rows of
attention's output.
"""
Adapt: TypeAlias = Callable[[int, int, Tensor, Tensor], None]
"""Takes a layer's number, the number of a product in `PRODUCTS`, its input and its output; adds to
the output in place.
"""
PRODUCTS: Final = ("query_key_value", "attention_out", "gate_up", "down")
BUNDLES: Final = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)
"""The projections of each product: those of one bundle read the same rows."""


def make_linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """The fastest exact product with this weight on this machine."""
    if can_pack(weight):
        return pack(weight, bias)
    return partial(functional.linear, weight=weight, bias=bias)


def can_pack(weight: Tensor) -> bool:
    """Whether a packed copy is faster: in single precision, where this torch has Arm's compute
    library.

    OpenBLAS, the alternative there, packs the weight again on every call, which for a few rows
    costs more than the product."""
    has_library = bool(getattr(torch._C, "_has_mkldnn_acl", False))
    is_plain = weight.dtype == torch.float32 and weight.device.type == "cpu"
    return is_plain and has_library and hasattr(torch.ops.mkldnn, "_linear_pointwise")


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


def fuse(shape: Shape, tensor: Tensors, *, has_head: bool) -> dict[str, Tensor]:
    """The weights of a model by the names of a `Stack`; products that read the same rows become
    one. Raises EngineError if one is missing."""
    held: dict[str, Tensor] = {}

    def add(name: str, *sources: str) -> None:
        parts = [tensor(source) for source in sources]
        held[name] = parts[0] if len(parts) == 1 else torch.cat(parts)

    try:
        add("embedding", "model.embed_tokens.weight")
        add("norm", "model.norm.weight")
        if has_head:
            add("head", "lm_head.weight")
        for number in range(shape.layers):
            layer = f"model.layers.{number}."
            attention = f"{layer}self_attn."
            add(f"{number}.attention_norm", f"{layer}input_layernorm.weight")
            add(f"{number}.mlp_norm", f"{layer}post_attention_layernorm.weight")
            for product, bundle in zip(PRODUCTS, BUNDLES, strict=True):
                add(f"{number}.{product}", *(f"{layer}{end}.weight" for end in bundle))
            if shape.has_biases:
                add(
                    f"{number}.query_key_value.bias",
                    *(f"{attention}{name}_proj.bias" for name in "qkv"),
                )
            if shape.has_head_norms:
                query, key = (tensor(f"{attention}{name}_norm.weight") for name in "qk")
                held[f"{number}.head_norms"] = torch.cat(
                    (query.expand(shape.heads, -1), key.expand(shape.kv_heads, -1))
                )
    except KeyError as error:
        raise EngineError(f"the model's weights lack the tensor {error}") from error
    return held


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: Tensor
    query_key_value: Linear
    head_norms: Tensor | None
    attention_out: AddTo
    mlp_norm: Tensor
    gate_up: Linear
    down: AddTo


class Stack:
    """The layers over the weights in `held` (see `fuse`), which are not copied: what changes them in
    place calls `refresh`. `positions` is the longest text.
    """

    def __init__(self, shape: Shape, held: dict[str, Tensor], positions: int | None = None) -> None:
        self.shape = shape
        self.held = held
        embedding = held["embedding"]
        self.device, self.dtype = embedding.device, embedding.dtype
        self._head_weight = held.get("head", embedding)
        self._head = make_linear(self._head_weight)
        places = torch.arange(positions or shape.positions, device=self.device)
        self._rotations = half_rotations(shape.rotary_angles(places))
        self._layers: list[_Layer] = []
        self.refresh()

    def refresh(self) -> None:
        """Take the weights as they are now: packed copies are made again."""
        if not self._layers or can_pack(self.held["embedding"]):
            self._layers = [self._layer(f"{number}.") for number in range(self.shape.layers)]

    def embed(self, tokens: Tensor) -> Tensor:
        """The embeddings of tokens."""
        return self.held["embedding"][tokens]

    def rotations(self, positions: Tensor) -> Tensor:
        """The rotary embeddings of these positions, by row and for all heads."""
        return self._rotations[positions].unsqueeze(1)

    def run(
        self, rows: Tensor, rotations: Tensor, attend: Attend, adapt: Adapt | None = None
    ) -> Tensor:
        """Run all layers over the rows, in place; `adapt` adds an adapter's part to each
        product.
        """
        adapt = adapt or _leave
        for number, layer in enumerate(self._layers):
            normed = self._normalise(rows, layer.attention_norm)
            mixed = layer.query_key_value(normed)
            adapt(number, 0, normed, mixed)
            self._turn(mixed, layer.head_norms, rotations)
            attended = attend(number, mixed)
            rows = layer.attention_out(rows, attended)
            adapt(number, 1, attended, rows)
            normed = self._normalise(rows, layer.mlp_norm)
            gate_up = layer.gate_up(normed)
            adapt(number, 2, normed, gate_up)
            gate, up = gate_up.chunk(2, dim=-1)
            gated = functional.silu(gate).mul_(up)
            rows = layer.down(rows, gated)
            adapt(number, 3, gated, rows)
        return rows

    def logits(self, rows: Tensor) -> Tensor:
        """Single-precision logits of rows that have passed all layers; never rounded to less on a
        GPU.
        """
        normed = self._normalise(rows, self.held["norm"])
        if self.device.type == "cuda" and self.dtype != torch.float32:
            return torch.mm(normed, self._head_weight.t(), out_dtype=torch.float32)
        return self._head(normed).float()

    def _turn(self, mixed: Tensor, head_norms: Tensor | None, rotations: Tensor) -> None:
        """Normalise and rotate the heads of queries and keys, in place."""
        turned = self.shape.query_width + self.shape.kv_width // 2
        heads = mixed[:, :turned].view(len(mixed), -1, self.shape.head_width)
        if head_norms is not None:
            width, epsilon = (self.shape.head_width,), self.shape.norm_epsilon
            heads.copy_(torch.rms_norm(heads, width, None, epsilon) * head_norms)
        cosines, sines = rotations.unbind(-2)
        one, two = heads.chunk(2, -1)
        swapped = torch.cat((two, one), -1)
        if self.dtype == torch.float32:
            heads.mul_(cosines).addcmul_(swapped, sines)
        else:
            heads.copy_(torch.mul(heads, cosines).addcmul_(swapped, sines))

    def _normalise(self, rows: Tensor, weight: Tensor) -> Tensor:
        return torch.rms_norm(rows, (self.shape.width,), weight, self.shape.norm_epsilon)

    def _layer(self, prefix: str) -> _Layer:
        return _Layer(
            attention_norm=self.held[f"{prefix}attention_norm"],
            query_key_value=self._product(f"{prefix}query_key_value"),
            head_norms=self.held.get(f"{prefix}head_norms"),
            attention_out=self._add_to(f"{prefix}attention_out"),
            mlp_norm=self.held[f"{prefix}mlp_norm"],
            gate_up=self._product(f"{prefix}gate_up"),
            down=self._add_to(f"{prefix}down"),
        )

    def _product(self, name: str) -> Linear:
        return make_linear(self.held[name], self.held.get(f"{name}.bias"))

    def _add_to(self, name: str) -> AddTo:
        weight = self.held[name]
        if not can_pack(weight):
            # One kernel, and one rounding, instead of two.
            return lambda sums, rows: sums.addmm_(rows, weight.t())
        product = self._product(name)
        return lambda sums, rows: sums.add_(product(rows))


def _leave(number: int, which: int, rows: Tensor, out: Tensor) -> None:
    """No adapter."""


def half_rotations(angles: Tensor) -> Tensor:
    """Per position the cosines of both halves of a head, whose pairs they are, and the signed
    sines, [position, 2, width].
    """
    cosines, sines = angles.cos(), angles.sin()
    return torch.stack((torch.cat((cosines, cosines), -1), torch.cat((-sines, sines), -1)), dim=1)

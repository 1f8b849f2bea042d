"""The common parts of the decoders: the weights and layers of the model, random numbers, and the
choice of tokens.

A token is chosen by inversion: it is the first at which the running sum of probabilities exceeds a
random number in [0, 1). The random numbers of a rollout depend only on the seed, the index of its
prompt, its own index and the token's position, so they are computed beforehand. The choice does not
wait for the host, so a CUDA graph can contain it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor

from metaclaw.engine.checkpoint import Shape
from metaclaw.engine.llama import (
    Linear,
    can_pack,
    head_norms,
    interleave,
    make_linear,
    normalise_heads,
    rotary_angles,
)
from metaclaw.errors import TrainingError

if TYPE_CHECKING:
    from numpy.typing import NDArray

AddTo: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Takes sums and rows, adds the rows times the transposed weight to the sums in place, and returns
the sums.
"""

Attend: TypeAlias = Callable[[int, Tensor], Tensor]
"""Takes a layer's number and its rows of rotated queries and keys, and values; returns the rows of
attention's output.
"""

Adapt: TypeAlias = Callable[[int, int, Tensor, Tensor], None]
"""Takes a layer's number, the number of a product in `BUNDLES`, its input and its output; adds to
the output in place.
"""

_BLOCK: Final = 256
"""Tokens whose weights are summed before one of them is searched: less work than the running sum of
a whole vocabulary.
"""
_COLDEST: Final = 1e-5
"""Below this, dividing by the temperature would overflow; the likeliest token is certain there
anyway.
"""
_SHARE_BITS: Final = 32
"""Bits of a random number: few enough that share times total is always below the total in double
precision.
"""
_LARGEST_SHARE: Final = 1.0 - 2.0**-_SHARE_BITS
PRODUCTS: Final = ("query_key_value", "attention_out", "gate_up", "down")
_STRIDE: Final = np.uint64(0x9E3779B97F4A7C15)


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
    """The weights of a Llama-type model, fused for decoding, on one device in one dtype; `tensors`
    have Hugging Face names.

    Each weight is rounded once, so merged weights should be in single precision. `replace` keeps
    the addresses of the buffers, so that recorded CUDA graphs stay valid.

    With `fused`, whose names are those of `fuse`, the stack uses these tensors and copies nothing;
    the pairs of a head are then its two halves."""

    def __init__(
        self,
        shape: Shape,
        tensors: Mapping[str, Tensor],
        device: str,
        dtype: torch.dtype,
        *,
        is_fused: bool = False,
    ) -> None:
        self.shape = shape
        self.device = torch.device(device)
        self.dtype = dtype
        self._packs = self.device.type == "cpu" and can_pack(dtype)
        self._is_fused = is_fused
        self._head = "head" if {"lm_head.weight", "head"} & set(tensors) else "embedding"
        self._sizes = {name: tensor.shape for name, tensor in tensors.items()}
        self._held: dict[str, Tensor] = {}
        self._products: dict[str, Linear] = {}
        if is_fused:
            angles = shape.rotary_angles(torch.arange(shape.positions, device=self.device))
            self._rotations = half_rotations(angles)
            self._held = dict(tensors)
            for name, weight in tensors.items():
                self._multiply_by(name, weight)
            self._layers = [self._layer(f"{number}.") for number in range(shape.layers)]
        else:
            self._rotations = rotary_angles(shape, shape.positions).to(self.device)
            self.replace(tensors)

    @torch.inference_mode()
    def replace(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy new weights into the same buffers. Raises TrainingError and changes nothing if their
        shapes do not fit.
        """
        if self._is_fused:
            return  # the owner of the tensors changes them in place
        for name, size in self._sizes.items():
            if name not in tensors or tensors[name].shape != size:
                given = f"of {tuple(tensors[name].shape)}" if name in tensors else "missing"
                raise TrainingError(
                    f"these weights cannot replace the current ones: {name} is {given}, not of"
                    f" {tuple(size)}"
                )
        try:
            for name, weight in _fused(self.shape, tensors):
                self._hold(name, weight)
        except KeyError as error:
            raise TrainingError(f"the weights to draw from lack the tensor {error}") from error
        self._layers = [self._layer(f"{number}.") for number in range(self.shape.layers)]

    def embed(self, tokens: Tensor) -> Tensor:
        """The embeddings of tokens."""
        return self._held["embedding"][tokens]

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
            if layer.head_norms is not None:
                normalise_heads(mixed, layer.head_norms, self.shape)
            self._rotate(mixed, rotations)
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
        normed = self._normalise(rows, self._held["norm"])
        if self.device.type == "cuda" and self.dtype != torch.float32:
            return torch.mm(normed, self._held[self._head].t(), out_dtype=torch.float32)
        return self._products[self._head](normed).float()

    def _rotate(self, mixed: Tensor, rotations: Tensor) -> None:
        turned = self.shape.query_width + self.shape.kv_width // 2
        if self._is_fused:
            heads = mixed[:, :turned].unflatten(1, (-1, self.shape.head_width))
            heads.copy_(rotate_halves(heads, rotations))
            return
        pairs = torch.view_as_complex(
            mixed[:, :turned].float().view(len(mixed), -1, self.shape.head_width // 2, 2)
        ).mul_(rotations)
        if self.dtype != torch.float32:
            mixed[:, :turned] = torch.view_as_real(pairs).flatten(1)

    def _normalise(self, rows: Tensor, weight: Tensor) -> Tensor:
        return torch.rms_norm(rows, (self.shape.width,), weight, self.shape.norm_epsilon)

    def _hold(self, name: str, weight: Tensor) -> None:
        held = self._held.get(name)
        if held is None:
            held = self._held[name] = torch.empty(
                weight.shape, dtype=self.dtype, device=self.device
            )
        elif (
            self._packs
            and (weight.dtype, weight.device) == (held.dtype, held.device)
            and torch.equal(held, weight)
        ):
            return  # packing costs more than comparing, and a LoRA never touches the head
        held.copy_(weight)
        self._multiply_by(name, held)

    def _multiply_by(self, name: str, held: Tensor) -> None:
        if name == self._head or name.endswith(PRODUCTS):
            bias = self._held.get(f"{name}.bias")
            self._products[name] = (
                make_linear(held, bias)
                if self._packs
                else partial(functional.linear, weight=held, bias=bias)
            )

    def _layer(self, prefix: str) -> _Layer:
        return _Layer(
            attention_norm=self._held[f"{prefix}attention_norm"],
            query_key_value=self._products[f"{prefix}query_key_value"],
            head_norms=self._held.get(f"{prefix}head_norms"),
            attention_out=self._add_to(f"{prefix}attention_out"),
            mlp_norm=self._held[f"{prefix}mlp_norm"],
            gate_up=self._products[f"{prefix}gate_up"],
            down=self._add_to(f"{prefix}down"),
        )

    def _add_to(self, name: str) -> AddTo:
        if not self._packs:
            weight = self._held[name]
            # One kernel, and one rounding, instead of two.
            return lambda sums, rows: sums.addmm_(rows, weight.t())
        product = self._products[name]
        return lambda sums, rows: sums.add_(product(rows))


def _leave(number: int, which: int, rows: Tensor, out: Tensor) -> None:
    """No adapter."""


def half_rotations(angles: Tensor) -> Tensor:
    """For `rotate_halves`: per position the cosines of both halves and the signed sines, [position,
    2, width].
    """
    cosines, sines = angles.cos(), angles.sin()
    return torch.stack((torch.cat((cosines, cosines), -1), torch.cat((-sines, sines), -1)), dim=1)


def rotate_halves(heads: Tensor, rotations: Tensor) -> Tensor:
    """Rows of heads rotated by their position, in single precision; the pairs of a head are its two
    halves.
    """
    cosines, sines = rotations.unbind(-2)
    one, two = heads.chunk(2, -1)
    swapped = torch.cat((two, one), -1)
    return torch.mul(heads, cosines).addcmul_(swapped, sines)


def fuse(
    shape: Shape, tensors: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    """The weights of a model on a device, as a stack with `is_fused` takes them."""

    def join(*names: str) -> Tensor:
        parts = [tensors[name].to(device, dtype) for name in names]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    held = {
        "embedding": join("model.embed_tokens.weight"),
        "norm": join("model.norm.weight"),
    }
    if "lm_head.weight" in tensors:
        held["head"] = join("lm_head.weight")
    for number in range(shape.layers):
        layer, short = f"model.layers.{number}.", f"{number}."
        attention, mlp = f"{layer}self_attn.", f"{layer}mlp."
        queries = [f"{attention}{name}_proj" for name in "qkv"]
        held[f"{short}query_key_value"] = join(*(f"{name}.weight" for name in queries))
        if shape.has_biases:
            held[f"{short}query_key_value.bias"] = join(*(f"{name}.bias" for name in queries))
        if shape.has_head_norms:
            query, key = (join(f"{attention}{name}_norm.weight") for name in "qk")
            held[f"{short}head_norms"] = torch.cat(
                (query.expand(shape.heads, -1), key.expand(shape.kv_heads, -1))
            )
        held[f"{short}attention_out"] = join(f"{attention}o_proj.weight")
        held[f"{short}gate_up"] = join(f"{mlp}gate_proj.weight", f"{mlp}up_proj.weight")
        held[f"{short}down"] = join(f"{mlp}down_proj.weight")
        held[f"{short}attention_norm"] = join(f"{layer}input_layernorm.weight")
        held[f"{short}mlp_norm"] = join(f"{layer}post_attention_layernorm.weight")
    return held


def _fused(shape: Shape, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    yield "embedding", tensors["model.embed_tokens.weight"]
    if "lm_head.weight" in tensors:
        yield "head", tensors["lm_head.weight"]
    yield "norm", tensors["model.norm.weight"]
    for number in range(shape.layers):
        prefix, attention, mlp = (
            f"{number}.",
            f"model.layers.{number}.self_attn.",
            f"model.layers.{number}.mlp.",
        )
        if shape.has_head_norms:
            norms = head_norms(shape, tensors.__getitem__, f"model.layers.{number}.")
            yield f"{prefix}head_norms", norms
        ends = {"weight": ""} if not shape.has_biases else {"bias": ".bias", "weight": ""}
        for end, suffix in ends.items():  # a bias first: its product needs it
            query = interleave(tensors[f"{attention}q_proj.{end}"], shape.heads)
            key = interleave(tensors[f"{attention}k_proj.{end}"], shape.kv_heads)
            joined = torch.cat((query, key, tensors[f"{attention}v_proj.{end}"]))
            yield f"{prefix}query_key_value{suffix}", joined
        yield f"{prefix}attention_out", tensors[f"{attention}o_proj.weight"]
        yield (
            f"{prefix}gate_up",
            torch.cat((tensors[f"{mlp}gate_proj.weight"], tensors[f"{mlp}up_proj.weight"])),
        )
        yield f"{prefix}down", tensors[f"{mlp}down_proj.weight"]
        yield f"{prefix}attention_norm", tensors[f"model.layers.{number}.input_layernorm.weight"]
        yield f"{prefix}mlp_norm", tensors[f"model.layers.{number}.post_attention_layernorm.weight"]


@dataclass(frozen=True, slots=True)
class Heat:
    """How a temperature changes the choice of tokens. `divisor` is a tensor if a recorded graph
    must read its current value.
    """

    is_greedy: bool
    divisor: Tensor | float | None

    @classmethod
    def of(cls, temperature: float) -> "Heat":
        """Greedy at zero; no division at one."""
        return cls(
            temperature < _COLDEST,
            None if temperature < _COLDEST or temperature == 1.0 else temperature,
        )


def uniforms(
    seed: int, prompts: "NDArray[np.uint64]", rollouts: "NDArray[np.uint64]", tokens: int
) -> Tensor:
    """Random numbers in [0, 1), [rollout, token] in double precision, for rollouts with these
    indices of prompts and rollouts.
    """
    key = _mixed(np.full(prompts.shape, seed & (2**64 - 1), dtype=np.uint64))
    key = _mixed(_mixed(key ^ prompts) ^ rollouts)
    bits = _mixed(key[:, None] + np.arange(1, tokens + 1, dtype=np.uint64) * _STRIDE) >> np.uint64(
        64 - _SHARE_BITS
    )
    return torch.from_numpy(bits.astype(np.float64) * 2.0**-_SHARE_BITS)


def choose(logits: Tensor, share: Tensor, heat: Heat) -> tuple[Tensor, Tensor]:
    """A token for each row of single-precision logits, and its natural log-probability at
    temperature 1. Overwrites the logits.
    """
    shifted = logits.sub_(logits.amax(-1, keepdim=True))
    weights = shifted.exp()
    sums = _block_sums(weights)
    log_total = sums.sum(-1, dtype=torch.float64).log()
    if heat.is_greedy:
        tokens = shifted.argmax(-1, keepdim=True)
    elif heat.divisor is None:
        tokens = _invert(weights, sums, share)
    else:
        weights = torch.div(shifted, heat.divisor).exp_()
        tokens = _invert(weights, _block_sums(weights), share)
    logprobs = shifted.gather(-1, tokens).squeeze(-1) - log_total
    return tokens.squeeze(-1), logprobs.float()


def invert(weights: Tensor, share: Tensor) -> Tensor:
    """A token for each row of weights, by inversion."""
    return _invert(weights, _block_sums(weights), share).squeeze(-1)


def _block_sums(weights: Tensor) -> Tensor:
    return _blocks(weights).sum(-1)


def _blocks(weights: Tensor) -> Tensor:
    short = -weights.shape[-1] % _BLOCK
    return (functional.pad(weights, (0, short)) if short else weights).view(
        len(weights), -1, _BLOCK
    )


def _invert(weights: Tensor, sums: Tensor, share: Tensor) -> Tensor:
    block, rest = _locate(sums, share.unsqueeze(-1))
    within = _blocks(weights).gather(1, block.unsqueeze(-1).expand(-1, -1, _BLOCK)).squeeze(1)
    return block * _BLOCK + _locate(within, rest)[0]


def _locate(weights: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """The index where the running sum passes this share of the total, never at a weight of zero;
    and the share passed within it.
    """
    running = weights.cumsum(-1, dtype=torch.float64)
    point = share * running[:, -1:]
    # A row that is not finite compares false everywhere and gives index 0, which is in range; its
    # log-probability shows the error.
    index = (running <= point).sum(-1, keepdim=True).clamp_(max=weights.shape[-1] - 1)
    weight = weights.gather(-1, index).double()
    passed = (point - running.gather(-1, index)) / weight + 1.0
    return index, passed.clamp_(0.0, _LARGEST_SHARE)


def _mixed(bits: "NDArray[np.uint64]") -> "NDArray[np.uint64]":
    # The finaliser of splitmix64: every bit of the input reaches every bit of the result.
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class Wave:
    """Groups of rollouts to draw together. `uniforms` are the random numbers: [group, rollout,
    token], double, on the CPU.

    Decoders return tokens and log-probabilities of this shape, on the CPU. Values after an end
    token are meaningless."""

    prompts: Sequence[Sequence[int]]
    uniforms: Tensor
    temperature: float
    end_ids: frozenset[int]

    @property
    def count(self) -> int:
        """The number of rollouts of each group."""
        return self.uniforms.shape[1]

    @property
    def max_tokens(self) -> int:
        """The largest number of tokens of a rollout."""
        return self.uniforms.shape[2]

    @property
    def longest(self) -> int:
        """The length of the longest prompt."""
        return max(map(len, self.prompts))

"""The common parts of the decoders: random numbers, and the choice of tokens.

A token is chosen by inversion: it is the first at which the running sum of probabilities exceeds a
random number in [0, 1). The random numbers of a rollout depend only on the seed, the index of its
prompt, its own index and the token's position, so they are computed beforehand. The choice does not
wait for the host, so a CUDA graph can contain it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
_STRIDE: Final = np.uint64(0x9E3779B97F4A7C15)


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

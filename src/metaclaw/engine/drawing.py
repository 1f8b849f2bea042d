"""The drawing of tokens, by inversion: a token is the first at which the running sum of
probabilities exceeds a random number in [0, 1).

Serving draws with the options of each request (`draw`). The rollouts of training have one
temperature, and random numbers that depend only on the seed, the index of the prompt, the rollout's
own index and the token's position, so they are computed beforehand; their choice (`choose`) does
not wait for the host, so a CUDA graph can contain it."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor

from metaclaw.engine.frames import SamplingOptions

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FIRST_LOOK: Final = 256
"""Candidates that are tried before top_p is searched in the whole vocabulary; nearly always
enough.
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


@dataclass(frozen=True, slots=True)
class DrawnToken:
    """A token, its log-probability under the raw distribution, and the likeliest alternatives if
    the request asks for them.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """The options of one request, its random numbers, and how often it has drawn each token."""

    def __init__(self, options: SamplingOptions) -> None:
        self.options = options
        self.is_greedy = options.temperature < _COLDEST
        self.counts: Counter[int] = Counter()
        self._random = random.Random(options.seed)

    def share(self) -> float:
        """The next random number, by which a token is chosen."""
        return 0.0 if self.is_greedy else self._random.random()

    def penalties(self) -> list[tuple[int, float]]:
        """What is taken from the logit of each token drawn so far, if anything is."""
        options = self.options
        if options.frequency_penalty == options.presence_penalty == 0.0:
            return []
        return [
            (token, times * options.frequency_penalty + options.presence_penalty)
            for token, times in self.counts.items()
        ]


@torch.inference_mode()
def draw(logits: Tensor, samplers: Sequence[Sampler]) -> list[DrawnToken]:
    """One token per row. Log-probabilities are natural and of the raw logits at temperature 1,
    whatever the options.
    """
    shifted = logits - logits.amax(-1, keepdim=True)
    log_totals = shifted.logsumexp(-1)
    tokens = _choose(_penalised(shifted, samplers), samplers)
    logprobs = shifted.gather(1, tokens.unsqueeze(1)).squeeze(1) - log_totals
    count = max(sampler.options.top_logprobs or 0 for sampler in samplers)
    top = (shifted - log_totals.unsqueeze(1)).topk(count) if count else None
    chosen, found = tokens.tolist(), logprobs.tolist()
    values, names = ([], []) if top is None else (top.values.tolist(), top.indices.tolist())
    drawn = []
    for row, sampler in enumerate(samplers):
        wanted = sampler.options.top_logprobs or 0
        likeliest = tuple(zip(names[row], values[row], strict=True))[:wanted] if wanted else ()
        sampler.counts[chosen[row]] += 1
        drawn.append(DrawnToken(chosen[row], min(found[row], 0.0), likeliest))
    return drawn


def _penalised(shifted: Tensor, samplers: Sequence[Sampler]) -> Tensor:
    penalties = [
        (row, token, penalty)
        for row, sampler in enumerate(samplers)
        for token, penalty in sampler.penalties()
    ]
    if not penalties:
        return shifted
    rows, tokens, amounts = zip(*penalties, strict=True)
    place = torch.tensor([rows, tokens]).to(shifted.device)
    lowered = shifted.clone()
    lowered[place[0], place[1]] -= torch.tensor(amounts, dtype=shifted.dtype).to(shifted.device)
    return lowered


def _choose(logits: Tensor, samplers: Sequence[Sampler]) -> Tensor:
    """A token for each row."""
    options = [sampler.options for sampler in samplers]
    if all(sampler.is_greedy for sampler in samplers):
        return logits.argmax(-1)
    settings = torch.tensor(
        [
            (
                1.0 if sampler.is_greedy else one.temperature,
                sampler.share(),
                one.top_p,
                one.top_k or logits.shape[1],
                sampler.is_greedy,
            )
            for one, sampler in zip(options, samplers, strict=True)
        ],
        dtype=torch.float64,
    ).to(logits.device)
    temperature, share, top_p, top_k, greedy = settings.unbind(1)
    row = logits / temperature.unsqueeze(1).float()
    weights = (row - row.amax(-1, keepdim=True)).exp()
    if any(one.top_p < 1.0 or one.top_k > 0 for one in options):
        limit = max(_FIRST_LOOK, *(one.top_k for one in options))
        narrowed, is_certain = _restricted(row, weights, top_p, top_k, limit)
        is_free = (top_p >= 1.0) & (top_k >= row.shape[1])
        if not bool((is_certain | is_free | (greedy > 0)).all()):
            narrowed, _ = _restricted(row, weights, top_p, top_k, row.shape[1])
        weights = torch.where(is_free.unsqueeze(1), weights, narrowed)
    return torch.where(greedy > 0, logits.argmax(-1), invert(weights, share))


def _restricted(
    row: Tensor, weights: Tensor, top_p: Tensor, top_k: Tensor, limit: int
) -> tuple[Tensor, Tensor]:
    """The weights of only the top_k likeliest tokens, and of those only of the smallest set that
    holds top_p; and whether enough tokens were looked at.
    """
    values, names = row.topk(min(limit, row.shape[1]))
    is_within = torch.arange(values.shape[1], device=row.device) < top_k.unsqueeze(1)
    values = values.masked_fill(~is_within, float("-inf"))
    has_top_k = top_k < row.shape[1]
    total = torch.where(has_top_k, values.logsumexp(-1), row.logsumexp(-1))
    shares = (values - total.unsqueeze(1)).double().exp()
    sums = shares.cumsum(-1)
    # A token is in the smallest set if those before it do not hold top_p.
    is_kept = is_within & (sums - shares < top_p.unsqueeze(1))
    is_kept[:, 0] = True
    narrowed = torch.zeros_like(weights).scatter_(1, names, weights.gather(1, names) * is_kept)
    is_certain = has_top_k | (sums[:, -1] >= top_p) | (values.shape[1] == row.shape[1])
    return narrowed, is_certain

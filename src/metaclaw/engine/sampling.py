"""Draw tokens: each request with its own options and random numbers, independent of the rest of the batch."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FIRST_LOOK: Final = 256
"""Candidates looked at before a nucleus is searched in the whole vocabulary; nearly always enough."""

_BLOCK: Final = 256
"""Tokens whose weights are added up before one of them is looked for."""

_COLDEST: Final = 1e-5
"""Below this, dividing by the temperature would overflow; there the likeliest token is certain anyway."""


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How a caller wants tokens drawn. Temperature 0 is greedy; top_k 0 and top_p 1 restrict nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None
    top_logprobs: int = 0

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < _COLDEST

    @property
    def is_restricted(self) -> bool:
        """Whether some tokens must not be drawn."""
        return not self.is_greedy and (self.top_p < 1.0 or self.top_k > 0)


@dataclass(frozen=True, slots=True)
class DrawnToken:
    """One token, its log-probability under the raw distribution, and the likeliest alternatives where asked for."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """One request's options, random numbers and what it has drawn so far."""

    def __init__(self, options: SamplingOptions) -> None:
        self.options = options
        self._random = random.Random(options.seed)
        self._counts: Counter[int] = Counter()

    def choose(self, logits: Tensor, weights: "NDArray[np.float32]", sums: "NDArray[np.float32]") -> int:
        """A token, given a row of logits, their exponentials and the sums of those by block."""
        token = _pick(weights, sums, self._random.random()) if self._draws_as_it_is else self._choose_adjusted(logits.clone())
        self._counts[token] += 1
        return token

    def _choose_adjusted(self, row: Tensor) -> int:
        options = self.options
        if self._is_penalised:
            seen = torch.tensor(list(self._counts))
            counts = torch.tensor(list(self._counts.values()), dtype=row.dtype)
            row[seen] -= counts * options.frequency_penalty + options.presence_penalty
        if options.is_greedy:
            return int(row.numpy().argmax())
        row /= options.temperature
        if options.is_restricted:
            _restrict(row, options.top_k, options.top_p)
        weights = (row - row.amax()).exp().numpy()
        return _pick(weights, _block_sums(weights), self._random.random())

    @property
    def _draws_as_it_is(self) -> bool:
        return self.options.temperature == 1.0 and not self.options.is_restricted and not self._is_penalised

    @property
    def _is_penalised(self) -> bool:
        return bool(self._counts) and (self.options.frequency_penalty != 0.0 or self.options.presence_penalty != 0.0)


@torch.inference_mode()
def draw(logits: Tensor, samplers: Sequence[Sampler]) -> list[DrawnToken]:
    """One token per row. Log-probabilities are natural, of the raw logits at temperature 1, whatever was drawn from."""
    # Exponentials are the dear part: they are taken once, and serve the log-probability and the draw.
    shifted = logits - logits.amax(-1, keepdim=True)
    weights = shifted.exp().numpy()
    sums = _block_sums(weights)
    log_totals = np.log(sums.sum(1, dtype=np.float64)).tolist()
    drawn = []
    for number, (row, sampler, log_total) in enumerate(zip(shifted, samplers, log_totals, strict=True)):
        token = sampler.choose(row, weights[number], sums[number])
        drawn.append(DrawnToken(token, float(row[token]) - log_total, _likeliest(row, log_total, sampler.options.top_logprobs)))
    return drawn


def _block_sums(weights: "NDArray[np.float32]") -> "NDArray[np.float32]":
    return np.add.reduceat(weights, range(0, weights.shape[-1], _BLOCK), axis=-1)


def _pick(weights: "NDArray[np.float32]", sums: "NDArray[np.float32]", share: float) -> int:
    """Inversion in two strides, over blocks and within one: much less to add up than the whole vocabulary."""
    block, rest = _locate(sums, share)
    begin = block * _BLOCK
    return begin + _locate(weights[begin : begin + _BLOCK], rest)[0]


def _locate(weights: "NDArray[np.float32]", share: float) -> tuple[int, float]:
    """Where the running sum passes this share of the total, never at a weight of zero; and what share of that weight is passed."""
    sums = weights.cumsum(dtype=np.float64)
    point = max(share, 0.0) * sums[-1]
    index = min(int(sums.searchsorted(point, side="right")), int(np.flatnonzero(weights)[-1]))
    return index, float((point - sums[index]) / weights[index] + 1.0)


def _restrict(row: Tensor, top_k: int, top_p: float) -> None:
    """Forbid everything outside the top_k likeliest tokens, and of those outside the smallest set holding top_p."""
    size = len(row)
    limit = min(top_k, size) if top_k > 0 else size
    count = limit if top_k > 0 else min(_FIRST_LOOK, size)
    values, tokens = row.topk(count)
    if top_p < 1.0:
        total = (values if top_k > 0 else row).logsumexp(0)
        sums = (values - total).exp().cumsum(0, dtype=torch.float64)
        if count < limit and float(sums[-1]) < top_p:
            values, tokens = row.sort(descending=True)
            sums = (values - total).exp().cumsum(0, dtype=torch.float64)
        count = 1 + int((sums[:-1] < top_p).sum())
    row.fill_(float("-inf"))
    row[tokens[:count]] = values[:count]


def _likeliest(shifted: Tensor, log_total: float, count: int) -> tuple[tuple[int, float], ...]:
    if not count:
        return ()
    values, tokens = shifted.topk(count)
    return tuple((token, value - log_total) for token, value in zip(tokens.tolist(), values.tolist(), strict=True))

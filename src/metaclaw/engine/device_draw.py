"""The drawing of tokens for a whole batch on a GPU: the same choices as `Sampler.choose`, in a few
calls over all rows."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from metaclaw.engine.batch import COLDEST, DrawnToken, Sampler
from metaclaw.engine.training.decode import invert

_FIRST_LOOK: Final = 256


@torch.inference_mode()
def draw_together(logits: Tensor, samplers: Sequence[Sampler]) -> list[DrawnToken]:
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
        sampler.count(chosen[row])
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
    is_greedy = [one.temperature < COLDEST for one in options]
    if all(is_greedy):
        return logits.argmax(-1)
    settings = torch.tensor(
        [
            (
                1.0 if greedy else one.temperature,
                sampler.share,
                one.top_p,
                one.top_k or logits.shape[1],
                greedy,
            )
            for one, sampler, greedy in zip(options, samplers, is_greedy, strict=True)
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

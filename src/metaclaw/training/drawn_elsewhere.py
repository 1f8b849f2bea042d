"""Rollouts that another engine drew, and how far it is from the trainer. Pure.

A server computes the log-probabilities of the same weights a little differently (precision, kernels,
merged or separate adapters). With q a token's log-probability there and p the trainer's:

    weight      min(exp(p - q), 2)            corrects the gradient; truncated, so that no token rules
    difference  mean |p - q|
    KL          mean exp(p - q) - 1 - (p - q)  unbiased where q drew the token, and never negative

The differences of engines that run the same weights are small (KL about 0.001 in half precision). Up
to `MOST_KL` the weights correct them: at 0.1 nats the logarithm of a weight has a standard deviation
of about 0.45, so that 6 % of the tokens are truncated. Beyond, other weights must be at work than
those that are trained: another model, no adapter, or a coarse quantisation."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from metaclaw.domain.training import Rollout

MOST_KL: Final = 0.1
_MOST_WEIGHT: Final = 2.0


@dataclass(frozen=True, slots=True)
class EngineGap:
    """The mean difference of log-probabilities, and the KL divergence, in nats per token."""

    difference: float
    kl: float

    @property
    def is_small(self) -> bool:
        """Whether weights correct it; false also for figures that are not finite."""
        return self.kl <= MOST_KL

    def __str__(self) -> str:
        return f"{self.difference:.2g} nats a token on average, KL {self.kl:.2g}"


def engine_gap(rollouts: Iterable[Rollout]) -> EngineGap | None:
    """How far the engine that drew these is from the trainer; None if the trainer drew them."""
    apart = [
        p - q
        for rollout in rollouts
        for p, q in zip(rollout.logprobs_T, rollout.drawn_logprobs_T or (), strict=False)
    ]
    if not apart:
        return None
    kl = math.fsum(math.expm1(one) - one for one in apart) / len(apart)
    return EngineGap(math.fsum(map(abs, apart)) / len(apart), kl)


def engine_weights(rollout: Rollout) -> tuple[float, ...]:
    """The truncated importance weight of each token; 1 where the trainer drew it."""
    if rollout.drawn_logprobs_T is None:
        return (1.0,) * len(rollout.tokens_T)
    pairs = zip(rollout.logprobs_T, rollout.drawn_logprobs_T, strict=True)
    return tuple(min(math.exp(p - q), _MOST_WEIGHT) for p, q in pairs)

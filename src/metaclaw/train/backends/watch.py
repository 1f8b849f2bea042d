"""What a step looked like, from the log-probabilities a training service returns with each piece.

With ratio r = exp(log p_now − log p_drawn) on each drawn token: its mean, its maximum, and the share outside the clip range.
The loss is the mean over drawn tokens of −min(r A, clip(r) A) for PPO, −r A for importance sampling, −clip(r) A log p for CISPO
and −A log p for cross entropy. Entropy and the distance to the untrained weights are not to be had from this, and stay None.
"""

import math
from collections.abc import Sequence

from metaclaw.domain.batch import Datum, Loss, LossKind, PieceStats
from metaclaw.errors import TrainingError

Scored = tuple[Datum, Loss, Sequence[float]]
"""A datum, its loss, and the log-probabilities of its drawn tokens under the weights that were taught."""


def drawn_part(datum: Datum, logprobs: Sequence[float]) -> tuple[float, ...]:
    """The drawn tokens' share of a row's log-probabilities. Raises TrainingError if they do not line up."""
    expected = len(datum.prompt) + len(datum.tokens_T) - 1
    if len(logprobs) != expected:
        raise TrainingError(f"turn {datum.turn}: {len(logprobs)} log-probabilities came back for {expected} targets")
    drawn = tuple(logprobs[-len(datum.tokens_T) :])
    if not all(map(math.isfinite, drawn)):
        raise TrainingError(f"turn {datum.turn}: a log-probability under the present weights is not a finite number")
    return drawn


def summarise(scored: Sequence[Scored]) -> PieceStats:
    """All drawn tokens of a step together."""
    tokens = [token for item in scored for token in _tokens(item)]
    count = len(tokens)
    ratios = [ratio for ratio, _, _ in tokens if ratio is not None]
    clipped = [is_clipped for _, is_clipped, _ in tokens if is_clipped is not None]
    return PieceStats(
        tokens=count,
        loss=sum(loss for _, _, loss in tokens) / count,
        ratio_mean=sum(ratios) / len(ratios) if ratios else None,
        ratio_max=max(ratios, default=None),
        clipped=sum(clipped) / len(clipped) if clipped else None,
    )


def _tokens(item: Scored) -> list[tuple[float | None, bool | None, float]]:
    """Of each drawn token: its ratio, whether it was clipped, its loss."""
    datum, loss, now_T = item
    if datum.logprobs_T is None:
        return [(None, None, -advantage * now) for advantage, now in zip(datum.advantages_T, now_T, strict=True)]
    return [
        _token(loss, now, then, advantage) for now, then, advantage in zip(now_T, datum.logprobs_T, datum.advantages_T, strict=True)
    ]


def _token(loss: Loss, now: float, then: float, advantage: float) -> tuple[float, bool | None, float]:
    ratio = math.exp(min(now - then, 700.0))
    kept = min(max(ratio, 1.0 - loss.clip_low), 1.0 + loss.clip_high)
    match loss.kind:
        case LossKind.IMPORTANCE_SAMPLING:
            return ratio, None, -ratio * advantage
        case LossKind.PPO:
            return ratio, kept != ratio, -min(ratio * advantage, kept * advantage)
        case LossKind.CISPO:
            return ratio, kept != ratio, -kept * advantage * now
        case LossKind.CROSS_ENTROPY:
            return ratio, None, -advantage * now

"""One step on a training service: its pieces are sent one after another, scaled, and the optimiser step right behind the last.

**Statistics** come from the log-probabilities that the service returns with each piece. With ratio r = exp(log p_now − log
p_drawn) on each drawn token: its mean, its maximum, and the share outside the clip range. The loss is the mean over drawn
tokens of −min(r A, clip(r) A) for PPO, −r A for importance sampling, −clip(r) A log p for CISPO and −A log p for cross entropy.

**Distance to the untrained model.** No service has a KL term, so it is folded into the advantages. With l a drawn token's
log-probability under the weights that drew it, f under the untrained model, β = `Loss.kl`:

    the term        β (exp(f − l) − (f − l) − 1)      Schulman's k3, which a backend that has the term adds to its loss
    its gradient    β (1 − exp(f − l)) ∇l
    hence           A' = A − β (1 − exp(f − l))       because every loss pushes by −A ∇l where the ratio is one

So `kl` weighs the same on every backend, as long as data are taught to the weights that drew them, which every step's are. A
clip that cuts an advantage cuts the distance in it, too.
"""

import asyncio
import math
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TypeAlias, TypeVar

from metaclaw.domain.training import Adam, Datum, Loss, LossKind, PieceStats
from metaclaw.errors import TrainingError
from metaclaw.train.backends.service import Trainee, lay_out_step, objective

T = TypeVar("T")
Piece: TypeAlias = tuple[Sequence[Datum], Loss]
ScoredDatum = tuple[Datum, Loss, Sequence[float]]
"""A datum, its loss, and the log-probabilities of its drawn tokens under the weights that were taught."""


async def send_step(
    trainee: Trainee, pieces: Sequence[Piece], adam: Adam, normaliser: float
) -> tuple[float | None, list[ScoredDatum]]:
    """The gradient's norm, and what the pieces looked like before the step. Raises TrainingError."""
    laid_out = lay_out_step([data for data, _ in pieces], normaliser, trainee.reduction)
    outputs: list[list[list[float]]] = []
    async with AsyncExitStack() as stack:
        waiting: asyncio.Future[list[list[float]]] | None = None
        for (_, loss), rows in zip(pieces, laid_out, strict=True):
            # Other requests to the service come in between two pieces.
            if waiting is not None:
                outputs.append(await waiting)
            waiting = _watched(await trainee.teach(rows, objective(loss, trainee.reduction)), stack)
        stepping = _watched(await trainee.step(adam), stack)
        if waiting is not None:
            outputs.append(await waiting)
        norm = await stepping
    scored = [item for piece, output in zip(pieces, outputs, strict=True) for item in _score_piece(piece, output)]
    return norm, scored


def _score_piece(piece: Piece, output: Sequence[Sequence[float]]) -> list[ScoredDatum]:
    data, loss = piece
    if len(output) != len(data):
        raise TrainingError(f"log-probabilities of {len(output)} sequences came back for {len(data)}")
    return [(datum, loss, drawn_part(datum, logprobs)) for datum, logprobs in zip(data, output, strict=True)]


def _watched(outcome: Awaitable[T], stack: AsyncExitStack) -> "asyncio.Future[T]":
    """The outcome as something that may be left alone when another one fails first."""
    task = asyncio.ensure_future(outcome)

    async def leave() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(leave)
    return task


def drawn_part(datum: Datum, logprobs: Sequence[float]) -> tuple[float, ...]:
    """The drawn tokens' share of a row's log-probabilities. Raises TrainingError if they do not line up."""
    expected = len(datum.prompt) + len(datum.tokens_T) - 1
    if len(logprobs) != expected:
        raise TrainingError(f"turn {datum.turn}: {len(logprobs)} log-probabilities came back for {expected} targets")
    drawn = tuple(logprobs[-len(datum.tokens_T) :])
    if not all(map(math.isfinite, drawn)):
        raise TrainingError(f"turn {datum.turn}: a log-probability under the present weights is not a finite number")
    return drawn


def summarise(scored: Sequence[ScoredDatum]) -> PieceStats:
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


def _tokens(item: ScoredDatum) -> list[tuple[float | None, bool | None, float]]:
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


def fold(datum: Datum, now_T: Sequence[float], reference_T: Sequence[float], weight: float) -> Datum:
    """The datum with the distance in its advantages. Raises TrainingError if the log-probabilities do not line up."""
    if not len(datum.tokens_T) == len(now_T) == len(reference_T):
        raise TrainingError(f"turn {datum.turn}: {len(reference_T)} reference log-probabilities for {len(datum.tokens_T)} tokens")
    terms = zip(datum.advantages_T, now_T, reference_T, strict=True)
    try:
        folded = tuple(advantage + weight * math.expm1(reference - now) for advantage, now, reference in terms)
    except OverflowError as error:
        raise TrainingError(f"turn {datum.turn}: a drawn token is too far from the untrained model to be weighed") from error
    return replace(datum, advantages_T=folded)


def distance(now_T: Sequence[float], reference_T: Sequence[float]) -> float:
    """The k3 estimate of the distance, summed over the tokens."""
    apart_T = [reference - now for now, reference in zip(now_T, reference_T, strict=True)]
    return math.fsum(math.expm1(apart) - apart for apart in apart_T)

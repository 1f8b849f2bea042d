"""One step sent to a training service: its pieces, scaled, one after another, and the optimiser step right behind the last."""

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from typing import TypeAlias, TypeVar

from metaclaw.domain.batch import Adam, Datum, Loss
from metaclaw.errors import TrainingError
from metaclaw.train.backends.layout import lay_out_step, objective
from metaclaw.train.backends.service import Trainee
from metaclaw.train.backends.watch import Scored, drawn_part

T = TypeVar("T")

Piece: TypeAlias = tuple[Sequence[Datum], Loss]


async def send_step(trainee: Trainee, pieces: Sequence[Piece], adam: Adam, normaliser: float) -> tuple[float | None, list[Scored]]:
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
    scored = [item for piece, output in zip(pieces, outputs, strict=True) for item in _scored(piece, output)]
    return norm, scored


def _scored(piece: Piece, output: Sequence[Sequence[float]]) -> list[Scored]:
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

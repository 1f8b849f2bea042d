"""Protocols for training services, and the layout of their data.

`remote.RemoteBackend` has the rules of a run; each SDK is a thin translation. Every call is bounded
in time and may raise TrainingError.

A row is one sequence, shifted by one: the inputs are all tokens but the last, the targets are all
but the first. Log-probabilities and advantages are as long as the targets, and zero for the prompt.
With A the advantages, N the step's normaliser, n the rows of the step and L the length of a row's
targets:

    wanted gradient           Σ_rows Σ_t ∇loss(A_t) / N
    a service that sums       is sent A / N
    a service that averages   (1/n) Σ_rows (1/L) Σ_t …, so it is sent A · n · L / N

Every loss here is positively homogeneous in A, so scaling advantages scales only the gradient.

The scaled pieces of a step are sent one after another, and the optimiser step directly after the
last."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Final, Protocol, TypeAlias, TypeVar

from metaclaw.domain.policy import Weights
from metaclaw.domain.training import Adam, Datum, Drawing, Loss, LossKind, Rollout
from metaclaw.errors import TrainingError

SEED_BITS: Final = 30
"""Services add the number of the rollout to a seed, in 32 bits."""
_ROUNDING: Final = 1e-4
"""How far above zero a log-probability may lie and still be zero, as half precision rounds it."""


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """What `[policy]` says of a service. A sequence is over after one of the tokens `end_ids`."""

    base_model: str
    end_ids: Collection[int]
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)


class Reduction(StrEnum):
    """How a service reduces token losses: their sum, or the mean over rows of each row's mean over
    its targets.
    """

    SUM = "sum"
    MEAN = "mean"


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence as it is sent to a service."""

    inputs: tuple[int, ...]
    targets: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantages: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Objective:
    """The service's name of a loss, and its settings. `sends_weights` says that advantages are sent
    as weights (cross entropy).
    """

    name: str
    config: dict[str, float] | None
    sends_weights: bool = False


@dataclass(frozen=True, slots=True)
class DrawnSequence:
    """One sequence from a sampler. `is_whole` is False if `max_tokens` ended it."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    is_whole: bool


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A request to a sampler for `count` answers to one prompt. Without a seed, each is random."""

    prompt: tuple[int, ...]
    count: int
    max_tokens: int
    temperature: float
    seed: int | None
    top_p: float = 1.0
    top_k: int = 0


class ServiceSampler(Protocol):
    """Samples from weights. `is_raw` says that log-probabilities are at temperature 1, whatever the
    sampling temperature is.
    """

    @property
    def is_raw(self) -> bool: ...
    async def sample(self, request: SampleRequest) -> list[DrawnSequence]: ...
    async def score(self, tokens: Sequence[int]) -> list[float]:
        """The log-probability of each token but the first, given those before it."""

    async def aclose(self) -> None:
        """Release its resources on the service."""


class Trainee(Protocol):
    """A model in training. The service works in the order of sending. Sending and awaiting the
    result are separate, so that an optimiser step can be sent directly after the last piece."""

    @property
    def reduction(self) -> Reduction: ...
    async def teach(
        self, rows: Sequence[Row], objective: Objective
    ) -> Awaitable[list[list[float]]]:
        """Send one piece. The result is each row's log-probabilities under the current weights."""

    async def step(self, adam: Adam) -> Awaitable[float | None]:
        """Send an optimiser step. The result is the norm of the gradient, if the service returns
        it.
        """

    async def save(self, name: str, *, for_good: bool) -> str:
        """Save weights and optimiser, and return the service's name for them. Unless `for_good`,
        they expire (`EXPIRY_S`).
        """

    async def publish(self, name: str, *, for_good: bool) -> str:
        """Make the current weights loadable by a sampler, and return the service's name for
        them.
        """

    async def aclose(self) -> None:
        """Free its place on the service."""


class Service(Protocol):
    """A training service."""

    @property
    def name(self) -> str: ...
    async def create(self, rank: int, seed: int) -> Trainee: ...
    async def restore(self, state: str) -> Trainee:
        """Continue from a saved state, optimiser included."""

    async def present(self, trainee: Trainee, adapter: str) -> ServiceSampler:
        """A sampler of the weights that the trainee has just published, valid until its next
        step.
        """

    async def kept(self, weights: Weights) -> ServiceSampler:
        """A sampler of saved weights, valid while others are trained."""

    async def base(self) -> ServiceSampler:
        """A sampler of the untrained model."""

    async def aclose(self) -> None: ...


def lay_out(datum: Datum, factor: float) -> Row:
    """The datum as a row, its advantages multiplied by `factor`."""
    full = datum.prompt + datum.tokens_T
    padding = (0.0,) * (len(datum.prompt) - 1)
    logprobs_T = datum.logprobs_T or (0.0,) * len(datum.tokens_T)
    advantages_T = tuple(advantage * factor for advantage in datum.advantages_T)
    return Row(full[:-1], full[1:], padding + logprobs_T, padding + advantages_T)


def lay_out_step(
    pieces: Sequence[Sequence[Datum]], normaliser: float, reduction: Reduction
) -> list[list[Row]]:
    """All pieces of one step, scaled so that the service's gradient is the sum over drawn tokens
    divided by `normaliser`.
    """
    rows = sum(len(piece) for piece in pieces)
    return [
        [lay_out(datum, _factor(datum, rows, normaliser, reduction)) for datum in piece]
        for piece in pieces
    ]


def _factor(datum: Datum, rows: int, normaliser: float, reduction: Reduction) -> float:
    if reduction is Reduction.SUM:
        return 1.0 / normaliser
    return rows * (len(datum.prompt) + len(datum.tokens_T) - 1) / normaliser


def objective(loss: Loss, reduction: Reduction) -> Objective:
    """The service's objective for a loss."""
    if loss.kind is LossKind.PPO:
        return Objective("ppo", _thresholds(1.0 - loss.clip_low, 1.0 + loss.clip_high))
    if reduction is Reduction.SUM:
        return Objective("cross_entropy", None, sends_weights=True)
    # A service that averages divides by the sum of the weights, which loses their scale. CISPO with
    # its ratio clipped to exactly one is -A · log p, which is the same loss with advantages.
    return Objective("cispo", _thresholds(1.0, 1.0))


def _thresholds(low: float, high: float) -> dict[str, float]:
    """The bounds of a ratio, as services want them: not distances from one."""
    return {"clip_low_threshold": low, "clip_high_threshold": high}


def check_data(data: Sequence[Datum], loss: Loss) -> None:
    """Raises TrainingError for data that the loss cannot use."""
    if not data:
        raise TrainingError("a piece without data cannot be accumulated")
    if loss.kind is not LossKind.CROSS_ENTROPY:
        for datum in data:
            if datum.logprobs_T is None:
                raise TrainingError(
                    f"turn {datum.turn}: {loss.kind} needs the log-probabilities of the weights"
                    " that drew it"
                )


def requests_for(prompts: Sequence[Sequence[int]], drawing: Drawing) -> list[SampleRequest]:
    """One request for each prompt, with a seed of its own."""
    return [
        SampleRequest(
            tuple(prompt),
            drawing.count,
            drawing.max_tokens,
            drawing.temperature,
            _seed(drawing.seed, number),
        )
        for number, prompt in enumerate(prompts)
    ]


def _seed(seed: int, number: int) -> int:
    digest = blake2b(f"{seed}\0{number}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) % (1 << SEED_BITS)


def as_rollout(
    drawn: DrawnSequence, decode: Callable[[Sequence[int]], str], end_ids: Collection[int]
) -> Rollout:
    """The sequence with its text. Raises TrainingError if it is no rollout."""
    logprobs = tuple(0.0 if 0.0 < logprob <= _ROUNDING else logprob for logprob in drawn.logprobs)
    said = drawn.tokens[:-1] if drawn.tokens and drawn.tokens[-1] in end_ids else drawn.tokens
    try:
        return Rollout(drawn.tokens, logprobs, decode(said), drawn.is_whole)
    except ValueError as error:
        raise TrainingError(f"what was drawn is no rollout: {error}") from error


T = TypeVar("T")
Piece: TypeAlias = tuple[Sequence[Datum], Loss]


async def send_step(
    trainee: Trainee, pieces: Sequence[Piece], adam: Adam, normaliser: float
) -> float | None:
    """Send a step; return the gradient's norm, if the service tells it. Raises TrainingError."""
    laid_out = lay_out_step([data for data, _ in pieces], normaliser, trainee.reduction)
    outputs: list[list[list[float]]] = []
    async with AsyncExitStack() as stack:
        waiting: asyncio.Future[list[list[float]]] | None = None
        for (_, loss), rows in zip(pieces, laid_out, strict=True):
            # Waiting for each piece lets other requests to the service run between two pieces.
            if waiting is not None:
                outputs.append(await waiting)
            waiting = _watched(await trainee.teach(rows, objective(loss, trainee.reduction)), stack)
        stepping = _watched(await trainee.step(adam), stack)
        if waiting is not None:
            outputs.append(await waiting)
        norm = await stepping
    for (data, _), output in zip(pieces, outputs, strict=True):
        check_output(data, output)
    return norm


def check_output(data: Sequence[Datum], output: Sequence[Sequence[float]]) -> None:
    """Raise TrainingError unless a piece came back with a log-probability for each of its
    targets.
    """
    if len(output) != len(data):
        raise TrainingError(
            f"log-probabilities of {len(output)} sequences came back for {len(data)}"
        )
    for datum, logprobs in zip(data, output, strict=True):
        expected = len(datum.prompt) + len(datum.tokens_T) - 1
        if len(logprobs) != expected:
            raise TrainingError(
                f"turn {datum.turn}: {len(logprobs)} log-probabilities came back for {expected}"
                " targets"
            )
        if not all(map(math.isfinite, logprobs[-len(datum.tokens_T) :])):
            raise TrainingError(
                f"turn {datum.turn}: a log-probability under the present weights is not a finite"
                " number"
            )


def _watched(outcome: Awaitable[T], stack: AsyncExitStack) -> "asyncio.Future[T]":
    """The outcome as a task that is cancelled when the stack closes."""
    task = asyncio.ensure_future(outcome)

    async def leave() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(leave)
    return task

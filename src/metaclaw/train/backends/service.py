"""What every training service can do, in the least words: weights that are taught, and samplers of weights.

One Protocol set, so that the rules of a run (`remote.RemoteBackend`) are written once and each SDK is a thin translation.
Every call is bounded in time and raises TrainingError.
"""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol

from metaclaw.domain.batch import Adam
from metaclaw.domain.policy import Weights
from metaclaw.train.backends.layout import Objective, Reduction, Row


@dataclass(frozen=True, slots=True)
class Drawn:
    """One sequence from a sampler; `is_whole` unless the room ran out."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of a sampler for one prompt."""

    prompt: tuple[int, ...]
    count: int
    max_tokens: int
    temperature: float
    seed: int
    top_p: float = 1.0
    top_k: int = 0


class Sampler(Protocol):
    """Weights that answer. `is_raw` says that log-probabilities are at temperature 1 whatever the sampling temperature was."""

    @property
    def is_raw(self) -> bool: ...
    async def sample(self, request: Request) -> list[Drawn]: ...
    async def score(self, tokens: Sequence[int]) -> list[float]:
        """The log-probability of each token but the first, after those before it."""

    async def aclose(self) -> None:
        """Give back what it holds on the service."""


class Trainee(Protocol):
    """A model in training. What is sent is worked on in the order of sending; awaiting what comes back is a second step, so that
    an optimiser step can be sent right behind the last piece."""

    @property
    def reduction(self) -> Reduction: ...
    async def teach(self, rows: Sequence[Row], objective: Objective) -> Awaitable[list[list[float]]]:
        """Send one piece; it gives each row's log-probabilities under the present weights."""

    async def step(self, adam: Adam) -> Awaitable[float | None]:
        """Send an optimiser step; it gives the gradient's norm, where the service tells it."""

    async def save(self, name: str, *, for_good: bool) -> str:
        """Keep weights and optimiser; the service's name for them. What is not for good may expire after some days."""

    async def publish(self, name: str, *, for_good: bool) -> str:
        """Make the present weights loadable by a sampler; the service's name for them."""

    async def aclose(self) -> None:
        """Free its place on the service."""


class Service(Protocol):
    """A training service."""

    @property
    def name(self) -> str: ...
    async def create(self, rank: int, seed: int) -> Trainee: ...
    async def restore(self, state: str) -> Trainee:
        """Go on from a kept state, optimiser included."""

    async def present(self, trainee: Trainee, adapter: str) -> Sampler:
        """A sampler of what the trainee has just published, good until its next step."""

    async def kept(self, weights: Weights) -> Sampler:
        """A sampler of kept weights, whatever is trained meanwhile."""

    async def base(self) -> Sampler:
        """A sampler of the untrained model."""

    async def aclose(self) -> None: ...

"""What tests of a training backend need to know of it, and the data they train it with."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from metaclaw.domain.ids import TurnId
from metaclaw.domain.policy import Weights
from metaclaw.domain.training import Adam, Datum, Drawing, Loss, Rollout
from metaclaw.ports import RunPlan, TrainingBackend

PROMPTS = ((80, 81, 82, 83), (97, 98, 99, 100))
DRAWING = Drawing(count=4, max_tokens=6, seed=7)
ADAM = Adam(learning_rate=0.005, grad_clip_norm=0.0)
PLAIN = Loss()


@dataclass
class Stage:
    """A backend under test. `again` gives a new one that knows only what is durable, as after the
    end of a process.
    """

    backend: TrainingBackend
    again: Callable[[], Awaitable[TrainingBackend]]
    folder: Path
    tolerance: float = 1e-3

    def plan(self, name: str = "run", start: Weights | None = None) -> RunPlan:
        return RunPlan(name, start, rank=4, seed=1, folder=self.folder / name)


@asynccontextmanager
async def staged(
    make: Callable[[], TrainingBackend],
    folder: Path,
    tolerance: float,
    first: TrainingBackend | None = None,
) -> AsyncIterator[Stage]:
    """A stage for backends that `make` makes, or `first` as the one under test; those that were
    made are closed at the end.
    """
    async with AsyncExitStack() as stack:

        async def fresh() -> TrainingBackend:
            backend = make()
            stack.push_async_callback(backend.aclose)
            return backend

        yield Stage(first or await fresh(), fresh, folder, tolerance)


def datum(rollout: Rollout, advantage: float, prompt: Sequence[int] = PROMPTS[0]) -> Datum:
    """A rollout to be learned from, every token with the same advantage."""
    advantages = (advantage,) * len(rollout.tokens_T)
    return Datum(TurnId("turn"), tuple(prompt), rollout.tokens_T, advantages, rollout.logprobs_T)


def pair(
    rollout: Rollout, prompt: Sequence[int] = PROMPTS[0]
) -> tuple[Sequence[int], Sequence[int]]:
    """A rollout to be scored."""
    return prompt, rollout.tokens_T


async def draw_one(backend: TrainingBackend) -> Rollout:
    """The first rollout of the first prompt. All of them are drawn, so that every test asks for the
    same shapes.
    """
    return (await backend.sample(PROMPTS, DRAWING))[0][0]


async def step(backend: TrainingBackend, data: Sequence[Datum], loss: Loss = PLAIN) -> None:
    """One piece and one optimiser step."""
    await backend.accumulate(data, loss)
    await backend.apply(ADAM, float(sum(len(each.tokens_T) for each in data)))


async def total(
    backend: TrainingBackend, rollout: Rollout, weights: Weights | None = None
) -> float:
    """The log-probability of a whole rollout."""
    return sum((await backend.score([pair(rollout)], weights))[0])

"""Answers of versions that are looked at: drawn as the policy serves."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from metaclaw.domain.policy import Weights
from metaclaw.domain.training import Drawing, Rollout
from metaclaw.ports import TrainingBackend


@dataclass(frozen=True, slots=True)
class VersionSampler:
    """Draws from kept weights when it may; None are the untrained ones. `max_tokens` and
    `temperature` are those of training.
    """

    backend: TrainingBackend
    until_open: Callable[[], Awaitable[object]]
    max_tokens: int
    temperature: float

    async def draw(
        self, prompts: Sequence[Sequence[int]], weights: Weights | None, count: int, seed: int
    ) -> list[list[Rollout]]:
        """`count` answers to each prompt."""
        return await self._draw(
            prompts, weights, Drawing(count, self.max_tokens, self.temperature, seed)
        )

    async def one_of_each(
        self,
        prompts: Sequence[Sequence[int]],
        weights: Weights | None,
        max_tokens: int,
        seed: int | None = None,
    ) -> list[Rollout]:
        """One answer to each prompt; without a seed the likeliest."""
        drawing = (
            Drawing(1, max_tokens, 0.0)
            if seed is None
            else Drawing(1, max_tokens, self.temperature, seed)
        )
        return [group[0] for group in await self._draw(prompts, weights, drawing)]

    async def score(
        self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], weights: Weights | None
    ) -> list[tuple[float, ...]]:
        """Log-probabilities of each pair's second part after its first."""
        await self.until_open()
        if weights is None:
            return await self.backend.score_base(pairs)
        return await self.backend.score(pairs, weights)

    async def _draw(
        self, prompts: Sequence[Sequence[int]], weights: Weights | None, drawing: Drawing
    ) -> list[list[Rollout]]:
        await self.until_open()
        if weights is None:
            return await self.backend.sample_base(prompts, drawing)
        return await self.backend.sample(prompts, drawing, weights)

"""Rollouts that are drawn together: whole groups, each with its prompt and as many rollouts as every other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Wave:
    """Groups to draw. `shares` are the random numbers: [group, rollout, token], double precision, on the CPU."""

    prompts: Sequence[Sequence[int]]
    shares: Tensor
    temperature: float
    end_ids: frozenset[int]

    @property
    def count(self) -> int:
        """Rollouts of each group."""
        return self.shares.shape[1]

    @property
    def max_tokens(self) -> int:
        """The most tokens of a rollout."""
        return self.shares.shape[2]

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(map(len, self.prompts))


class Decoder(Protocol):
    """Draws waves from the weights it was made for."""

    def most_rollouts(self, prompt_tokens: int, max_tokens: int, count: int) -> int:
        """How many rollouts fit one wave, when groups have so many and the longest prompt so many tokens."""

    def decode(self, wave: Wave, check: Callable[[], None]) -> tuple[Tensor, Tensor]:
        """Tokens and log-probabilities: [group, rollout, token], on the CPU. What follows an end token means nothing.

        `check` is called between decode steps, or between a few of them, and may raise to stop.
        """

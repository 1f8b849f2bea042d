"""What the two decoders of training have in common: the groups of rollouts that they draw."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Wave:
    """Groups of rollouts to draw together. `uniforms` are the random numbers: [group, rollout,
    token], double, on the CPU.

    Decoders return tokens and log-probabilities of this shape, on the CPU. Values after an end
    token are meaningless."""

    prompts: Sequence[Sequence[int]]
    uniforms: Tensor
    temperature: float
    end_ids: frozenset[int]

    @property
    def count(self) -> int:
        """The number of rollouts of each group."""
        return self.uniforms.shape[1]

    @property
    def max_tokens(self) -> int:
        """The largest number of tokens of a rollout."""
        return self.uniforms.shape[2]

    @property
    def longest(self) -> int:
        """The length of the longest prompt."""
        return max(map(len, self.prompts))

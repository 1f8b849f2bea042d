"""A learner whose batches come in few shapes: on a GPU each new one is recorded and keeps its memory, and prompts vary."""

from collections.abc import Sequence
from typing import Final

from benchmarks.house_rules.loop import Policy
from metaclaw.domain.batch import Adam, Datum, Drawing, Loss, PieceStats, Rollout, StepStats

_ROOM: Final = 256
_SHAPES_BY: Final = 64
"""What the engine rounds the longest prompt up to."""


class Steady:
    """Draws, beside the prompts, from one as long as the next multiple of 256 tokens where none is; the rest is the learner's."""

    def __init__(self, learner: Policy) -> None:
        self._learner = learner

    def sample(self, prompts: Sequence[Sequence[int]], drawing: Drawing) -> list[list[Rollout]]:
        """The rollouts of these prompts. What is drawn beside them changes none of their random numbers, and is thrown away."""
        longest = max(prompts, key=len)
        room = -(-len(longest) // _ROOM) * _ROOM
        if room - len(longest) < _SHAPES_BY:
            return self._learner.sample(prompts, drawing)
        # It ends as the longest does, so that its answers end about when others do.
        filler = (tuple(longest) * (room // len(longest) + 1))[-room:]
        return self._learner.sample([*prompts, filler], drawing)[: len(prompts)]

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[float, ...]]:
        """As the learner does."""
        return self._learner.score(pairs)

    def accumulate(self, data: Sequence[Datum], loss: Loss) -> PieceStats:
        """As the learner does."""
        return self._learner.accumulate(data, loss)

    def apply(self, adam: Adam, normaliser: float) -> StepStats:
        """As the learner does."""
        return self._learner.apply(adam, normaliser)

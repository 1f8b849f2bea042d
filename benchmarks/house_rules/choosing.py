"""Which weights of a run are taken: as the product's gate would choose, by what was neither taught nor will be asked.

Weights are put aside while the rate falls at the end of a run, each whole and with its change made a little smaller. Of those that
answer enough questions of the training side exactly (`enough`; entities that are taught, questions that are not), the one is taken
that keeps most of what the untrained model could do (`kept`); of equals, the one that is right more often.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from metaclaw.engine.training.lora import Adapter, Pair

SCALES: Final = (1.0, 0.85)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Weights that might be taken, and what they were measured to do."""

    step: int
    scale: float
    exact: float
    kept: float


def scaled(adapter: Adapter, scale: float) -> Adapter:
    """The adapter with its change made smaller, or larger."""
    pairs = {module: Pair(down, scale * up) for module, (down, up) in adapter.pairs.items()}
    return Adapter(adapter.rank, adapter.alpha, pairs)


def choose(checkpoints: Sequence[Checkpoint], enough: float) -> Checkpoint:
    """The one to take. Where none is right often enough, the one that is right most often."""
    able = [one for one in checkpoints if one.exact >= enough]
    if not able:
        return max(checkpoints, key=lambda one: (one.exact, one.kept, one.step))
    return max(able, key=lambda one: (one.kept, one.exact, one.step))


def measured(
    put_aside: Sequence[tuple[int, Adapter]], exact: Callable[[Adapter], float], kept: Callable[[Adapter], float]
) -> list[tuple[Checkpoint, Adapter]]:
    """Every checkpoint in every size, measured."""
    found = []
    for step, whole in put_aside:
        for scale in SCALES:
            adapter = scaled(whole, scale)
            found.append((Checkpoint(step, scale, exact(adapter), kept(adapter)), adapter))
    return found

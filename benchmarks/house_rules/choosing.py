"""Which weights of a run are taken: as with the product's gate, none that answers the golden set worse than what it came from.

Weights are put aside while the rate falls at the end of a run, each whole and with its change made a little smaller. Of those that
answer enough questions of the training side exactly (`enough`; entities that are taught, questions that are not) and lose nothing
on the golden set, the one is taken that is right most often. So the golden set is a guard here and no estimate any more; what else
was kept is measured at the end by questions that had no say in anything (`kept`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from metaclaw.engine.training.lora import Adapter, Pair

SCALES: Final = (1.0, 0.9, 0.8)
MARGIN: Final = 1.0
"""Points of the golden set that may be lost; one of its items is more."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Weights that might be taken, and what they were measured to do. `golden` is in points against the untrained weights,
    where it was asked."""

    step: int
    scale: float
    exact: float
    golden: float | None

    @property
    def lost(self) -> float:
        """Points of the golden set that are gone, as far as is known."""
        return max(0.0, -(self.golden or 0.0))


def scaled(adapter: Adapter, scale: float) -> Adapter:
    """The adapter with its change made smaller, or larger."""
    pairs = {module: Pair(down, scale * up) for module, (down, up) in adapter.pairs.items()}
    return Adapter(adapter.rank, adapter.alpha, pairs)


def choose(checkpoints: Sequence[Checkpoint], enough: float) -> Checkpoint:
    """The one to take. Where none is right often enough, the one that is right most often; where all of those lose on the golden
    set, the one that loses least."""
    able = [one for one in checkpoints if one.exact >= enough]
    if not able:
        return max(checkpoints, key=lambda one: (one.exact, -one.lost, one.step))
    whole = [one for one in able if one.lost <= MARGIN]
    if not whole:
        return max(able, key=lambda one: (-one.lost, one.exact, one.step))
    return max(whole, key=lambda one: (one.exact, -one.lost, one.step))


def measured(
    put_aside: Sequence[tuple[int, Adapter]], exact: Callable[[Adapter], float], golden: Callable[[Adapter], float | None]
) -> list[tuple[Checkpoint, Adapter]]:
    """Every checkpoint in every size, measured."""
    found = []
    for step, whole in put_aside:
        for scale in SCALES:
            adapter = scaled(whole, scale)
            found.append((Checkpoint(step, scale, exact(adapter), golden(adapter)), adapter))
    return found

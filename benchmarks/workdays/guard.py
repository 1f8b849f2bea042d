"""What a night's weights must keep: none is served that loses more than a point of the golden set against the untrained model.

Of a night's weights, and of the same with their change made a little smaller, the largest is served that loses nothing; where all
of them lose, the night is given up, and the next one begins with what was served before. So the golden set is a guard and no
estimate; what else was kept is told by questions that have no say in anything (`house_rules.kept`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from benchmarks.house_rules.choosing import MARGIN, SCALES, scaled
from benchmarks.house_rules.general import compared
from metaclaw.engine.training.lora import Adapter
from metaclaw.train.golden import GoldenScore
from metaclaw.train.regression import compare_golden


class Learns(Protocol):
    """A learner, as far as its weights can be taken out and put in."""

    def adapter(self) -> Adapter: ...
    def adopt(self, adapter: Adapter | None) -> None: ...


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of a night: how much of its change is served (None: nothing), and the points of every size that was tried."""

    scale: float | None
    points: tuple[float, ...]


class Guard:
    """Made with the untrained weights in the learner. `golden` and `kept` measure whatever is in it."""

    def __init__(self, learner: Learns, golden: Callable[[], GoldenScore], kept: Callable[[], float]) -> None:
        self._learner, self._golden, self._kept = learner, golden, kept
        self._golden_before, self._kept_before = golden(), kept()
        self._served = learner.adapter()

    def judge(self) -> Judged:
        """Look at the weights in the learner, and leave those in it that may be served."""
        whole = self._learner.adapter()
        points: list[float] = []
        for scale in SCALES:
            adapter = whole if scale == 1.0 else scaled(whole, scale)
            self._learner.adopt(adapter)
            points.append(compare_golden(self._golden_before, self._golden()).points)
            if points[-1] >= -MARGIN:
                self._served = adapter
                return Judged(scale, tuple(points))
        self._learner.adopt(self._served)
        return Judged(None, tuple(points))

    def facts(self) -> dict[str, object]:
        """The golden set and the other questions, in the end against the beginning."""
        before, after = self._kept_before, self._kept()
        kept = {"before": before, "after": after, "points": 100.0 * (after - before)}
        return {"golden": compared(self._golden_before, self._golden()), "kept": kept}

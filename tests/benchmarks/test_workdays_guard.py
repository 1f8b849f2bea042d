"""Nights in the workdays benchmark: no weights are served that lose on the golden set."""

from collections.abc import Mapping

import torch

from benchmarks.workdays.guard import Guard, Judged
from metaclaw.engine.training.lora import Adapter, Pair
from metaclaw.train.golden import GoldenScore

ITEMS = 50


class Weights:
    """A learner whose adapter is one number, how far it is from the untrained weights."""

    def __init__(self, loses: Mapping[float, int]) -> None:
        """So many items of the golden set are lost at so large a change, or a larger one."""
        self.change, self._loses = 0.0, loses

    def adapter(self) -> Adapter:
        return Adapter(1, 1.0, {"module": Pair(torch.ones(1, 1), torch.full((1, 1), self.change))})

    def adopt(self, adapter: Adapter | None) -> None:
        assert adapter is not None
        self.change = round(float(adapter.pairs["module"].b), 6)

    def golden(self) -> GoldenScore:
        lost = max((items for change, items in self._loses.items() if self.change >= change), default=0)
        return GoldenScore({str(number): number >= lost for number in range(ITEMS)}, {"0": -1.0})

    def kept(self) -> float:
        return 1.0 - self.change / 100.0


def test_a_night_that_loses_nothing_is_served_whole() -> None:
    weights = Weights({10.0: 5})
    guard = Guard(weights, weights.golden, weights.kept)
    weights.change = 9.0
    assert guard.judge() == Judged(1.0, (0.0,))
    assert weights.change == 9.0


def test_a_night_that_loses_is_served_as_far_as_it_loses_nothing() -> None:
    weights = Weights({8.5: 1, 10.0: 5})
    guard = Guard(weights, weights.golden, weights.kept)
    weights.change = 10.0
    assert guard.judge() == Judged(0.8, (-10.0, -2.0, 0.0))
    assert weights.change == 8.0


def test_a_night_that_loses_in_every_size_is_given_up_and_what_served_before_serves_on() -> None:
    weights = Weights({5.0: 5})
    guard = Guard(weights, weights.golden, weights.kept)
    weights.change = 4.0
    assert guard.judge().scale == 1.0
    weights.change = 20.0
    assert guard.judge() == Judged(None, (-10.0, -10.0, -10.0))
    assert weights.change == 4.0


def test_what_is_told_in_the_end_is_of_what_serves_in_the_end() -> None:
    weights = Weights({})
    guard = Guard(weights, weights.golden, weights.kept)
    weights.change = 4.0
    facts = guard.facts()
    assert isinstance(facts["golden"], dict)
    assert facts["golden"]["points"] == 0.0
    assert facts["kept"] == {"before": 1.0, "after": 0.96, "points": 100.0 * (0.96 - 1.0)}

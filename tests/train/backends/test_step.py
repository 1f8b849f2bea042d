"""What a step looked like, from the log-probabilities that came back with it."""

import math

import pytest

from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Datum, Loss, LossKind
from metaclaw.errors import TrainingError
from metaclaw.train.backends.service import drawn_part, summarise
from tests.support.cases import each

DATUM = Datum(TurnId("turn"), (1, 2, 3), (4, 5), (1.0, -1.0), (-1.0, -1.0))
NOW = (-1.0 + math.log(1.5), -1.0 + math.log(0.5))


@each(
    ("kind", "loss", "clipped"),
    [
        # Of a positive advantage the clipped ratio counts where it is smaller; of a negative one
        # where it is larger.
        (LossKind.PPO, (-1.2 + 0.8) / 2, 1.0),
        (LossKind.CROSS_ENTROPY, (-NOW[0] + NOW[1]) / 2, None),
    ],
)
def test_each_loss_is_told_as_its_formula_says(
    kind: LossKind, loss: float, clipped: float | None
) -> None:
    stats = summarise([(DATUM, Loss(kind, clip_low=0.2, clip_high=0.2), NOW)])
    assert stats.tokens == 2
    assert stats.loss == pytest.approx(loss)
    assert stats.ratio_mean == pytest.approx(1.0)
    assert stats.ratio_max == pytest.approx(1.5)
    assert stats.clipped == clipped
    assert stats.kl is None
    assert stats.entropy is None


def test_without_logprobs_of_drawing_there_is_no_ratio() -> None:
    bare = Datum(TurnId("turn"), (1,), (4, 5), (1.0, 2.0), None)
    stats = summarise([(bare, Loss(LossKind.CROSS_ENTROPY), (-1.0, -2.0))])
    assert stats.loss == pytest.approx((1.0 + 4.0) / 2)
    assert stats.ratio_mean is None
    assert stats.ratio_max is None
    assert stats.clipped is None


def test_only_what_lines_up_is_taken() -> None:
    assert drawn_part(DATUM, [-9.0, -9.0, -1.0, -2.0]) == (-1.0, -2.0)
    with pytest.raises(TrainingError, match="turn turn: 3 log-probabilities"):
        drawn_part(DATUM, [-9.0, -1.0, -2.0])
    with pytest.raises(TrainingError, match="finite"):
        drawn_part(DATUM, [-9.0, -9.0, -1.0, math.nan])

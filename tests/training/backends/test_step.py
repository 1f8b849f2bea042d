"""What comes back with a piece must line up with what was sent."""

import math

import pytest

from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Datum
from metaclaw.errors import TrainingError
from metaclaw.training.backends.service import check_output

DATUM = Datum(TurnId("turn"), (1, 2, 3), (4, 5), (1.0, -1.0), (-1.0, -1.0))


def test_only_what_lines_up_is_taken() -> None:
    check_output([DATUM], [[-9.0, -9.0, -1.0, -2.0]])
    with pytest.raises(TrainingError, match="of 2 sequences came back for 1"):
        check_output([DATUM], [[-9.0], [-9.0]])
    with pytest.raises(TrainingError, match="turn turn: 3 log-probabilities"):
        check_output([DATUM], [[-9.0, -1.0, -2.0]])
    with pytest.raises(TrainingError, match="finite"):
        check_output([DATUM], [[-9.0, -9.0, -1.0, math.nan]])

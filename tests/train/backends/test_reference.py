"""The distance to the untrained model, told in advantages: it is the term that other backends add
to their loss.
"""

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Datum, Loss, LossKind
from metaclaw.errors import TrainingError
from metaclaw.ports import RunPlan, TrainingBackend
from metaclaw.train.backends.remote import RemoteBackend
from metaclaw.train.backends.service import Reduction, distance, fold
from tests.support.classroom import Classroom, PracticeService
from tests.support.contract import ADAM, PROMPTS
from tests.support.softmax import END, decode
from tests.support.toy_backend import ToyBackend

logprobs = st.floats(-20, 0)
ANSWERS = [(PROMPTS[0], (65, 66, END)), (PROMPTS[0], (67, 68)), (PROMPTS[1], (65, 70, 71, END))]


@given(
    st.lists(st.tuples(st.floats(-3, 3), logprobs, logprobs), min_size=1, max_size=5),
    st.floats(0.001, 10),
)
@settings(deadline=None)
def test_advantages_move_by_the_slope_of_the_distance(
    tokens: list[tuple[float, float, float]], weight: float
) -> None:
    advantages, now, reference = zip(*tokens, strict=True)
    folded = fold(
        Datum(TurnId("turn"), (1,), (2,) * len(tokens), advantages, now), now, reference, weight
    )
    step = 1e-6
    for place, (advantage, here, there) in enumerate(tokens):
        slope = (distance([here + step], [there]) - distance([here - step], [there])) / (2 * step)
        scale = 1e-3 * weight * max(1.0, math.exp(there - here))
        assert folded.advantages_T[place] == pytest.approx(advantage - weight * slope, abs=scale)


@given(st.lists(st.tuples(logprobs, logprobs), min_size=1, max_size=8))
@settings(deadline=None)
def test_a_distance_is_never_negative_and_none_to_oneself(pairs: list[tuple[float, float]]) -> None:
    now, reference = zip(*pairs, strict=True)
    assert distance(now, reference) >= 0.0
    assert distance(now, now) == 0.0


def test_what_does_not_line_up_or_is_out_of_this_world_is_refused() -> None:
    one = Datum(TurnId("turn"), (1,), (2, 3), (1.0, 1.0), (-1.0, -1.0))
    with pytest.raises(TrainingError, match="turn turn: 1 reference"):
        fold(one, (-1.0, -1.0), (-1.0,), 0.1)
    with pytest.raises(TrainingError, match="too far"):
        fold(one, (-1.0, -900.0), (-1.0, -1.0), 0.1)


async def trained(
    backend: TrainingBackend, folder: Path, kind: LossKind
) -> tuple[list[float | None], list[tuple[float, ...]]]:
    """What some steps with a KL weight told of the distance, and where the weights are after
    them.
    """
    await backend.open(RunPlan("run", None, 4, 0, folder))
    told = []
    for _ in range(4):
        now = [None] * 3 if kind is LossKind.CROSS_ENTROPY else await backend.score(ANSWERS)
        data = [
            Datum(TurnId("turn"), prompt, drawn, (1.0 - place,) * len(drawn), scores)
            for place, ((prompt, drawn), scores) in enumerate(zip(ANSWERS, now, strict=True))
        ]
        told.append((await backend.accumulate(data, Loss(kind, kl=0.7))).kl)
        await backend.apply(ADAM, float(sum(len(each.tokens_T) for each in data)))
    return told, await backend.score(ANSWERS)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", list(LossKind))
@pytest.mark.parametrize("reduction", list(Reduction))
async def test_a_service_ends_where_a_backend_with_the_term_ends(
    tmp_path: Path, kind: LossKind, reduction: Reduction
) -> None:
    _, wanted = await trained(ToyBackend(tmp_path / "kept"), tmp_path / "toy", kind)
    service = RemoteBackend(PracticeService(Classroom(reduction)), decode, end_ids=[END])
    told, got = await trained(service, tmp_path / "service", kind)
    for scores, theirs in zip(got, wanted, strict=True):
        assert scores == pytest.approx(theirs, abs=1e-9)
    assert told[0] == pytest.approx(0.0, abs=1e-9)
    assert all(value is not None and value > 0.0 for value in told[1:])

"""A training service ends where a backend of our own ends."""

from pathlib import Path

import pytest

from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Datum, Loss, LossKind
from metaclaw.ports import RunPlan, TrainingBackend
from metaclaw.training.backends.remote import RemoteBackend
from metaclaw.training.backends.service import Reduction
from tests.support.classroom import Classroom, PracticeService
from tests.support.contract import ADAM, PROMPTS
from tests.support.softmax import END, decode
from tests.support.toy_backend import ToyBackend

ANSWERS = [(PROMPTS[0], (65, 66, END)), (PROMPTS[0], (67, 68)), (PROMPTS[1], (65, 70, 71, END))]


async def trained(
    backend: TrainingBackend, folder: Path, kind: LossKind
) -> list[tuple[float, ...]]:
    """Where the weights are after some steps."""
    await backend.open(RunPlan("run", None, 4, 0, folder))
    for _ in range(4):
        now = [None] * 3 if kind is LossKind.CROSS_ENTROPY else await backend.score(ANSWERS)
        data = [
            Datum(TurnId("turn"), prompt, drawn, (1.0 - place,) * len(drawn), scores)
            for place, ((prompt, drawn), scores) in enumerate(zip(ANSWERS, now, strict=True))
        ]
        await backend.accumulate(data, Loss(kind))
        await backend.apply(ADAM, float(sum(len(each.tokens_T) for each in data)))
    return await backend.score(ANSWERS)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", list(LossKind))
@pytest.mark.parametrize("reduction", list(Reduction))
async def test_a_service_ends_where_a_backend_of_our_own_ends(
    tmp_path: Path, kind: LossKind, reduction: Reduction
) -> None:
    wanted = await trained(ToyBackend(tmp_path / "kept"), tmp_path / "toy", kind)
    service = RemoteBackend(PracticeService(Classroom(reduction)), decode, end_ids=[END])
    got = await trained(service, tmp_path / "service", kind)
    for scores, theirs in zip(got, wanted, strict=True):
        assert scores == pytest.approx(theirs, abs=1e-9)

"""The backends that every case of the contract is run through."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from metaclaw.engine.trainer import EmbeddedTrainer
from metaclaw.ports import TrainingBackend
from metaclaw.training.backends.remote import RemoteBackend
from metaclaw.training.backends.service import Reduction
from tests.support import tiny
from tests.support.classroom import Classroom, PracticeService
from tests.support.contract import Stage, staged
from tests.support.softmax import END, decode
from tests.support.toy_backend import ToyBackend

LOCAL = ["toy", "service that sums", "service that averages"]
EMBEDDED = pytest.param("embedded", marks=pytest.mark.slow)

Make = Callable[[], TrainingBackend]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for a whole file, so that one trainer process can serve its tests. While it
    lives, nobody else can run one.
    """
    return "asyncio"


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="session")
def tiny_model(tiny_folder: Path) -> Path:
    return tiny.make_tiny_model(tiny_folder)


def embedded_trainer(model: Path, kept: Path) -> EmbeddedTrainer:
    return EmbeddedTrainer(model, kept, convert=False, threads=1, device="cpu", nice=0)


@pytest.fixture(scope="module")
async def embedded(
    tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncIterator[EmbeddedTrainer]:
    """One process for all cases, started by the first: loading torch takes longer than any of
    them.
    """
    trainer = embedded_trainer(tiny_folder, tmp_path_factory.mktemp("kept"))
    yield trainer
    await trainer.aclose()


def local_maker(kind: str, folder: Path) -> Make:
    if kind == "toy":
        return lambda: ToyBackend(folder / "kept")
    room = Classroom(Reduction.MEAN if kind == "service that averages" else Reduction.SUM)
    return lambda: RemoteBackend(PracticeService(room), decode, end_ids=[END])


@pytest.fixture(params=[*LOCAL, EMBEDDED])
async def stage(
    request: pytest.FixtureRequest, tmp_path: Path, embedded: EmbeddedTrainer
) -> AsyncIterator[Stage]:
    kind: str = request.param
    make: Make
    if kind in LOCAL:
        make, tolerance = local_maker(kind, tmp_path), 1e-9
    else:
        model: Path = request.getfixturevalue("tiny_model")
        make, tolerance = (lambda: embedded_trainer(model, tmp_path / "kept")), 1e-4
    first = embedded if kind == "embedded" else None
    async with staged(make, tmp_path, tolerance, first) as ready:
        yield ready
    await embedded.close(discard=True)

"""The backends that every case of the contract is run through.

`tinker` needs its SDK and a server (`make test-tinker`); the others are always there."""

import importlib.metadata
import importlib.util
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from metaclaw.engine.trainer import EmbeddedTrainer
from metaclaw.engine.vocabulary import Vocabulary
from metaclaw.ports import TrainingBackend
from metaclaw.training.backends.remote import RemoteBackend
from metaclaw.training.backends.sdk import Waits, load_tinker
from metaclaw.training.backends.service import Reduction, ServiceSettings
from metaclaw.training.backends.tinker import TinkerService
from tests.support import skyrl, tiny
from tests.support.classroom import Classroom, PracticeService
from tests.support.contract import Stage, staged
from tests.support.relay import Relay
from tests.support.softmax import END, decode
from tests.support.toy_backend import ToyBackend

LOCAL = ["toy", "service that sums", "service that averages"]
EMBEDDED = pytest.param("embedded", marks=pytest.mark.slow)
HERE = ["tinker"] if importlib.util.find_spec("tinker") else []

Make = Callable[[], TrainingBackend]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for a whole file, so that one trainer process can serve its tests. While it
    lives, nobody else can run one.
    """
    return "asyncio"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[skyrl.SkyRL]:
    if not skyrl.is_installed():
        pytest.skip(skyrl.MISSING)
    with skyrl.serve(tmp_path_factory.mktemp("skyrl")) as running:
        yield running


@pytest.fixture
def relay(server: skyrl.SkyRL) -> Iterator[Relay]:
    running = Relay(server.url).start()
    yield running
    running.cut()


def speaks_protobuf() -> bool:
    """Whether the SDK is newer than the server understands."""
    major, minor = importlib.metadata.version("tinker").split(".")[:2]
    return (int(major), int(minor)) >= (0, 25)


def tinker_backend(
    sdk: str, model: Path, url: str, key: str | None = None, waits: Waits | None = None
) -> RemoteBackend:
    """A backend that reaches the server through this SDK."""
    settings = ServiceSettings(str(model), [tiny.END], url, key)
    service = TinkerService(load_tinker(sdk), settings, name=sdk, waits=waits)
    return RemoteBackend(service, Vocabulary(model).decode, end_ids=[tiny.END])


def tinker_maker(sdk: str, server: skyrl.SkyRL, relay: Relay) -> Make:
    url = relay.url if speaks_protobuf() else server.url
    return lambda: tinker_backend(sdk, server.model, url, "tml-test")


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


@pytest.fixture(params=[*LOCAL, EMBEDDED, *HERE])
async def stage(
    request: pytest.FixtureRequest, tmp_path: Path, embedded: EmbeddedTrainer
) -> AsyncIterator[Stage]:
    kind: str = request.param
    make: Make
    if kind in LOCAL:
        make, tolerance = local_maker(kind, tmp_path), 1e-9
    elif kind == "embedded":
        model: Path = request.getfixturevalue("tiny_model")
        make, tolerance = (lambda: embedded_trainer(model, tmp_path / "kept")), 1e-4
    else:
        server, relay = request.getfixturevalue("server"), request.getfixturevalue("relay")
        make, tolerance = tinker_maker(kind, server, relay), 2e-3
    first = embedded if kind == "embedded" else None
    async with staged(make, tmp_path, tolerance, first) as ready:
        yield ready
    await embedded.close(discard=True)

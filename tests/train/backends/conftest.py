"""The backends that every case of the contract is run through.

`tinker` and `mint` need their SDK and a server, `weaver` its SDK (`make test-tinker`); the others
are always there."""

import importlib.metadata
import importlib.util
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from metaclaw.engine.trainer import EmbeddedTrainer
from metaclaw.engine.vocabulary import Vocabulary
from metaclaw.ports import TrainingBackend
from metaclaw.train.backends.remote import RemoteBackend
from metaclaw.train.backends.sdk import Waits, load_tinker, load_weaver
from metaclaw.train.backends.service import Reduction
from metaclaw.train.backends.tinker import tinker_backend
from metaclaw.train.backends.weaver import weaver_backend
from tests.support import skyrl, tiny
from tests.support.classroom import Classroom, PracticeService
from tests.support.contract import Stage
from tests.support.relay import Relay
from tests.support.softmax import END, decode
from tests.support.toy_backend import ToyBackend
from tests.support.weaver_stub import WeaverStub

LOCAL = ["toy", "service that sums", "service that averages"]
EMBEDDED = pytest.param("embedded", marks=pytest.mark.slow)
HERE = [sdk for sdk in ("weaver", "tinker", "mint") if importlib.util.find_spec(sdk)]

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


def tinker_maker(
    module: str, model: Path, url: str, waits: Waits | None = None
) -> Callable[[], RemoteBackend]:
    """Backends that reach the server through this SDK."""
    vocabulary = Vocabulary(model)
    sdk = load_tinker(module)

    def make() -> RemoteBackend:
        return tinker_backend(
            sdk,
            str(model),
            vocabulary.decode,
            end_ids=[tiny.END],
            name=module,
            base_url=url,
            api_key="tml-test",
            waits=waits,
        )

    return make


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


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[WeaverStub]:
    monkeypatch.setenv("WEAVER_OPERATION_POLL_INTERVAL", "0.005")
    running = WeaverStub().start()
    yield running
    running.stop()


def weaver_maker(stub: WeaverStub) -> Make:
    """Backends that reach the stub through Weaver's SDK."""
    sdk = load_weaver()
    waits = Waits(create_s=900.0, heartbeat_s=0.05)
    return lambda: weaver_backend(
        sdk, "tiny", decode, end_ids=[END], base_url=stub.url, api_key="sk-test", waits=waits
    )


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
    elif kind == "weaver":
        make, tolerance = weaver_maker(request.getfixturevalue("stub")), 1e-4
    else:
        server: skyrl.SkyRL = request.getfixturevalue("server")
        url = request.getfixturevalue("relay").url if speaks_protobuf() else server.url
        make, tolerance = tinker_maker(kind, server.model, url), 2e-3
    async with AsyncExitStack() as stack:

        async def fresh() -> TrainingBackend:
            backend = make()
            stack.push_async_callback(backend.aclose)
            return backend

        yield Stage(embedded if kind == "embedded" else await fresh(), fresh, tmp_path, tolerance)
    await embedded.close(discard=True)

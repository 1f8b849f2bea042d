"""The backends that every case of the contract is run through.

`tinker` and `mint` need their SDK and a server, `weaver` its SDK (`make test-tinker`); the others are always there.
"""

import importlib.util
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from metaclaw.engine.text import Vocabulary
from metaclaw.engine.trainer import EmbeddedTrainer
from metaclaw.ports import TrainingBackend
from metaclaw.train.backends.layout import Reduction
from metaclaw.train.backends.remote import RemoteBackend
from metaclaw.train.backends.sdk import load_sdk
from metaclaw.train.backends.softmax import END, decode
from metaclaw.train.backends.tinker import tinker_backend
from metaclaw.train.backends.toy import ToyBackend
from metaclaw.train.backends.weaver import WeaverWaits, weaver_backend
from metaclaw.train.backends.weaver_sdk import load_weaver
from tests.support import skyrl, tiny
from tests.support.classroom import Classroom, PracticeService
from tests.support.contract import Stage
from tests.support.weaver_stub import WeaverStub

LOCAL = ["toy", "service that sums", "service that averages"]
EMBEDDED = pytest.param("embedded", marks=pytest.mark.slow)
HERE = [sdk for sdk in ("weaver", "tinker", "mint") if importlib.util.find_spec(sdk)]

Make = Callable[[], TrainingBackend]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[skyrl.SkyRL]:
    if not skyrl.is_installed():
        pytest.skip(skyrl.MISSING)
    with skyrl.serve(tmp_path_factory.mktemp("skyrl")) as running:
        yield running


def tinker_maker(module: str, server: skyrl.SkyRL) -> Make:
    """Backends that reach the server through this SDK."""
    vocabulary = Vocabulary(server.model)
    sdk = load_sdk(module)

    def make() -> TrainingBackend:
        return tinker_backend(
            sdk, str(server.model), vocabulary.decode, end_ids=[tiny.END], name=module, base_url=server.url, api_key="tml-test"
        )

    return make


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[WeaverStub]:
    monkeypatch.setenv("WEAVER_OPERATION_POLL_INTERVAL", "0.005")
    running = WeaverStub().start()
    yield running
    running.stop()


def weaver_maker(stub: WeaverStub) -> Make:
    """Backends that reach the stub through Weaver's SDK."""
    sdk = load_weaver()
    waits = WeaverWaits(heartbeat_s=0.05)
    return lambda: weaver_backend(sdk, "tiny", decode, end_ids=[END], base_url=stub.url, api_key="sk-test", waits=waits)


def local_maker(kind: str, folder: Path) -> Make:
    if kind == "toy":
        return lambda: ToyBackend(folder / "kept")
    room = Classroom(Reduction.MEAN if kind == "service that averages" else Reduction.SUM)
    return lambda: RemoteBackend(PracticeService(room), decode, end_ids=[END])


@pytest.fixture(params=[*LOCAL, EMBEDDED, *HERE])
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    kind: str = request.param
    make: Make
    if kind in LOCAL:
        make, tolerance = local_maker(kind, tmp_path), 1e-9
    elif kind == "embedded":
        model: Path = request.getfixturevalue("tiny_model")
        make, tolerance = (lambda: EmbeddedTrainer(model, tmp_path / "kept", convert=False, threads=1, device="cpu", nice=0)), 1e-4
    elif kind == "weaver":
        make, tolerance = weaver_maker(request.getfixturevalue("stub")), 1e-4
    else:
        make, tolerance = tinker_maker(kind, request.getfixturevalue("server")), 2e-3
    async with AsyncExitStack() as stack:

        async def fresh() -> TrainingBackend:
            backend = make()
            stack.push_async_callback(backend.aclose)
            return backend

        yield Stage(await fresh(), fresh, tmp_path, tolerance)

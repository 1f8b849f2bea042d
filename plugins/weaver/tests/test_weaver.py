"""What every training backend promises, by Weaver's SDK and a stub of its server (`make
test-tinker`), and what is particular to Weaver.
"""

import importlib.util
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from metaclaw.training import RemoteBackend, ServiceSettings, Waits
from metaclaw_weaver import WeaverService
from metaclaw_weaver.sdk import load_weaver
from plugins.weaver.tests.weaver_stub import WeaverStub
from tests.support.contract import Stage, staged
from tests.support.softmax import END, decode
from tests.training.backends.test_backend_contract import *  # noqa: F403

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.of_target("test-tinker", importlib.util.find_spec("weaver") is not None),
]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[WeaverStub]:
    monkeypatch.setenv("WEAVER_OPERATION_POLL_INTERVAL", "0.005")
    running = WeaverStub().start()
    yield running
    running.stop()


@pytest.fixture
async def stage(stub: WeaverStub, tmp_path: Path) -> AsyncIterator[Stage]:
    settings = ServiceSettings("tiny", [END], stub.url, "sk-test")
    waits = Waits(create_s=900.0, heartbeat_s=0.05)

    def make() -> RemoteBackend:
        service = WeaverService(load_weaver(), settings, waits=waits)
        return RemoteBackend(service, decode, end_ids=[END])

    async with staged(make, tmp_path, 1e-4) as ready:
        yield ready

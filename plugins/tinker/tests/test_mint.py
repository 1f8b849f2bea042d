"""What every training backend promises, by MinT's SDK and a real server (`make test-tinker`)."""

import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from plugins.tinker.tests.conftest import tinker_maker
from tests.support.contract import Stage, staged
from tests.support.relay import Relay
from tests.support.skyrl import SkyRL
from tests.training.backends.test_backend_contract import *  # noqa: F403

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.of_target("test-tinker", importlib.util.find_spec("mint") is not None),
]


@pytest.fixture
async def stage(server: SkyRL, relay: Relay, tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tinker_maker("mint", server, relay), tmp_path, 2e-3) as ready:
        yield ready

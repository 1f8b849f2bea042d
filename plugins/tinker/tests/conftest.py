"""A real server with Tinker's API, and backends that reach it (`make test-tinker`)."""

import importlib.metadata
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from metaclaw.engine import Vocabulary
from metaclaw.ports import TrainingBackend
from metaclaw.training import RemoteBackend, ServiceSettings, Waits
from metaclaw_tinker import TinkerService
from metaclaw_tinker.sdk import load_tinker
from tests.support import skyrl, tiny
from tests.support.relay import Relay
from tests.training.backends.conftest import tiny_folder, tiny_model

__all__ = ["tiny_folder", "tiny_model"]

Make = Callable[[], TrainingBackend]


def speaks_protobuf() -> bool:
    """Whether the SDK is newer than SkyRL 0.3.0 understands."""
    major, minor = importlib.metadata.version("tinker").split(".")[:2]
    return (int(major), int(minor)) >= (0, 25)


def release() -> str:
    """The newest server that the SDK can be tested with, of those that are installed."""
    return "server-new" if speaks_protobuf() and skyrl.is_installed("server-new") else "server"


def relay_to(server: skyrl.SkyRL, port: int = 0) -> Relay:
    return Relay(server.url, port, translates=server.release == "server").start()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[skyrl.SkyRL]:
    if not skyrl.is_installed(release()):
        pytest.skip(skyrl.MISSING)
    with skyrl.serve(tmp_path_factory.mktemp("skyrl"), release=release()) as running:
        yield running


@pytest.fixture
def relay(server: skyrl.SkyRL) -> Iterator[Relay]:
    running = relay_to(server)
    yield running
    running.cut()


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

"""The server that the cases of test_lora_servers.py are run through."""

from collections.abc import Callable, Iterator

import pytest

from metaclaw.training.hosts.lora_servers import AdminClient, LoadingHost, ServerRoutes, VllmRoutes
from tests.support.lora_server import FakeServer, FakeVllm


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeVllm()
    yield fake
    fake.stop()


@pytest.fixture
def routes() -> ServerRoutes:
    return VllmRoutes()


@pytest.fixture
def make(routes: ServerRoutes) -> Callable[..., LoadingHost]:
    return lambda url, key=None, **options: LoadingHost(AdminClient(url, key), routes, **options)

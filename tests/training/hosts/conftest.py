"""The server that the cases of test_adapter_server.py are run through."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from metaclaw.training.hosts.adapter_server import AdapterHost, AdapterRoutes, AdapterServer
from metaclaw.training.hosts.vllm import VllmRoutes
from metaclaw.upstream import HttpEndpoint
from tests.support.lora_server import FakeServer, FakeVllm


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeVllm()
    yield fake
    fake.stop()


@pytest.fixture
def routes() -> AdapterRoutes:
    return VllmRoutes("tiny", frozenset)


@pytest.fixture
async def make(routes: AdapterRoutes) -> AsyncIterator[Callable[..., AdapterHost]]:
    opened: list[HttpEndpoint] = []

    def host(url: str, key: str | None = None, **options: Any) -> AdapterHost:
        opened.append(HttpEndpoint("gpu", "openai", url, api_key=key))
        return AdapterHost(AdapterServer(opened[-1].at_root(), routes), **options)

    yield host
    for endpoint in opened:
        await endpoint.aclose()

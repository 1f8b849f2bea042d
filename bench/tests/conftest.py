"""The fixtures and hooks of the product's tests: an isolated home folder, the event loop, shared
data, what only runs at night.
"""

import os
from collections.abc import Iterator, Sequence

import pytest

from metaclaw_bench.running import proxy
from tests.conftest import (
    anyio_backend,
    home,
    pytest_collection_finish,
    pytest_collection_modifyitems,
    pytest_configure,
    shared,
)
from tests.support import forks

__all__ = [
    "anyio_backend",
    "forked_proxies",
    "home",
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "shared",
]


@pytest.fixture(scope="module")
def forked_proxies() -> Iterator[None]:
    """Fork the proxies that runs in this process start; those of runs in a process of their own are
    started.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proxy, "_spawn", _fork)
        yield


def _fork(place: proxy.Place, sets: Sequence[str]) -> forks.Process:
    place.log.parent.mkdir(parents=True, exist_ok=True)
    settings = [word for one in sets for word in ("--set", one)]
    with place.log.open("ab") as log:
        return forks.start(
            ["--home", str(place.home), "start", *settings], proxy._clean(os.environ), log, log
        )

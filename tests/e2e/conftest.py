"""The whole program in front of a scripted provider."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.program import NOT_LEARNING, Program, providers_toml
from tests.support.provider import Provider


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    running = Provider().start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def program(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    home: Path = tmp_path_factory.mktemp("program") / "home"
    running = Program(home, providers_toml(provider.url), env=NOT_LEARNING).start()
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]

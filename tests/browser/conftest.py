"""A browser that is signed in to the page of the running program."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.browser.driver import PageDriver
from tests.support.browser import CHROMIUM, Browser
from tests.support.program import NOT_LEARNING, PATIENCE_S, Program, providers_toml
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


@pytest.fixture
def page(program: Program, tmp_path: Path) -> Iterator[PageDriver]:
    if CHROMIUM is None:
        pytest.skip("needs chromium")
    opened = Browser(tmp_path / "profile")
    try:
        link = httpx.post(
            f"{program.url}/api/sign-in", headers=program.auth, timeout=PATIENCE_S
        ).json()["url"]
        opened.open(link)
        opened.wait_for("document.getElementById('content') !== null")
        yield PageDriver(opened, program.url)
    finally:
        opened.close()

"""Fixtures for the learning part: real parts on a fresh ledger."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from metaclaw.store import open_database
from tests.learn.house import House, running

NewHouse = Callable[..., Awaitable[House]]


@pytest.fixture(scope="session")
def empty_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty ledger, made once."""
    path = tmp_path_factory.mktemp("empty") / "ledger.db"
    open_database(f"sqlite:///{path}").close()
    return path


@pytest.fixture
async def new_house(empty_ledger: Path, tmp_path: Path) -> AsyncIterator[NewHouse]:
    """Makes houses; any field can be given."""
    async with AsyncExitStack() as houses:

        async def make(**fields: Any) -> House:
            return await houses.enter_async_context(running(empty_ledger, tmp_path / "house", **fields))

        yield make

"""Fixtures for the learning part: real parts on a fresh ledger."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from metaclaw.store import open_database
from tests.learn.learning import ScriptedLearning, running

NewLearning = Callable[..., Awaitable[ScriptedLearning]]


@pytest.fixture(scope="session")
def empty_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty ledger, made once."""
    path = tmp_path_factory.mktemp("empty") / "ledger.db"
    open_database(f"sqlite:///{path}").close()
    return path


@pytest.fixture
async def new_learning(empty_ledger: Path, tmp_path: Path) -> AsyncIterator[NewLearning]:
    """Builds the learning part; any field can be given."""
    async with AsyncExitStack() as stack:

        async def make(**fields: Any) -> ScriptedLearning:
            return await stack.enter_async_context(
                running(empty_ledger, tmp_path / "learning", **fields)
            )

        yield make

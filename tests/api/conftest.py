"""One stage for each test, on a copy of a database that was made once."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from metaclaw.store import open_database
from tests.api.stage import Stage, staged


@pytest.fixture(scope="session")
def empty_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty") / "ledger.db"
    open_database(f"sqlite:///{path}").close()
    return path


@pytest.fixture
async def stage(tmp_path: Path, empty_ledger: Path) -> AsyncIterator[Stage]:
    shutil.copy(empty_ledger, tmp_path / "ledger.db")
    async with staged(tmp_path) as ready:
        yield ready

"""The real 135M model for the engine's tests, converted once into a folder that later runs find
again.
"""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from benchmarks.scoring import load_model
from metaclaw.engine import MODEL_ID, EmbeddedModel
from metaclaw.engine.convert import ensure_model
from metaclaw.engine.served_model import ServedModel
from metaclaw.engine.vocabulary import Vocabulary
from tests.engine.small import make_small_model


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """One event loop for the whole session, so that one engine process can serve many tests."""
    return "asyncio"


@pytest.fixture(scope="session")
def folder() -> Path:
    cache = os.environ.get("METACLAW_TEST_CACHE")
    root = Path(cache) if cache else Path(__file__).resolve().parents[2] / ".cache"
    return ensure_model(root / "engine" / MODEL_ID, lambda share: None)


@pytest.fixture(scope="session")
def llama(folder: Path) -> ServedModel:
    torch.set_num_threads(1)
    return load_model(folder)


@pytest.fixture(scope="session")
def small_llama(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    """For what does not depend on what the weights are: two thin layers and the same vocabulary."""
    torch.set_num_threads(1)
    return load_model(make_small_model(folder, tmp_path_factory.mktemp("small") / "model"))


@pytest.fixture(scope="session")
def vocabulary(folder: Path) -> Vocabulary:
    return Vocabulary(folder)


@pytest.fixture(scope="module")
async def embedded(folder: Path, anyio_backend: str) -> AsyncIterator[EmbeddedModel]:
    model = EmbeddedModel(folder, threads=2)
    await model.start()
    yield model
    await model.aclose()

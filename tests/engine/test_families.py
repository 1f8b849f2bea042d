"""Members of the Llama family beyond the plain one: the numbers of transformers, token for
token.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.scoring import load_model, with_cache
from metaclaw.engine.attention import Span
from metaclaw.engine.checkpoint import read_shape
from metaclaw.engine.training.lora import read_adapter
from metaclaw.errors import EngineError
from tests.engine.small import merge, write_adapter

_SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 50_000.0},
}
_KINDS = ("Llama", "Mistral", "Qwen2", "Qwen3")
_TOKENS = torch.randint(0, 64, (30,), generator=torch.Generator().manual_seed(1)).tolist()


def _transformers() -> Any:
    # Slow to import, and every worker of the suite reads this file.
    return pytest.importorskip("transformers")


def _write(kind: str, folder: Path, **settings: object) -> None:
    """A random model; nothing in it is left at a one or a zero that would hide where it is used."""
    sizes = {key: value for key, value in _SIZES.items() if kind != "Qwen2" or key != "head_dim"}
    config = getattr(_transformers(), f"{kind}Config")(**sizes | settings)
    torch.manual_seed(0)
    model = getattr(_transformers(), f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.normal_(mean=float("norm" in name), std=0.3)
    model.save_pretrained(folder)


def _expected(kind: str, folder: Path) -> torch.Tensor:
    reference = (
        getattr(_transformers(), f"{kind}ForCausalLM")
        .from_pretrained(folder, dtype=torch.float32)
        .eval()
    )
    with torch.inference_mode():
        logits: torch.Tensor = reference(torch.tensor([_TOKENS])).logits[0]
    return logits


@pytest.mark.parametrize("kind", _KINDS)
def test_the_numbers_are_those_of_transformers_however_the_text_is_cut(
    kind: str, tmp_path: Path
) -> None:
    _write(kind, tmp_path)
    model, expected = load_model(tmp_path), _expected(kind, tmp_path)
    whole = model.run([Span(0, 0, _TOKENS)], range(30))
    assert torch.allclose(whole, expected, atol=1e-4)
    # Alone, a token is read by another product than in company.
    last = model.run([Span(0, 29, _TOKENS[29:])], [0])
    assert torch.allclose(last, expected[29:], atol=1e-4)


@pytest.mark.parametrize(
    "rope",
    [
        {
            "rope_type": "llama3",
            "rope_theta": 10_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
        {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
    ],
    ids=lambda rope: str(rope["rope_type"]),
)
def test_scaled_rotary_positions_give_the_numbers_of_transformers(
    rope: dict[str, object], tmp_path: Path
) -> None:
    _write("Llama", tmp_path, rope_parameters=rope, initializer_range=0.3)
    model, expected = load_model(tmp_path), _expected("Llama", tmp_path)
    found = with_cache(model, 1, 40).run([Span(0, 0, _TOKENS)], range(30))
    assert torch.allclose(found, expected, atol=1e-4)
    plain = {"rope_type": "default", "rope_theta": 10_000.0}
    _write("Llama", tmp_path / "plain", rope_parameters=plain, initializer_range=0.3)
    assert not torch.allclose(found, _expected("Llama", tmp_path / "plain"), atol=0.01)


@pytest.mark.parametrize("kind", _KINDS)
def test_an_adapter_works_beside_and_within_the_weights_of_any_of_them(
    kind: str, tmp_path: Path
) -> None:
    _write(kind, tmp_path / "model")
    weights = write_adapter(tmp_path / "model", tmp_path / "adapter", seed=1, size=0.5)
    base = load_model(tmp_path / "model")
    model = base.with_adapter(read_adapter(Path(weights.adapter)))
    expected = _expected(kind, merge(tmp_path / "model", weights, tmp_path / "merged"))
    found = with_cache(model, 1, 40).run([Span(0, 0, _TOKENS)], range(30))
    assert torch.allclose(found, expected, atol=1e-4)
    assert not torch.allclose(
        with_cache(base, 1, 40).run([Span(0, 0, _TOKENS)], range(30)), expected, atol=0.1
    )


def test_where_attention_forgets_no_text_is_longer_than_it_can_look_back(tmp_path: Path) -> None:
    _write("Mistral", tmp_path / "mistral", sliding_window=24)
    assert load_model(tmp_path / "mistral").context == 24
    _write("Qwen2", tmp_path / "qwen", sliding_window=24, use_sliding_window=False)
    assert load_model(tmp_path / "qwen").context == 128


def test_a_model_of_another_family_is_refused_by_name(tmp_path: Path) -> None:
    _write("Qwen2", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "gemma"}))
    with pytest.raises(EngineError, match="gemma"):
        read_shape(tmp_path)

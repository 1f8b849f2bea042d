"""The forward pass: the same numbers as transformers, alone or in company, while sampling and while
scoring.
"""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.scoring import load_model, read_tensors, score, with_cache
from metaclaw.engine.attention import Span
from metaclaw.engine.batch import Batch, Job
from metaclaw.engine.checkpoint import read_shape
from metaclaw.engine.frames import SamplingOptions
from metaclaw.engine.served_model import ServedModel
from metaclaw.engine.stack import can_pack, pack
from metaclaw.errors import EngineError

_TOLERANCE = 1e-4
"""Single precision: log-probabilities of one text by two ways of cutting it agree to this."""


def _tokens(seed: int, count: int) -> list[int]:
    return torch.randint(
        17, 49_152, (count,), generator=torch.Generator().manual_seed(seed)
    ).tolist()


def _run_all(batch: Batch, jobs: list[Job]) -> None:
    for job in jobs:
        batch.add(job)
    while not batch.is_idle:
        for job, _ in batch.step():
            if job.is_full:
                batch.remove(job)


def test_logits_equal_those_of_transformers(folder: Path, llama: ServedModel) -> None:
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    reference = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = _tokens(1, 70)
    with torch.inference_mode():
        expected = reference(torch.tensor([tokens])).logits[0]
    found = with_cache(llama, 1, 70).run([Span(0, 0, tokens)], range(70))
    assert torch.allclose(found, expected, atol=2e-3)
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


def test_a_text_gives_the_same_logits_however_it_is_cut(small_llama: ServedModel) -> None:
    tokens = _tokens(2, 40)
    model = with_cache(small_llama, 3, 64)
    whole = model.run([Span(0, 0, tokens)], range(40)).log_softmax(-1)
    model.run([Span(1, 0, tokens[:17])], [0])
    rest = model.run([Span(1, 17, tokens[17:])], range(23)).log_softmax(-1)
    assert torch.allclose(rest, whole[17:], atol=1e-3)
    # Alone a token at a time, and beside a long prompt of somebody else.
    model.run([Span(2, 0, tokens[:39])], [0])
    last = model.run([Span(2, 39, tokens[39:]), Span(0, 0, _tokens(3, 30))], [0]).log_softmax(-1)
    assert torch.allclose(last, whole[39:], atol=1e-3)


def test_sampled_logprobs_equal_teacher_forced_ones_in_a_batch_of_strangers(
    small_llama: ServedModel,
) -> None:
    jobs = [
        Job(_tokens(seed, length), 12, SamplingOptions(seed=seed))
        for seed, length in enumerate((5, 90, 33, 1, 140, 64))
    ]
    _run_all(Batch(with_cache(small_llama, 4)), jobs)
    for job in jobs:
        assert job.logprobs == pytest.approx(
            score(small_llama, job.prompt, job.sampled), abs=_TOLERANCE
        )


def test_a_seed_gives_the_same_tokens_alone_and_in_company(small_llama: ServedModel) -> None:
    alone, crowded = (
        Job(_tokens(7, 50), 16, SamplingOptions(temperature=0.9, top_p=0.95, seed=3))
        for _ in range(2)
    )
    _run_all(Batch(with_cache(small_llama, 1)), [alone])
    _run_all(
        Batch(with_cache(small_llama, 4)),
        [
            Job(_tokens(8, 20), 9, SamplingOptions()),
            crowded,
            Job(_tokens(9, 120), 20, SamplingOptions()),
        ],
    )
    assert crowded.sampled == alone.sampled
    assert crowded.logprobs == pytest.approx(alone.logprobs, abs=_TOLERANCE)


def test_scoring_begins_anywhere(small_llama: ServedModel) -> None:
    tokens = _tokens(4, 100)
    whole = score(small_llama, tokens[:1], tokens[1:])
    assert score(small_llama, tokens[:80], tokens[80:]) == pytest.approx(whole[79:], abs=_TOLERANCE)
    assert score(small_llama, tokens, []) == []


@pytest.mark.skipif(
    not can_pack(torch.zeros(1)), reason="needs a torch with packed products (mkldnn)"
)
def test_a_packed_product_gives_each_row_the_same_bits_in_any_company() -> None:
    chance = torch.Generator().manual_seed(0)
    weight, rows = (torch.randn(count, 64, generator=chance) for count in (96, 40))
    with torch.inference_mode():
        product = pack(weight)
        whole = product(rows)
        assert all(torch.equal(product(rows[:count]), whole[:count]) for count in (2, 3, 8, 17))
        assert torch.allclose(product(rows[:1]), whole[:1], atol=1e-4)
        assert torch.allclose(whole, rows @ weight.T, atol=1e-4)


@pytest.mark.filterwarnings(
    "ignore:mkldnn_matmul failed"
)  # a processor without bfloat16 says so, once
def test_another_llama_folder_loads_with_its_own_head_and_in_half_precision(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
    )
    torch.manual_seed(0)
    reference = transformers.LlamaForCausalLM(config).eval()
    reference.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    tokens = list(range(20))
    with torch.inference_mode():
        expected = reference(torch.tensor([tokens])).logits[0]
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.05)):
        model = load_model(tmp_path, dtype)
        found = with_cache(model, 1, 32).run([Span(0, 0, tokens)], range(20))
        assert torch.allclose(found, expected, atol=tolerance)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"attention_bias": True}, "biases"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "yarn"),
    ],
)
def test_a_model_that_would_run_wrong_is_refused(
    folder: Path, tmp_path: Path, change: dict[str, object], word: str
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(EngineError, match=word):
        read_shape(tmp_path)


def test_missing_and_broken_weights_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"model\.safetensors"):
        read_tensors(tmp_path, torch.float32)
    with pytest.raises(EngineError, match="embed_tokens"):
        ServedModel(read_shape(folder), {}, 1)

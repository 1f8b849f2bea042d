"""Serving as on a GPU, with the same code run step by step on the processor: the numbers of the plain
forward pass, for requests that join and leave, with several adapters side by side.
"""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor

from benchmarks.random_models import FAMILY, write_member
from benchmarks.scoring import load_model
from metaclaw.engine import served_model
from metaclaw.engine.attention import Span
from metaclaw.engine.batch import Batch, Job
from metaclaw.engine.checkpoint import map_tensors, read_shape
from metaclaw.engine.frames import SamplingOptions
from metaclaw.engine.served_model import CachedCall, ServedModel, _SingleTokens
from metaclaw.engine.training.lora import read_adapter
from metaclaw.errors import TrainingError
from tests.engine.small import merge, write_adapter

_GREEDY = SamplingOptions(temperature=0.0)
_TOKENS = torch.randint(3, 64, (30,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.fixture(scope="module", params=FAMILY)
def member(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_member(request.param, tmp_path_factory.mktemp("member") / request.param)


@pytest.fixture(autouse=True)
def _slow_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        monkeypatch.setattr(served_model, "attend_to_cache", _attend_one_by_one)


def _attend_one_by_one(queries: Tensor, keys: Tensor, values: Tensor, call: CachedCall) -> Tensor:
    """What the kernel of the GPU computes."""
    out = torch.empty_like(queries)
    bounds, starts, used = call.bounds.tolist(), call.starts.tolist(), call.used.tolist()
    for number, (start, length) in enumerate(zip(starts, used, strict=False)):
        rows, seen = slice(bounds[number], bounds[number + 1]), slice(start, start + length)
        count = rows.stop - rows.start
        hidden = torch.arange(length) > torch.arange(length - count, length).unsqueeze(1)
        out[rows] = (
            functional.scaled_dot_product_attention(
                queries[rows].transpose(0, 1).unsqueeze(0),
                keys[seen].transpose(0, 1).unsqueeze(0),
                values[seen].transpose(0, 1).unsqueeze(0),
                attn_mask=~hidden,
                enable_gqa=True,
            )
            .squeeze(0)
            .transpose(0, 1)
        )
    return out


def _load(folder: Path, slots: int = 3) -> ServedModel:
    """A model that runs as on a GPU, but step by step."""
    model = load_model(folder, slots=slots)
    model._singles = _SingleTokens(slots, model.shape, torch.device("cpu"))
    return model


def _answer(model: ServedModel, prompt: list[int], count: int = 6) -> Job:
    batch, job = Batch(model), Job(prompt, count, _GREEDY)
    batch.add(job)
    while not job.is_full:
        batch.step()
    batch.remove(job)
    return job


def test_the_numbers_are_those_of_the_plain_pass_however_the_text_is_cut(member: Path) -> None:
    plain, shared = load_model(member), _load(member)
    expected = plain.run([Span(0, 0, _TOKENS)], range(30))
    whole = shared.run([Span(1, 0, _TOKENS)], range(30)).clone()
    torch.testing.assert_close(whole, expected, atol=2e-4, rtol=1e-4)
    shared.run([Span(2, 0, _TOKENS[:20])], [19])
    one_by_one = [
        shared.run([Span(2, place, _TOKENS[place : place + 1])], [0]).clone()
        for place in range(20, 30)
    ]
    torch.testing.assert_close(torch.cat(one_by_one), expected[20:], atol=2e-4, rtol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_same_on_a_gpu_in_half_precision(member: Path) -> None:
    shape, tensors = read_shape(member), map_tensors(member)
    shared = ServedModel(shape, tensors, 3, device="cuda", dtype=torch.bfloat16)
    plain = load_model(member)
    expected = plain.run([Span(0, 0, _TOKENS)], range(30))
    whole = shared.run([Span(2, 0, _TOKENS)], range(30)).cpu()
    shared.run([Span(1, 0, _TOKENS[:20])], [19])
    one_by_one = [
        shared.run([Span(1, place, _TOKENS[place : place + 1])], [0]).cpu()
        for place in range(20, 30)
    ]
    torch.testing.assert_close(whole, expected, atol=0.15, rtol=0.05)
    torch.testing.assert_close(torch.cat(one_by_one), expected[20:], atol=0.15, rtol=0.05)


def test_requests_share_a_pass_whatever_their_slots_and_lengths(member: Path) -> None:
    shared = _load(member)
    alone = [_answer(shared, _TOKENS[:length]) for length in (1, 9, 20)]
    batch = Batch(shared)
    jobs = [Job(_TOKENS[:length], 6, _GREEDY) for length in (20, 1, 9)]
    for job in jobs:
        batch.add(job)
        batch.step()
    while not all(job.is_full for job in jobs):
        for job in [job for job, _ in batch.step() if job.is_full]:
            batch.remove(job)
    for job in jobs:
        twin = next(one for one in alone if one.prompt == job.prompt)
        assert job.sampled == twin.sampled
        assert job.logprobs == pytest.approx(twin.logprobs, abs=1e-4)


def test_adapters_serve_side_by_side_and_take_only_their_own_memory(
    member: Path, tmp_path: Path
) -> None:
    shared = _load(member)
    weights = [
        write_adapter(member, tmp_path / f"v{rank}", seed=rank, size=0.5, rank=rank)
        for rank in (2, 40, 3)
    ]
    versions = [shared.with_adapter(read_adapter(Path(one.adapter))) for one in weights]
    for number, (version, one) in enumerate(zip(versions, weights, strict=True)):
        merged = load_model(merge(member, one, tmp_path / f"merged{number}"))
        expected = merged.run([Span(0, 0, _TOKENS)], range(30))
        found = version.run([Span(number, 0, _TOKENS)], range(30))
        torch.testing.assert_close(found, expected, atol=2e-3, rtol=1e-3)
        single = version.run([Span(number, 29, _TOKENS[29:])], [0])
        torch.testing.assert_close(single, expected[29:], atol=2e-3, rtol=1e-3)
    plain = load_model(member)
    expected = plain.run([Span(0, 0, _TOKENS)], range(30))
    found = shared.run([Span(0, 0, _TOKENS)], range(30))
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)
    # They take turns in the buffers of a rank.
    again = shared.with_adapter(read_adapter(Path(weights[0].adapter)))
    assert _answer(again, _TOKENS).sampled == _answer(versions[0], _TOKENS).sampled
    assert _answer(versions[2], _TOKENS).sampled != _answer(versions[0], _TOKENS).sampled


def test_a_prefix_is_not_taken_from_another_version(member: Path, tmp_path: Path) -> None:
    shared = _load(member)
    weights = write_adapter(member, tmp_path / "v1", seed=1, size=0.8)
    version = shared.with_adapter(read_adapter(Path(weights.adapter)))
    fresh = _answer(version, _TOKENS)
    plain, adapted = Batch(shared), Batch(version)
    for batch, cached in ((plain, 0), (plain, 29), (adapted, 0), (adapted, 29)):
        job = Job(_TOKENS, 6, _GREEDY)
        batch.add(job)
        while not job.is_full:
            batch.step()
        batch.remove(job)
        assert job.cached_tokens == cached
    assert job.sampled == fresh.sampled


def test_an_adapter_of_another_model_is_refused(member: Path, tmp_path: Path) -> None:
    def widen(tensors: dict[str, torch.Tensor], config: dict[str, object]) -> None:
        name = next(name for name in tensors if name.endswith("q_proj.lora_B.weight"))
        tensors[name] = torch.cat((tensors[name], tensors[name]))

    shared = _load(member)
    weights = write_adapter(member, tmp_path / "v1", seed=1, size=0.5, change=widen)
    with pytest.raises(TrainingError, match="fits no weight"):
        shared.with_adapter(read_adapter(Path(weights.adapter)))

"""Serving on a GPU, with the same code run step by step on the processor: the numbers of the plain
forward pass, for requests that join and leave, with several adapters side by side.
"""

from pathlib import Path

import pytest
import torch

from benchmarks.random_models import FAMILY, write_member
from benchmarks.scoring import load_llama
from metaclaw.engine.attention import Span
from metaclaw.engine.batch import Batch, DrawnToken, Job, Sampler, draw
from metaclaw.engine.checkpoint import finish, map_tensors, read_shape
from metaclaw.engine.device_draw import draw_together
from metaclaw.engine.frames import SamplingOptions
from metaclaw.engine.shared_model import SharedModel
from metaclaw.errors import TrainingError
from tests.engine.small import merge, write_adapter
from tests.support.cases import each

_GREEDY = SamplingOptions(temperature=0.0)
_TOKENS = torch.randint(3, 64, (30,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.fixture(scope="module", params=FAMILY)
def member(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_member(request.param, tmp_path_factory.mktemp("member") / request.param)


def _load(folder: Path, slots: int = 3) -> SharedModel:
    return SharedModel(
        read_shape(folder), map_tensors(folder), slots, device="cpu", dtype=torch.float32
    )


def _answer(model: SharedModel, prompt: list[int], count: int = 6) -> Job:
    batch, job = Batch(model, 3), Job(prompt, count, _GREEDY)
    batch.add(job)
    while not job.is_full:
        batch.step()
    batch.remove(job)
    return job


def test_the_numbers_are_those_of_the_plain_pass_however_the_text_is_cut(member: Path) -> None:
    plain, shared = load_llama(member), _load(member)
    expected = plain.run(plain.new_cache(1), [Span(0, 0, _TOKENS)], range(30))
    cache = shared.new_cache(3)
    whole = shared.run(cache, [Span(1, 0, _TOKENS)], range(30)).clone()
    torch.testing.assert_close(whole, expected, atol=2e-4, rtol=1e-4)
    shared.run(cache, [Span(2, 0, _TOKENS[:20])], [19])
    one_by_one = [
        shared.run(cache, [Span(2, place, _TOKENS[place : place + 1])], [0]).clone()
        for place in range(20, 30)
    ]
    torch.testing.assert_close(torch.cat(one_by_one), expected[20:], atol=2e-4, rtol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_same_on_a_gpu_in_half_precision(member: Path) -> None:
    shape, tensors = read_shape(member), map_tensors(member)
    shared = SharedModel(shape, tensors, 3, device="cuda", dtype=torch.bfloat16)
    plain = load_llama(member)
    expected = plain.run(plain.new_cache(1), [Span(0, 0, _TOKENS)], range(30))
    cache = shared.new_cache(3)
    whole = shared.run(cache, [Span(2, 0, _TOKENS)], range(30)).cpu()
    shared.run(cache, [Span(1, 0, _TOKENS[:20])], [19])
    one_by_one = [
        shared.run(cache, [Span(1, place, _TOKENS[place : place + 1])], [0]).cpu()
        for place in range(20, 30)
    ]
    torch.testing.assert_close(whole, expected, atol=0.15, rtol=0.05)
    torch.testing.assert_close(torch.cat(one_by_one), expected[20:], atol=0.15, rtol=0.05)


def test_requests_share_a_pass_whatever_their_slots_and_lengths(member: Path) -> None:
    shared = _load(member)
    alone = [_answer(shared, _TOKENS[:length]) for length in (1, 9, 20)]
    batch = Batch(shared, 3)
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
    versions = [finish(shared.with_adapter(Path(one.adapter))) for one in weights]
    for number, (version, one) in enumerate(zip(versions, weights, strict=True)):
        merged = load_llama(merge(member, one, tmp_path / f"merged{number}"))
        expected = merged.run(merged.new_cache(1), [Span(0, 0, _TOKENS)], range(30))
        found = version.run(version.new_cache(3), [Span(number, 0, _TOKENS)], range(30))
        torch.testing.assert_close(found, expected, atol=2e-3, rtol=1e-3)
        single = version.run(version.new_cache(3), [Span(number, 29, _TOKENS[29:])], [0])
        torch.testing.assert_close(single, expected[29:], atol=2e-3, rtol=1e-3)
    plain = load_llama(member)
    expected = plain.run(plain.new_cache(1), [Span(0, 0, _TOKENS)], range(30))
    found = shared.run(shared.new_cache(3), [Span(0, 0, _TOKENS)], range(30))
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)
    capacity = shared.adapters.capacity
    finish(versions[0].dissolve())
    again = finish(shared.with_adapter(Path(weights[0].adapter)))
    assert shared.adapters.capacity == capacity
    assert _answer(again, _TOKENS).sampled == _answer(versions[0], _TOKENS).sampled


def test_a_prefix_is_not_taken_from_another_version(member: Path, tmp_path: Path) -> None:
    shared = _load(member)
    weights = write_adapter(member, tmp_path / "v1", seed=1, size=0.8)
    version = finish(shared.with_adapter(Path(weights.adapter)))
    fresh = _answer(version, _TOKENS)
    plain, adapted = Batch(shared, 3), Batch(version, 3)
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
        finish(shared.with_adapter(Path(weights.adapter)))


@each(
    "options",
    [
        {"temperature": 0.0},
        {},
        {"temperature": 0.6},
        {"temperature": 0.7, "top_p": 0.9},
        {"top_k": 5},
        {"top_k": 40, "top_p": 0.5},
        {"top_p": 0.0},
        {"frequency_penalty": 1.5, "presence_penalty": 0.5, "temperature": 0.0},
        {"frequency_penalty": 1.5, "top_p": 0.8, "top_logprobs": 3},
    ],
)
def test_a_batch_draws_what_each_row_would_draw_alone(options: dict[str, float]) -> None:
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(24, 5, 700, generator=generator) * 4.0
    chosen = [
        [Sampler(SamplingOptions(seed=seed, **options)) for seed in range(5)]  # type: ignore[arg-type]
        for _ in range(2)
    ]
    differing = 0
    for logits in rows:
        alone, together = draw(logits, chosen[0]), draw_together(logits, chosen[1])
        differing += sum(
            not _is_same(one, other) for one, other in zip(alone, together, strict=True)
        )
    # A number on the border between two tokens may fall to either side.
    assert differing <= 1


def test_different_options_draw_in_one_batch() -> None:
    generator = torch.Generator().manual_seed(5)
    kinds = [{"temperature": 0.0}, {}, {"top_p": 0.9}, {"top_k": 3}, {"presence_penalty": 1.0}]
    chosen = [
        [Sampler(SamplingOptions(seed=seed, **kind)) for seed, kind in enumerate(kinds)]  # type: ignore[arg-type]
        for _ in range(2)
    ]
    for _ in range(20):
        logits = torch.randn(5, 300, generator=generator) * 3.0
        for one, other in zip(
            draw(logits, chosen[0]), draw_together(logits, chosen[1]), strict=True
        ):
            assert _is_same(one, other)


def test_a_flat_distribution_is_searched_whole() -> None:
    logits = torch.zeros(1, 5000)
    found = {
        draw_together(logits, [Sampler(SamplingOptions(seed=seed, top_p=0.99))])[0].token
        for seed in range(40)
    }
    assert max(found) > 1000


def _is_same(one: DrawnToken, other: DrawnToken) -> bool:
    return (
        one.token == other.token
        and one.logprob == pytest.approx(other.logprob, abs=1e-4)
        and [token for token, _ in one.top] == [token for token, _ in other.top]
        and [value for _, value in one.top] == pytest.approx([v for _, v in other.top], abs=1e-4)
    )

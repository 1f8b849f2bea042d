"""Jobs join and leave between passes, wait for slots and share prefixes; each draws tokens with its
own options and seed.
"""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.scoring import score, with_cache
from metaclaw.engine.attention import Cache
from metaclaw.engine.batch import Batch, Job
from metaclaw.engine.checkpoint import Shape
from metaclaw.engine.drawing import DrawnToken, Sampler, draw
from metaclaw.engine.frames import SamplingOptions
from metaclaw.engine.served_model import CHUNK_TOKENS, ServedModel
from metaclaw.errors import EngineError
from tests.support.cases import each

_CHUNK = CHUNK_TOKENS["cpu"]
_GREEDY = SamplingOptions(temperature=0.0)


def _tokens(seed: int, count: int) -> list[int]:
    return torch.randint(
        17, 49_152, (count,), generator=torch.Generator().manual_seed(seed)
    ).tolist()


def _drain(batch: Batch) -> list[Job]:
    """Run to the end; the jobs in the order they finished."""
    finished = []
    for _ in range(200):
        for job, _ in batch.step():
            if job.is_full:
                batch.remove(job)
                finished.append(job)
        if batch.is_idle:
            return finished
    raise AssertionError("the batch does not come to an end")


def test_a_late_job_joins_the_running_ones_and_a_short_one_leaves_first(
    small_llama: ServedModel,
) -> None:
    batch = Batch(with_cache(small_llama, 4))
    long, short = Job(_tokens(1, 10), 8, _GREEDY), Job(_tokens(2, 10), 2, _GREEDY)
    batch.add(long)
    batch.step()
    batch.add(short)
    assert {id(job) for job, _ in batch.step()} == {id(long), id(short)}
    assert _drain(batch) == [short, long]


def test_a_long_prompt_does_not_stop_the_running_answers(small_llama: ServedModel) -> None:
    batch = Batch(with_cache(small_llama, 2))
    running = Job(_tokens(1, 5), 20, _GREEDY)
    batch.add(running)
    batch.step()
    assert not batch.is_reading
    batch.add(Job(_tokens(2, 3 * _CHUNK), 1, _GREEDY))
    drawn = [[job for job, _ in batch.step()] for _ in range(3) if batch.is_reading]
    assert all(running in jobs for jobs in drawn)
    assert [len(jobs) for jobs in drawn] == [1, 1, 2]


def test_more_jobs_than_slots_wait_and_are_served_in_order(small_llama: ServedModel) -> None:
    batch = Batch(with_cache(small_llama, 2))
    jobs = [Job(_tokens(seed, 4), 2, _GREEDY) for seed in range(5)]
    for job in jobs:
        batch.add(job)
    assert _drain(batch) == jobs


def test_a_removed_job_frees_its_slot_for_the_next_pass(small_llama: ServedModel) -> None:
    batch = Batch(with_cache(small_llama, 1))
    running, waiting, gone = (Job(_tokens(seed, 4), 50, _GREEDY) for seed in range(3))
    for job in (running, gone, waiting):
        batch.add(job)
    batch.step()
    batch.remove(gone)
    batch.remove(running)
    assert [job for job, _ in batch.step()] == [waiting]


def test_the_next_turn_of_a_conversation_reads_only_what_is_new_and_says_the_same(
    small_llama: ServedModel,
) -> None:
    first = Job(_tokens(1, 60), 5, _GREEDY)
    batch = Batch(with_cache(small_llama, 3))
    batch.add(first)
    _drain(batch)
    prompt = [*first.prompt, *first.sampled, *_tokens(2, 10)]
    warm, cold = Job(prompt, 5, _GREEDY), Job(prompt, 5, _GREEDY)
    batch.add(warm)
    _drain(batch)
    fresh = Batch(with_cache(small_llama, 1))
    fresh.add(cold)
    _drain(fresh)
    assert (warm.cached_tokens, cold.cached_tokens) == (64, 0)
    assert warm.sampled == cold.sampled
    assert warm.logprobs == pytest.approx(cold.logprobs, abs=1e-4)


def test_two_at_once_with_the_same_beginning_share_it(small_llama: ServedModel) -> None:
    system = _tokens(1, _CHUNK)
    one, two = (Job([*system, *_tokens(seed, 9)], 4, _GREEDY) for seed in (2, 3))
    batch = Batch(with_cache(small_llama, 2))
    for job in (one, two):
        batch.add(job)
    _drain(batch)
    assert two.cached_tokens == _CHUNK
    assert two.logprobs == pytest.approx(score(small_llama, two.prompt, two.sampled), abs=1e-4)


def test_a_job_beyond_the_context_is_refused(small_llama: ServedModel) -> None:
    with pytest.raises(ValueError, match="4096"):
        Batch(with_cache(small_llama, 1)).add(Job([5] * 4094, 3, _GREEDY))


def _tiny_cache(slots: int) -> Cache:
    return Cache(Shape(1, 4, 1, 1, 4, 10, 64, 1e-5, 1e4, frozenset()), slots, 64)


def test_a_cache_beyond_all_memory_says_what_to_change() -> None:
    with pytest.raises(EngineError, match="fewer slots"):
        _tiny_cache(1 << 50)


def test_the_longest_unused_slot_is_taken_when_nothing_is_shared() -> None:
    cache = _tiny_cache(3)
    slots = [cache.acquire([number] * 20) for number in range(3)]
    for slot in (slots[1], slots[0], slots[2]):
        slot.tokens = [slot.index] * 20
        cache.release(slot)
    assert cache.acquire([9] * 20) is slots[1]


def test_a_shared_beginning_is_copied_so_that_the_other_conversation_keeps_its_own() -> None:
    cache = _tiny_cache(2)
    first = cache.acquire(list(range(40)))
    first.tokens = list(range(40))
    cache.rows[0][first.index * 64 : first.index * 64 + 40] = torch.arange(40.0).unsqueeze(1)
    cache.release(first)
    second = cache.acquire([*range(20), 99, 98])
    assert second is not first
    assert second.tokens == list(range(20))
    assert torch.equal(
        cache.rows[0][second.index * 64 : second.index * 64 + 20, 0], torch.arange(20.0)
    )
    assert cache.acquire([*range(40), 50]) is first
    assert first.tokens == list(range(40))
    assert not cache.has_room


_LOGITS = st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=12)


def _drawn(logits: list[float], options: SamplingOptions, count: int) -> Counter[int]:
    sampler = Sampler(options)
    row = torch.tensor([logits])
    return Counter(draw(row, [sampler])[0].token for _ in range(count))


@given(_LOGITS, st.floats(0.0, 2.0), st.integers(0, 2**63 - 1))
def test_the_logprob_is_that_of_the_raw_distribution_whatever_was_drawn_from(
    logits: list[float], temperature: float, seed: int
) -> None:
    options = SamplingOptions(temperature=temperature, top_k=2, presence_penalty=1.0, seed=seed)
    [drawn] = draw(torch.tensor([logits]), [Sampler(options)])
    assert drawn.logprob == pytest.approx(
        float(torch.tensor(logits).log_softmax(0)[drawn.token]), abs=1e-6
    )
    assert drawn.logprob <= 0.0


@given(_LOGITS)
def test_temperature_zero_takes_the_likeliest(logits: list[float]) -> None:
    [drawn] = draw(torch.tensor([logits]), [Sampler(SamplingOptions(temperature=0.0))])
    assert logits[drawn.token] == max(logits)


@given(_LOGITS, st.integers(1, 12), st.integers(0, 1000))
def test_top_k_draws_only_from_the_k_likeliest(logits: list[float], top_k: int, seed: int) -> None:
    [drawn] = draw(torch.tensor([logits]), [Sampler(SamplingOptions(top_k=top_k, seed=seed))])
    assert sum(value > logits[drawn.token] for value in logits) < top_k


@given(_LOGITS, st.floats(0.0, 0.999), st.integers(0, 1000))
def test_top_p_draws_only_from_the_smallest_set_that_holds_p(
    logits: list[float], top_p: float, seed: int
) -> None:
    [drawn] = draw(torch.tensor([logits]), [Sampler(SamplingOptions(top_p=top_p, seed=seed))])
    probabilities = torch.tensor(logits).softmax(0).double()
    likelier = float(probabilities[probabilities > probabilities[drawn.token]].sum())
    assert likelier < top_p + 1e-6 or drawn.token == int(probabilities.argmax())


def test_a_wide_nucleus_is_searched_in_the_whole_vocabulary() -> None:
    flat = torch.zeros(1, 5000)
    tokens = {
        draw(flat, [Sampler(SamplingOptions(top_p=0.9, seed=seed))])[0].token for seed in range(300)
    }
    assert len(tokens) > 250


def test_tokens_come_as_often_as_the_distribution_says() -> None:
    logits = [0.0, 1.0, 2.0, -1.0]
    for temperature in (1.0, 0.5):
        expected = (torch.tensor(logits) / temperature).softmax(0)
        counts = _drawn(logits, SamplingOptions(temperature=temperature, seed=11), 4000)
        for token, probability in enumerate(expected.tolist()):
            # Four standard deviations; the seed is fixed, so this either always passes or never.
            assert (
                abs(counts[token] / 4000 - probability)
                < 4 * (probability * (1 - probability) / 4000) ** 0.5
            )


@given(
    st.integers(0, 2**63 - 1),
    st.integers(0, 3),
    st.lists(st.sampled_from([0.0, 0.7, 1.3]), min_size=3, max_size=3),
)
def test_a_seed_decides_the_draws_whoever_else_is_in_the_batch(
    seed: int, place: int, others: list[float]
) -> None:
    torch.manual_seed(5)
    logits = torch.randn(20, 50)
    alone, crowded = Sampler(SamplingOptions(seed=seed)), Sampler(SamplingOptions(seed=seed))
    company = [Sampler(SamplingOptions(temperature=temperature)) for temperature in others]
    for row in logits:
        samplers = [*company[:place], crowded, *company[place:]]
        rows = torch.randn(4, 50)
        rows[place] = row
        assert draw(rows, samplers)[place] == draw(row.unsqueeze(0), [alone])[0]


def test_penalties_make_what_was_said_less_likely() -> None:
    logits = [5.0, 4.0, 3.0]
    assert _drawn(logits, SamplingOptions(temperature=0.0), 3) == {0: 3}
    assert _drawn(logits, SamplingOptions(temperature=0.0, presence_penalty=1.5), 2) == {0: 1, 1: 1}
    assert set(_drawn(logits, SamplingOptions(temperature=0.0, frequency_penalty=1.5), 6)) == {
        0,
        1,
        2,
    }


def test_the_likeliest_alternatives_come_in_order() -> None:
    [drawn] = draw(
        torch.tensor([[1.0, 3.0, 2.0]]), [Sampler(SamplingOptions(temperature=0.0, top_logprobs=2))]
    )
    assert [token for token, _ in drawn.top] == [1, 2]
    assert drawn.top[0][1] == drawn.logprob


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
        alone = [
            draw(row.unsqueeze(0), [one])[0] for row, one in zip(logits, chosen[0], strict=True)
        ]
        together = draw(logits, chosen[1])
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
        for row, sampler, together in zip(logits, chosen[0], draw(logits, chosen[1]), strict=True):
            assert _is_same(draw(row.unsqueeze(0), [sampler])[0], together)


def _is_same(one: DrawnToken, other: DrawnToken) -> bool:
    return (
        one.token == other.token
        and one.logprob == pytest.approx(other.logprob, abs=1e-4)
        and [token for token, _ in one.top] == [token for token, _ in other.top]
        and [value for _, value in one.top] == pytest.approx([v for _, v in other.top], abs=1e-4)
    )

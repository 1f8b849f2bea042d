"""Jobs join and leave between passes, wait their turn, and inherit what others have already computed."""

import pytest
import torch

from metaclaw.engine.attention import Cache
from metaclaw.engine.batch import Batch, Job
from metaclaw.engine.checkpoint import Shape
from metaclaw.engine.frames import SamplingOptions
from metaclaw.engine.llama import CHUNK_TOKENS, Llama
from metaclaw.errors import EngineError

_GREEDY = SamplingOptions(temperature=0.0)


def _tokens(seed: int, count: int) -> list[int]:
    return torch.randint(17, 49_152, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


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


def test_a_late_job_joins_the_running_ones_and_a_short_one_leaves_first(llama: Llama) -> None:
    batch = Batch(llama, 4)
    long, short = Job(_tokens(1, 10), 8, _GREEDY), Job(_tokens(2, 10), 2, _GREEDY)
    batch.add(long)
    batch.step()
    batch.add(short)
    assert {id(job) for job, _ in batch.step()} == {id(long), id(short)}
    assert _drain(batch) == [short, long]


def test_a_long_prompt_does_not_stop_the_running_answers(llama: Llama) -> None:
    batch = Batch(llama, 2)
    running = Job(_tokens(1, 5), 20, _GREEDY)
    batch.add(running)
    batch.step()
    assert not batch.is_reading
    batch.add(Job(_tokens(2, 3 * CHUNK_TOKENS), 1, _GREEDY))
    drawn = [[job for job, _ in batch.step()] for _ in range(3) if batch.is_reading]
    assert all(running in jobs for jobs in drawn)
    assert [len(jobs) for jobs in drawn] == [1, 1, 2]


def test_more_jobs_than_slots_wait_and_are_served_in_order(llama: Llama) -> None:
    batch = Batch(llama, 2)
    jobs = [Job(_tokens(seed, 4), 2, _GREEDY) for seed in range(5)]
    for job in jobs:
        batch.add(job)
    assert _drain(batch) == jobs


def test_a_removed_job_frees_its_slot_for_the_next_pass(llama: Llama) -> None:
    batch = Batch(llama, 1)
    running, waiting, gone = (Job(_tokens(seed, 4), 50, _GREEDY) for seed in range(3))
    for job in (running, gone, waiting):
        batch.add(job)
    batch.step()
    batch.remove(gone)
    batch.remove(running)
    assert [job for job, _ in batch.step()] == [waiting]


def test_the_next_turn_of_a_conversation_reads_only_what_is_new_and_says_the_same(llama: Llama) -> None:
    first = Job(_tokens(1, 60), 5, _GREEDY)
    batch = Batch(llama, 3)
    batch.add(first)
    _drain(batch)
    prompt = [*first.prompt, *first.sampled, *_tokens(2, 10)]
    warm, cold = Job(prompt, 5, _GREEDY), Job(prompt, 5, _GREEDY)
    batch.add(warm)
    _drain(batch)
    fresh = Batch(llama, 1)
    fresh.add(cold)
    _drain(fresh)
    assert (warm.cached_tokens, cold.cached_tokens) == (64, 0)
    assert warm.sampled == cold.sampled
    assert warm.logprobs == pytest.approx(cold.logprobs, abs=1e-4)


def test_two_at_once_with_the_same_beginning_share_it(llama: Llama) -> None:
    system = _tokens(1, CHUNK_TOKENS)
    one, two = (Job([*system, *_tokens(seed, 9)], 4, _GREEDY) for seed in (2, 3))
    batch = Batch(llama, 2)
    for job in (one, two):
        batch.add(job)
    _drain(batch)
    assert two.cached_tokens == CHUNK_TOKENS
    assert two.logprobs == pytest.approx(llama.score(two.prompt, two.sampled), abs=1e-4)


def test_a_job_beyond_the_context_is_refused(llama: Llama) -> None:
    with pytest.raises(ValueError, match="8192"):
        Batch(llama, 1).add(Job([5] * 8190, 3, _GREEDY))


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
    assert torch.equal(cache.rows[0][second.index * 64 : second.index * 64 + 20, 0], torch.arange(20.0))
    assert cache.acquire([*range(40), 50]) is first
    assert first.tokens == list(range(40))
    assert not cache.has_room

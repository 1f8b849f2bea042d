"""A run on a service: what is durable, what a failure leaves behind, and which sampler answers."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from metaclaw.domain.policy import Weights
from metaclaw.domain.training import Drawing
from metaclaw.errors import TrainingError
from metaclaw.ports import RunPlan
from metaclaw.training.backends.remote import RemoteBackend, RunMark
from metaclaw.training.backends.service import DrawnSequence, SampleRequest, ServiceSampler
from metaclaw.training.journal import Journal
from tests.support.classroom import Classroom, PracticeSampler, PracticeService, PracticeTrainee
from tests.support.contract import ADAM, DRAWING, PLAIN, PROMPTS, datum, draw_one, step, total
from tests.support.softmax import END, decode

pytestmark = pytest.mark.anyio


def make(service: PracticeService) -> RemoteBackend:
    return RemoteBackend(service, decode, end_ids=[END])


def plan(folder: Path, start: Weights | None = None) -> RunPlan:
    return RunPlan("run", start, 4, 0, folder / "run")


@pytest.mark.parametrize("at", ["teach", "step", "save"])
async def test_a_step_that_fails_anywhere_is_repeated_from_the_one_before(
    tmp_path: Path, at: str
) -> None:
    room = Classroom()
    backend = make(PracticeService(room))
    await backend.open(plan(tmp_path))
    rollout = await draw_one(backend)
    await step(backend, [datum(rollout, 1.0)])
    then = await total(backend, rollout)
    await backend.accumulate([datum(rollout, 1.0)], PLAIN)
    room.fails_at = at
    with pytest.raises(TrainingError, match="on purpose"):
        await backend.apply(ADAM, 6.0)
    with pytest.raises(TrainingError, match="no run is open"):
        await backend.apply(ADAM, 6.0)
    progress = await backend.open(plan(tmp_path))
    assert (progress.steps, progress.pieces) == (1, 0)
    assert await total(backend, rollout) == pytest.approx(then)
    await step(backend, [datum(rollout, 1.0)])
    assert (await backend.open(plan(tmp_path))).steps == 2
    await backend.aclose()
    assert not room.models


async def test_a_step_whose_mark_cannot_be_written_did_not_happen(tmp_path: Path) -> None:
    backend = make(PracticeService(Classroom()))
    await backend.open(plan(tmp_path))
    rollout = await draw_one(backend)
    await backend.accumulate([datum(rollout, 1.0)], PLAIN)
    (tmp_path / "run").write_text("a file where the run's folder should be")
    with pytest.raises(TrainingError, match="cannot keep"):
        await backend.apply(ADAM, 6.0)
    with pytest.raises(TrainingError, match="no run is open"):
        await backend.keep("nothing")


class Stuck(PracticeService):
    """A service whose optimiser steps never end."""

    async def create(self, rank: int, seed: int) -> PracticeTrainee:
        trainee = await super().create(rank, seed)

        async def never() -> float | None:
            await asyncio.Event().wait()
            return None

        async def stuck(_: object) -> "asyncio.Future[float | None]":
            return asyncio.ensure_future(never())

        trainee.step = stuck  # type: ignore[method-assign, assignment]
        return trainee


async def test_a_step_that_is_cancelled_leaves_the_run_and_frees_its_place(tmp_path: Path) -> None:
    room = Classroom()
    backend = make(Stuck(room))
    await backend.open(plan(tmp_path))
    rollout = await draw_one(backend)
    await backend.accumulate([datum(rollout, 1.0)], PLAIN)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await backend.apply(ADAM, 6.0)
    with pytest.raises(TrainingError, match="no run is open"):
        await draw_one(backend)
    await backend.aclose()
    assert not room.models


async def test_a_step_of_nothing_or_divided_by_nothing_is_refused(tmp_path: Path) -> None:
    backend = make(PracticeService(Classroom()))
    await backend.open(plan(tmp_path))
    with pytest.raises(TrainingError, match="cannot apply 0 pieces"):
        await backend.apply(ADAM, 6.0)
    await backend.accumulate([datum(await draw_one(backend), 1.0)], PLAIN)
    for normaliser in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(TrainingError, match="cannot apply 1 pieces"):
            await backend.apply(ADAM, normaliser)
    assert (await backend.apply(ADAM, 6.0)).step == 1


async def test_pieces_are_sent_one_after_another_and_the_step_right_behind_the_last(
    tmp_path: Path,
) -> None:
    room = Classroom()
    backend = make(PracticeService(room))
    await backend.open(plan(tmp_path))
    rollout = await draw_one(backend)
    room.log.clear()
    for _ in range(3):
        await backend.accumulate([datum(rollout, 1.0)], PLAIN)
    assert not room.log
    await backend.apply(ADAM, 18.0)
    assert room.log == ["teach", "teach", "teach", "step", "save"]


async def test_the_present_weights_are_published_once_for_each_step(tmp_path: Path) -> None:
    room = Classroom()
    backend = make(PracticeService(room))
    await backend.open(plan(tmp_path))
    await asyncio.gather(*(draw_one(backend) for _ in range(3)))
    assert room.log.count("publish") == 1
    await step(backend, [datum(await draw_one(backend), 1.0)])
    await draw_one(backend)
    await draw_one(backend)
    assert room.log.count("publish") == 2


async def test_a_run_whose_mark_cannot_be_read_begins_anew(tmp_path: Path) -> None:
    backend = make(PracticeService(Classroom()))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "service.msgpack").write_text("{")
    assert (await backend.open(plan(tmp_path))).steps == 0


async def test_a_mark_of_another_run_or_service_is_not_gone_on_with(tmp_path: Path) -> None:
    backend = make(PracticeService(Classroom()))
    await Journal(tmp_path / "run").keep(
        "service", RunMark("another service", "run", 7, "state://gone")
    )
    assert (await backend.open(plan(tmp_path))).steps == 0


class Counting(PracticeService):
    """Remembers the samplers of kept weights it has made."""

    def __init__(self, room: Classroom) -> None:
        super().__init__(room)
        self.made: list[PracticeSampler] = []

    async def kept(self, weights: Weights) -> ServiceSampler:
        self.made.append(PracticeSampler(self.room, weights.adapter))
        return self.made[-1]


async def test_samplers_of_kept_weights_are_remembered_given_back_and_few(tmp_path: Path) -> None:
    service = Counting(Classroom())
    backend = make(service)
    await backend.open(plan(tmp_path))
    kept = [await backend.keep(f"version {number}") for number in range(5)]
    for weights in (*kept[:4], kept[0]):
        await backend.sample(PROMPTS, DRAWING, weights)
    assert len(service.made) == 4
    await backend.sample(PROMPTS, DRAWING, kept[4])
    assert [sampler.is_closed for sampler in service.made] == [False, True, False, False, False]
    await backend.discard(kept[4])
    assert service.made[4].is_closed
    await backend.aclose()
    assert all(sampler.is_closed for sampler in service.made)


class Narrow(Counting):
    """A service with room for the samplers of two kept weights."""

    async def kept(self, weights: Weights) -> ServiceSampler:
        if sum(not sampler.is_closed for sampler in self.made) == 2:
            raise TrainingError("Maximum number of LoRA adapters reached")
        return await super().kept(weights)


async def test_on_a_service_with_room_for_few_models_other_samplers_give_way(
    tmp_path: Path,
) -> None:
    service = Narrow(Classroom())
    backend = make(service)
    await backend.open(plan(tmp_path))
    for weights in [await backend.keep(f"version {number}") for number in range(4)]:
        await backend.sample(PROMPTS, DRAWING, weights)
    assert [sampler.is_closed for sampler in service.made] == [True, True, False, False]
    await backend.aclose()


class Odd(PracticeService):
    """Samplers that answer as they are told."""

    def __init__(self, drawn: Sequence[DrawnSequence], *, is_raw: bool = True) -> None:
        super().__init__(Classroom())
        self._drawn = list(drawn)
        self._is_raw = is_raw

    async def base(self) -> ServiceSampler:
        drawn = self._drawn

        class Told(PracticeSampler):
            is_raw = self._is_raw

            async def sample(self, request: SampleRequest) -> list[DrawnSequence]:
                return drawn

        return Told(self.room, None)


async def test_a_rounding_above_zero_is_zero_and_more_is_an_error(tmp_path: Path) -> None:
    drawing = Drawing(count=1, max_tokens=2)
    [[rollout]] = await make(Odd([DrawnSequence((65, END), (-1.0, 1e-6), True)])).sample_base(
        [(1,)], drawing
    )
    assert rollout.logprobs_T == (-1.0, 0.0)
    assert rollout.text == "A"
    for wrong in (
        DrawnSequence((65,), (0.5,), True),
        DrawnSequence((), (), True),
        DrawnSequence((65, 66), (-1.0,), True),
    ):
        with pytest.raises(TrainingError, match="no rollout"):
            await make(Odd([wrong])).sample_base([(1,)], drawing)


async def test_too_few_rollouts_are_an_error() -> None:
    with pytest.raises(TrainingError, match="drew 1 rollouts where 3"):
        await make(Odd([DrawnSequence((65,), (-1.0,), False)])).sample_base(
            [(1,)], Drawing(count=3, max_tokens=2)
        )


async def test_logprobs_of_another_temperature_are_asked_for_anew() -> None:
    told = DrawnSequence((65,), (-0.1,), False)
    tempered = Drawing(count=1, max_tokens=2, temperature=0.5)
    [[rollout]] = await make(Odd([told], is_raw=False)).sample_base([(1,)], tempered)
    assert rollout.logprobs_T == pytest.approx((-4.852,), abs=1e-3)
    [[rollout]] = await make(Odd([told], is_raw=False)).sample_base(
        [(1,)], Drawing(count=1, max_tokens=2)
    )
    assert rollout.logprobs_T == (-0.1,)


async def test_prompts_of_one_call_have_seeds_of_their_own() -> None:
    seen: list[int | None] = []

    class Listening(PracticeService):
        async def base(self) -> ServiceSampler:
            class Ear(PracticeSampler):
                async def sample(self, request: SampleRequest) -> list[DrawnSequence]:
                    seen.append(request.seed)
                    return await super().sample(request)

            return Ear(self.room, None)

    await make(Listening(Classroom())).sample_base([(65,)] * 50, DRAWING)
    assert len(set(seen)) == 50
    assert all(seed is not None and 0 <= seed < 2**30 for seed in seen)


async def test_a_sampler_that_failed_is_made_anew_for_the_next_request(tmp_path: Path) -> None:
    room = Classroom()
    service = Counting(room)
    backend = make(service)
    await backend.open(plan(tmp_path))
    kept = await backend.keep("version 1")
    asked = SampleRequest(PROMPTS[0], 1, 4, 1.0, 3)
    first = await backend.answer(asked, kept)
    room.fails_at = "sample"
    with pytest.raises(TrainingError, match="on purpose"):
        await backend.answer(asked, kept)
    assert await backend.answer(asked, kept) == first
    await backend.aclose()
    assert [sampler.is_closed for sampler in service.made] == [True, True]


@pytest.mark.parametrize("weights", ["the base", "the run"])
async def test_samplers_of_the_base_and_of_the_run_are_made_anew_after_a_failure(
    tmp_path: Path, weights: str
) -> None:
    room = Classroom()
    backend = make(PracticeService(room))
    await backend.open(plan(tmp_path))
    draw = backend.sample if weights == "the run" else backend.sample_base
    first = await draw(PROMPTS, DRAWING)
    room.fails_at = "sample"
    with pytest.raises(TrainingError, match="on purpose"):
        await draw(PROMPTS, DRAWING)
    assert await draw(PROMPTS, DRAWING) == first

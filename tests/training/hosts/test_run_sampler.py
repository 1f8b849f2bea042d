"""A run whose rollouts a server draws: a fake of vLLM with the toy backend's weights, over HTTP."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from metaclaw.domain.training import Adam, Drawing, Loss, Rollout
from metaclaw.engine import TrainingPause, Vocabulary
from metaclaw.errors import TrainingError
from metaclaw.ports import RunPlan
from metaclaw.training.backends.service import SampleRequest
from metaclaw.training.drawn_elsewhere import engine_gap, engine_weights
from metaclaw.training.hosts.adapter_server import HostSettings, TokenServer
from metaclaw.training.hosts.run_sampler import PausedServer, RolloutServer, RunSampler
from metaclaw.training.hosts.vllm import VllmRoutes
from metaclaw.training.journal import Journal
from metaclaw.training.training_turns import TurnCount
from metaclaw.upstream import HttpEndpoint
from tests.support.contract import PROMPTS, datum
from tests.support.lora_server import FakeVllm
from tests.support.softmax import END, decode
from tests.support.toy_backend import ToyBackend
from tests.training.stage import CutError, Stage

pytestmark = pytest.mark.anyio

DRAWING = Drawing(count=4, max_tokens=6, seed=7)
TOY = cast(Vocabulary, SimpleNamespace(decode=decode, end_ids=frozenset([END])))


@pytest.fixture
def fake() -> Iterator[FakeVllm]:
    running = FakeVllm()
    yield running
    running.stop()


@pytest.fixture
async def server(fake: FakeVllm) -> AsyncIterator[TokenServer]:
    endpoint = HttpEndpoint("gpu", "openai", f"{fake.url}/v1")
    settings = HostSettings(endpoint.at_root(), "toy", frozenset, lambda: TOY)
    yield TokenServer(settings, VllmRoutes("toy", lambda: TOY.end_ids))
    await endpoint.aclose()


async def opened(folder: Path, server: RolloutServer | None) -> RunSampler:
    backend = ToyBackend(folder / "policies")
    plan = RunPlan("batch-12", None, 4, 1, folder / "runs" / "000012")
    await backend.open(plan)
    journal = Journal(plan.folder / "drawn")
    return RunSampler(plan=plan, backend=backend, journal=journal, server=server)


async def step(sampler: RunSampler, rollout: Rollout) -> None:
    await sampler.backend.accumulate([datum(rollout, 1.0)], Loss())
    await sampler.backend.apply(Adam(learning_rate=0.5), 6.0)


def names(folder: Path) -> list[str]:
    return sorted(path.stem for path in (folder / "policies").glob("*"))


async def test_each_step_is_drawn_from_weights_of_its_own_name_and_scored_by_the_trainer(
    fake: FakeVllm, server: TokenServer, tmp_path: Path
) -> None:
    sampler = await opened(tmp_path, server)
    fake.drift = 0.01
    for number in range(3):
        drawn = await sampler.sample(PROMPTS, DRAWING, number)
        await sampler.sample(PROMPTS, DRAWING, number)
        assert list(fake.adapters) == [f"policy-run-000012-step-{number:03d}"] == names(tmp_path)
        first = drawn[0][0]
        [scores] = await sampler.backend.score([(PROMPTS[0], first.tokens_T)])
        assert first.logprobs_T == scores
        assert first.drawn_logprobs_T == pytest.approx([score + 0.01 for score in scores])
        await step(sampler, first)
    assert sampler.notice is None
    await sampler.aclose()
    assert not fake.adapters
    assert not names(tmp_path)


async def test_log_probabilities_that_are_far_apart_make_the_trainer_draw_to_the_end_of_the_run(
    fake: FakeVllm, server: TokenServer, tmp_path: Path
) -> None:
    sampler = await opened(tmp_path, server)
    fake.drift = 0.6
    drawn = await sampler.sample(PROMPTS, DRAWING, 0)
    assert drawn == await sampler.backend.sample(PROMPTS, DRAWING)
    assert sampler.notice is not None
    assert "gpu are too far from the trainer's (0.6 nats a token on average" in sampler.notice
    assert not fake.adapters
    asked, fake.drift = fake.drawn, 0.0
    again = await opened(tmp_path, server)
    await again.sample(PROMPTS, DRAWING, 1)
    assert again.notice == sampler.notice
    assert fake.drawn == asked


async def test_a_server_that_goes_away_is_asked_again_in_the_next_step(
    fake: FakeVllm, server: TokenServer, tmp_path: Path
) -> None:
    sampler = await opened(tmp_path, server)
    await sampler.sample(PROMPTS, DRAWING, 0)
    fake.adapters.clear()  # it was started again, and knows no adapters
    drawn = await sampler.sample(PROMPTS, DRAWING, 0)
    assert drawn[0][0].drawn_logprobs_T is None
    assert "the trainer draws until the next step: gpu finished 0 answers" in (sampler.notice or "")
    asked = fake.drawn
    await sampler.sample(PROMPTS, DRAWING, 0)
    assert fake.drawn == asked
    drawn = await sampler.sample(PROMPTS, DRAWING, 1)
    assert drawn[0][0].drawn_logprobs_T is not None
    assert not sampler.notice
    await sampler.aclose()


async def test_what_a_killed_program_left_behind_is_removed(
    fake: FakeVllm, server: TokenServer, tmp_path: Path
) -> None:
    killed = await opened(tmp_path, server)
    await killed.sample(PROMPTS, DRAWING, 0)
    sampler = await opened(tmp_path, server)
    await sampler.sample(PROMPTS, DRAWING, 1)
    assert names(tmp_path) == ["policy-run-000012-step-001"]
    await sampler.aclose()


class Slow:
    """A server that draws when it is told to."""

    name = "slow"

    def __init__(self) -> None:
        self.asked = 0
        self.goes_on = asyncio.Event()

    async def load(self, name: str, folder: Path) -> None:
        return

    async def unload(self, name: str) -> None:
        return

    async def rollouts(self, name: str, request: SampleRequest) -> list[Rollout]:
        self.asked += 1
        await self.goes_on.wait()
        return [Rollout((65, END), (-1.0, -1.0), "A", is_whole=True)]


async def test_while_a_request_is_answered_nothing_is_drawn_for_training() -> None:
    pause, slow = TrainingPause(), Slow()
    server = PausedServer(slow, pause)
    async with asyncio.timeout(5):
        drawing = asyncio.create_task(server.rollouts("any", SampleRequest((1,), 1, 2, 1.0, 0)))
        while not slow.asked:
            await asyncio.sleep(0)
        pause.hold("an answer")
        slow.goes_on.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert slow.asked == 1
        assert not drawing.done()
        pause.release("an answer")
        assert len(await drawing) == 1
    assert slow.asked == 2


async def test_a_caller_that_gives_up_ends_the_drawing() -> None:
    server = PausedServer(Slow(), TrainingPause())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await server.rollouts("any", SampleRequest((1,), 1, 2, 1.0, 0))
    assert not server._running


def rollout(trainer: Sequence[float], engine: Sequence[float] | None) -> Rollout:
    tokens = tuple(range(len(trainer)))
    plain = Rollout(tokens, tuple(trainer), "", is_whole=False)
    return replace(plain, drawn_logprobs_T=None if engine is None else tuple(engine))


def test_small_differences_are_corrected_by_weights_that_are_at_most_two() -> None:
    drawn = rollout([-1.0, -1.0, -1.0], [-1.0, -1.1, -3.0])
    assert engine_weights(drawn) == pytest.approx((1.0, 1.1052, 2.0), abs=1e-4)
    assert engine_weights(rollout([-1.0], None)) == (1.0,)
    gap = engine_gap([rollout([-1.0, -1.0], [-1.1, -0.9]), rollout([-2.0], None)])
    assert gap is not None
    assert gap.difference == pytest.approx(0.1)
    assert gap.kl == pytest.approx(0.005, abs=1e-4)
    assert gap.is_small
    assert engine_gap([rollout([-1.0], None)]) is None


async def test_a_version_is_trained_on_what_the_server_drew_and_says_so(
    fake: FakeVllm, server: TokenServer, tmp_path: Path
) -> None:
    fake.drift, fake.ends_all = 0.01, True
    stage = Stage(tmp_path, server=server)
    stage.talk(40)
    await stage.slow.once(TurnCount(8))
    (version,) = stage.policies.versions()
    assert version.report is not None
    assert version.report.drawn_by is not None
    assert version.report.drawn_by.startswith("gpu in 10 of 10 steps; its log-probabilities differ")
    assert await stage.share_with_stars(version.weights) > 0.5
    assert not fake.adapters
    assert not list((tmp_path / "policies").glob("policy-run-*"))


async def test_a_run_that_was_cut_off_goes_on_with_what_was_drawn_and_comes_out_the_same(
    fake: FakeVllm, server: TokenServer, tmp_path: Path
) -> None:
    fake.ends_all = True
    versions = []
    for name, cuts in (("whole", []), ("cut", [30, 25, 20])):
        (tmp_path / name).mkdir()
        stage = Stage(tmp_path / name, server=server)
        stage.talk(40)
        for at in cuts:
            stage.backend.cut_at = stage.backend.calls + at
            with pytest.raises(CutError):
                await stage.slow.once(TurnCount(8))
            fake.adapters.clear()  # the server was started again, too
            stage.build()
        while not stage.policies.versions():
            await stage.slow.once(TurnCount(8))
        (version,) = stage.policies.versions()
        versions.append(await stage.share_with_stars(version.weights))
    assert versions[0] == versions[1]


async def test_a_server_that_refuses_the_weights_is_told_of(
    fake: FakeVllm, server: TokenServer, tmp_path: Path
) -> None:
    fake.fails = "rank 16 is greater than max_lora_rank 8"
    sampler = await opened(tmp_path, server)
    await sampler.sample(PROMPTS, DRAWING, 0)
    assert sampler.notice is not None
    assert "max_lora_rank 8" in sampler.notice
    with pytest.raises(TrainingError, match="max_lora_rank"):
        await server.load("policy-1", tmp_path)

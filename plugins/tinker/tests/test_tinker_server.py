"""Tinker's SDK against a real server: what only a real one shows. Runs where SDK and server are
(`make test-tinker`).
"""

import importlib.util
import time
from pathlib import Path

import pytest

from metaclaw.domain.chat import ChatRequest, End, Message, Role, Sampling, Text, Wire
from metaclaw.engine.vocabulary import Vocabulary
from metaclaw.errors import TrainingError, UpstreamError
from metaclaw.ports import RunPlan
from metaclaw.training.backends.remote import RemoteBackend
from metaclaw.training.backends.sdk import Waits
from metaclaw.training.hosts.service_host import ServiceHost
from metaclaw.training.hosts.token_model import TokenModel
from plugins.tinker.tests.conftest import relay_to, tinker_backend
from tests.support.contract import ADAM, DRAWING, PLAIN, PROMPTS, datum, draw_one, step, total
from tests.support.relay import Relay
from tests.support.skyrl import SkyRL

pytestmark = pytest.mark.anyio
needs_sdk = pytest.mark.of_target("test-tinker", importlib.util.find_spec("tinker") is not None)

HELLO = ChatRequest(
    Wire.CHAT, "tiny", (Message(Role.USER, (Text("Hi"),)),), sampling=Sampling(max_tokens=6, seed=3)
)


def make(model: Path, url: str, waits: Waits | None = None) -> RemoteBackend:
    return tinker_backend("tinker", model, url, waits=waits)


def plan(folder: Path, name: str = "run") -> RunPlan:
    return RunPlan(name, None, 4, 1, folder / name)


@needs_sdk
async def test_a_trained_version_is_served_with_exact_tokens(
    server: SkyRL, relay: Relay, tmp_path: Path
) -> None:
    backend = make(server.model, relay.url)
    await backend.open(plan(tmp_path))
    rollout = await draw_one(backend)
    for _ in range(2):
        await step(backend, [datum(rollout, 1.0)])
    kept = await backend.keep("version 1")
    host = ServiceHost(backend, PROMPTS[0])
    model = TokenModel(host, lambda: Vocabulary(server.model), "tiny")
    await host.load(1, kept)
    answers = {}
    for version in (0, 1):
        [end] = [delta async for delta in model.generate(HELLO, version) if isinstance(delta, End)]
        assert end.tokens is not None
        answers[version] = end.tokens
    [scores] = await backend.score([(answers[1].prompt_ids, answers[1].sampled_ids)], kept)
    assert scores == pytest.approx(answers[1].logprobs, abs=2e-3)
    [others] = await backend.score_base([(answers[1].prompt_ids, answers[1].sampled_ids)])
    assert others != pytest.approx(answers[1].logprobs, abs=2e-3)
    await host.unload(1)
    await backend.aclose()


@needs_sdk
async def test_places_on_the_server_are_given_back(
    server: SkyRL, relay: Relay, tmp_path: Path
) -> None:
    """The server has three. Each run takes one, and so do kept weights that are asked for."""
    backend = make(server.model, relay.url)
    await backend.open(plan(tmp_path, "first"))
    kept = await backend.keep("version 1")
    for number in range(4):
        await backend.open(plan(tmp_path, str(number)))
        assert len(await backend.sample(PROMPTS, DRAWING, kept)) == len(PROMPTS)
        await backend.discard(kept)
    await backend.aclose()


@needs_sdk
async def test_a_server_that_goes_away_in_the_middle_is_noticed_and_the_run_goes_on_when_it_is_back(
    server: SkyRL, tmp_path: Path
) -> None:
    first = relay_to(server)
    waits = Waits(connect_s=5.0, create_s=60.0, sample_s=30.0, train_s=30.0)
    backend = make(server.model, first.url, waits)
    await backend.open(plan(tmp_path))
    rollout = await draw_one(backend)
    await step(backend, [datum(rollout, 1.0)])
    then = await total(backend, rollout)
    await backend.accumulate([datum(rollout, 1.0)], PLAIN)
    first.cut()
    began = time.monotonic()
    with pytest.raises(TrainingError):
        await backend.apply(ADAM, 6.0)
    assert time.monotonic() - began < 45
    with pytest.raises(TrainingError):
        await backend.open(plan(tmp_path))
    await backend.aclose()
    second = relay_to(server)
    other = make(server.model, second.url)
    assert (await other.open(plan(tmp_path))).steps == 1
    assert await total(other, rollout) == pytest.approx(then, abs=2e-3)
    await other.aclose()
    second.cut()


@needs_sdk
async def test_a_server_that_is_not_there_costs_a_served_request_no_more_than_a_moment(
    tmp_path: Path, tiny_model: Path
) -> None:
    gone = Relay("http://127.0.0.1:9").start()
    gone.cut()
    backend = make(tiny_model, gone.url)
    model = TokenModel(ServiceHost(backend, PROMPTS[0]), lambda: Vocabulary(tiny_model), "tiny")
    began = time.monotonic()
    with pytest.raises(UpstreamError) as caught:
        await anext(model.generate(HELLO))
    assert caught.value.retryable
    with pytest.raises(TrainingError):
        await backend.open(plan(tmp_path))
    assert time.monotonic() - began < 30
    await backend.aclose()


@needs_sdk
async def test_a_rank_the_server_cannot_do_is_an_error_in_words(
    server: SkyRL, relay: Relay, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match="rank 99"):
        await make(server.model, relay.url).open(RunPlan("run", None, 99, 1, tmp_path / "run"))

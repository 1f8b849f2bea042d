"""Adapters of ours on a real vLLM: loaded while it runs, answering as the weights they are, swapped
under load.
"""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from metaclaw.domain.chat import (
    ChatRequest,
    Delta,
    End,
    Message,
    Role,
    Sampling,
    Text,
    TextDelta,
    Wire,
)
from metaclaw.domain.policy import Weights
from metaclaw.engine.trainer import EmbeddedTrainer
from metaclaw.engine.vocabulary import Vocabulary
from metaclaw.errors import TrainingError
from metaclaw.ports import RunPlan
from metaclaw.training.drawn_elsewhere import engine_gap
from metaclaw.training.hosts.adapter_server import (
    AdapterHost,
    HostSettings,
    TokenServer,
    VersionTokens,
    version_name,
)
from metaclaw.training.hosts.run_sampler import RunSampler
from metaclaw.training.hosts.token_model import TokenModel
from metaclaw.training.hosts.vllm import VllmRoutes
from metaclaw.training.journal import Journal
from metaclaw.upstream import HttpEndpoint
from tests.support import tiny, vllm
from tests.support.contract import DRAWING, PROMPTS, datum, draw_one, step
from tests.support.program import Program
from tests.support.story import (
    NOBODY_WRITES,
    POLICY,
    ask,
    ask_about_all,
    commanded,
    is_ours,
    prepare,
    share,
    wait_until,
    wait_until_served,
)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.of_target("test-vllm", vllm.is_installed()),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[vllm.Vllm]:
    with vllm.serve(model, tmp_path_factory.mktemp("vllm")) as running:
        yield running


@pytest.fixture
async def trainer(model: Path, tmp_path: Path) -> AsyncIterator[EmbeddedTrainer]:
    backend = EmbeddedTrainer(
        model, tmp_path / "policies", convert=False, threads=1, device="cpu", nice=0
    )
    yield backend
    await backend.aclose()


@dataclass
class Client:
    """What asks the server: for tokens, and for versions."""

    tokens: TokenServer
    model: TokenModel
    host: AdapterHost


@pytest.fixture
async def client(server: vllm.Vllm, model: Path) -> AsyncIterator[Callable[[], Client]]:
    vocabulary = Vocabulary(model)
    endpoint = HttpEndpoint("gpu", "openai", f"{server.url}/v1")

    def connect() -> Client:
        settings = HostSettings(endpoint.at_root(), "tiny", frozenset, lambda: vocabulary)
        tokens = TokenServer(settings, VllmRoutes("tiny", lambda: vocabulary.end_ids))
        host = AdapterHost(tokens)
        return Client(
            tokens, TokenModel(VersionTokens(tokens, host), settings.vocabulary, "tiny"), host
        )

    yield connect
    await endpoint.aclose()


Connect = Callable[[], Client]


async def train(backend: EmbeddedTrainer, folder: Path, count: int) -> list[Weights]:
    """So many versions of the weights, each some steps after the one before."""
    await backend.open(RunPlan("run", None, 4, 1, folder / "run"))
    rollout = await draw_one(backend)
    kept = []
    for number in range(1, count + 1):
        for _ in range(3):
            await step(backend, [datum(rollout, 1.0)])
        kept.append(await backend.keep(str(number)))
    return kept


async def test_each_version_answers_as_the_weights_it_is(
    server: vllm.Vllm, client: Connect, trainer: EmbeddedTrainer, tmp_path: Path
) -> None:
    host = client().host
    for version, weights in enumerate(await train(trainer, tmp_path, 2), 1):
        await host.load(version, weights)
        tokens, logprobs = await asyncio.to_thread(
            server.complete, version_name(version), PROMPTS[0]
        )
        [scores] = await trainer.score([(PROMPTS[0], tokens)], weights)
        assert logprobs == pytest.approx(scores, abs=0.01)
        [untrained] = await trainer.score_base([(PROMPTS[0], tokens)])
        assert logprobs != pytest.approx(untrained, abs=0.05)
    assert host.loaded == {1, 2}
    for version in (1, 2):
        await host.unload(version)


async def test_versions_are_swapped_under_load_without_an_error(
    server: vllm.Vllm, client: Connect, trainer: EmbeddedTrainer, tmp_path: Path
) -> None:
    versions = await train(trainer, tmp_path, 3)
    host = client().host
    await host.load(1, versions[0])
    serving = 1
    answers: list[int] = []
    is_over = asyncio.Event()

    async def ask() -> None:
        while not is_over.is_set():
            version = serving
            await asyncio.to_thread(server.complete, version_name(version), PROMPTS[0], 2)
            answers.append(version)

    clients = [asyncio.create_task(ask()) for _ in range(2)]
    for version in (2, 3):
        seen = len(answers)
        while len(answers) < seen + 4:
            await asyncio.wait(clients, timeout=0.05)
        await host.load(version, versions[version - 1])
        serving = version
    seen = len(answers)
    while len(answers) < seen + 4:
        await asyncio.wait(clients, timeout=0.05)
    is_over.set()
    await asyncio.gather(*clients)
    assert host.loaded == {2, 3}
    assert set(answers) == {1, 2, 3}
    for version in (2, 3):
        await host.unload(version)


async def test_what_is_no_adapter_is_refused_by_the_server(client: Connect, tmp_path: Path) -> None:
    host = client().host
    with pytest.raises(TrainingError, match="policy-000007 cannot be loaded by"):
        await host.load(7, Weights("embedded", str(tmp_path)))
    assert host.loaded == frozenset()


async def test_a_name_the_server_still_holds_is_given_to_our_weights(
    server: vllm.Vllm, client: Connect, trainer: EmbeddedTrainer, tmp_path: Path
) -> None:
    one, two = await train(trainer, tmp_path, 2)
    await client().host.load(9, one)
    host = client().host
    await host.load(9, two)
    tokens, logprobs = await asyncio.to_thread(server.complete, version_name(9), PROMPTS[1])
    [scores] = await trainer.score([(PROMPTS[1], tokens)], two)
    assert logprobs == pytest.approx(scores, abs=0.01)
    await host.unload(9)


async def test_requests_are_answered_in_exact_tokens_of_the_version_they_are_for(
    client: Connect, model: Path, trainer: EmbeddedTrainer, tmp_path: Path
) -> None:
    """At a temperature of one's own, too; and a version that the server has lost is loaded again
    when it is asked for.
    """
    request = ChatRequest(
        Wire.CHAT,
        "any",
        (Message(Role.USER, (Text("Hi"),)),),
        sampling=Sampling(max_tokens=6, temperature=0.5),
    )
    served = client()
    one, two = await train(trainer, tmp_path, 2)
    await served.host.load(1, one)
    await served.host.load(2, two)
    for version, weights in ((0, None), (1, one), (2, two)):
        deltas: list[Delta] = [delta async for delta in served.model.generate(request, version)]
        end = deltas[-1]
        assert isinstance(end, End)
        assert end.tokens is not None
        pairs = [(end.tokens.prompt_ids, end.tokens.sampled_ids)]
        [scores] = await (
            trainer.score_base(pairs) if weights is None else trainer.score(pairs, weights)
        )
        assert end.tokens.logprobs == pytest.approx(scores, abs=0.01)
        said = Vocabulary(model).decode(end.tokens.sampled_ids)
        assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == said
    elsewhere = client().host
    await elsewhere.load(2, two)
    await elsewhere.unload(2)
    deltas = [delta async for delta in served.model.generate(request, 2)]
    assert isinstance(deltas[-1], End), "it was loaded again"
    assert served.host.loaded == {1, 2}
    await served.host.unload(2)
    await served.host.unload(1)


async def test_rollouts_are_drawn_from_each_steps_weights_within_a_small_distance_of_the_trainer(
    server: vllm.Vllm, client: Connect, trainer: EmbeddedTrainer, tmp_path: Path
) -> None:
    """In single precision, as both compute here; and the trainer goes on by itself when the server
    no longer knows the weights.
    """
    plan = RunPlan("batch-1", None, 4, 1, tmp_path / "runs" / "000001")
    await trainer.open(plan)
    journal, tokens = Journal(plan.folder / "drawn"), client().tokens
    sampler = RunSampler(plan=plan, backend=trainer, journal=journal, server=tokens)
    for number in range(2):
        drawn = await sampler.sample(PROMPTS, DRAWING, number)
        gap = engine_gap(one for group in drawn for one in group)
        assert gap is not None, sampler.notice
        assert gap.difference < 1e-3
        await step(trainer, [datum(drawn[0][0], 1.0)])
    name = "policy-run-000001-step-001"
    await asyncio.to_thread(server.complete, name, PROMPTS[0])
    await tokens.unload(name)
    assert (await sampler.sample(PROMPTS, DRAWING, 1))[0][0].drawn_logprobs_T is None
    assert sampler.notice is not None
    await sampler.aclose()


def server_state(program: Program) -> str:
    state: str = program.get("/api/status")["server"]["state"]
    return state


def test_a_program_starts_vllm_trains_on_what_it_draws_and_serves_by_it(tmp_path: Path) -> None:
    """What vLLM answers has exact tokens, so it trains; the version that comes of it is swapped in,
    and taken back. A vLLM that is killed is started again, with the version.
    """
    model = tiny.make_speaking_model(tmp_path / "miniature")
    command = vllm.command_for("{model}", "{port}", 4096, "{name}")
    policy = f'[policy]\nbase_model = "{model}"\nserve = "vllm"\nserve_command = {command}\n'
    program = Program(tmp_path / "home", NOBODY_WRITES + policy + POLICY, env=vllm.SETTINGS)
    prepare(program).start(wait_s=300)
    try:
        wait_until(lambda: server_state(program) == "ready", program, 900)
        ask_about_all(program, 1)
        ask_about_all(program, 7)
        version = wait_until_served(program)
        assert share(program, 8_000) >= 0.34, "one answer in four before"
        shown = program.command("policy", "show", str(version)).stdout
        assert "drawn by" in shown, shown
        assert ask(program, "mice", 2).headers["x-metaclaw-policy"] == str(version)
        assert commanded(program, "rollback")["policy_version"] == 0
        assert ask(program, "moles", 4).headers["x-metaclaw-policy"] == "0"
        assert commanded(program, "promote", str(version))["policy_version"] == version
        [pid] = re.findall(r"model_server_started pid=(\d+)", program.log.read_text())
        os.killpg(int(pid), signal.SIGKILL)
        wait_until(lambda: server_state(program) != "ready", program, 60)
        wait_until(lambda: server_state(program) == "ready", program, 900)
        wait_until(
            lambda: ask(program, "moles", 5).headers["x-metaclaw-policy"] == str(version),
            program,
            300,
        )
        assert is_ours(program, ask(program, "moles", 6))
        assert program.stop(60) == 0
    finally:
        program.kill()

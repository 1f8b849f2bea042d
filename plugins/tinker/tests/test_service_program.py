"""The whole program with weights that a training service trains and serves: a real Tinker-API
server, which dies and comes back.

Runs where an SDK and the server are (`make test-tinker`).
"""

import importlib.util
import re
import time
from collections.abc import Iterator
from typing import Final

import anyio
import pytest

from metaclaw.domain.chat import SampledTokens
from metaclaw.domain.ids import TurnId
from metaclaw.store import LedgerReader, SqlPolicies, connect
from plugins.tinker.tests.conftest import relay_to, release, speaks_protobuf, tinker_backend
from tests.support import skyrl, tiny
from tests.support.program import Program
from tests.support.provider import Provider
from tests.support.story import (
    ANIMALS,
    NOBODY_WRITES,
    POLICY,
    ask,
    ask_about_all,
    commanded,
    is_ours,
    judged,
    prepare,
    question,
    recorded,
    said,
    serving,
    share,
    wait_until,
    wait_until_served,
)

SDK: Final = next((sdk for sdk in ("mint", "tinker") if importlib.util.find_spec(sdk)), "")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.of_target("test-tinker", bool(SDK)),
]

CONFIG: Final = (
    NOBODY_WRITES
    + """
[[providers]]
name = "base"
kind = "openai"
base_url = "{base}/v1"
api_key = "sk-base"
wires = ["chat"]

[policy]
backend = "{sdk}"
base_url = "{url}"
api_key = "tml-test"
base_model = "{model}"
tokenizer = "{model}"
"""
    + POLICY
)


class Service:
    """A training service at one address: the server, and in front of it, for SDKs that are newer, a
    relay.
    """

    def __init__(self, server: skyrl.SkyRL) -> None:
        self._server = server
        self._relay = relay_to(server) if speaks_protobuf() else None
        self.url = server.url if self._relay is None else self._relay.url
        self.model = server.model

    def kill(self) -> None:
        self._server.kill()
        self.leave()

    def start(self) -> None:
        self._server.start()
        if self._relay is not None:
            self._relay = relay_to(self._server, int(self.url.rsplit(":", 1)[1]))

    def leave(self) -> None:
        if self._relay is not None:
            self._relay.cut()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    if not skyrl.is_installed(release()):
        pytest.skip(skyrl.MISSING)
    folder = tmp_path_factory.mktemp("service")
    model = tiny.make_speaking_model(folder / "miniature")
    with skyrl.serve(folder, model, release()) as server:
        running = Service(server)
        yield running
        running.leave()


@pytest.fixture(scope="module")
def base() -> Iterator[Provider]:
    running = Provider().start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def program(
    service: Service, base: Provider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Program]:
    config = CONFIG.format(base=base.url, url=service.url, model=service.model, sdk=SDK)
    running = prepare(Program(tmp_path_factory.mktemp("program") / "home", config)).start(
        wait_s=300
    )
    yield running
    assert running.stop(60) == 0, running.log.read_text()[-4000:]


async def scored(
    program: Program, service: Service, turn: str, number: int
) -> tuple[SampledTokens, tuple[float, ...], tuple[float, ...]]:
    """A turn's tokens as recorded, and how likely they are to this version and to the untrained
    model, by the service itself.
    """
    database = connect(f"sqlite:///{program.home / 'ledger.db'}")
    found, version = (
        LedgerReader(database).turn(TurnId(turn)),
        SqlPolicies(database).version(number),
    )
    database.close()
    assert found is not None
    assert version is not None
    tokens = found.turn.tokens
    assert tokens is not None
    backend = tinker_backend(SDK, service.model, service.url)
    pairs = [(tokens.prompt_ids, tokens.sampled_ids)]
    trained, untrained = (
        await backend.score(pairs, version.weights),
        await backend.score_base(pairs),
    )
    await backend.aclose()
    return tokens, trained[0], untrained[0]


def test_a_service_trains_what_it_then_serves_though_it_dies_in_the_middle_and_all_of_it_can_be_taken_back(
    program: Program, service: Service
) -> None:
    wait_until(lambda: is_ours(program, ask(program, "mice", 0)), program)
    ask_about_all(program, 1)
    ask_about_all(program, 7)
    wait_until(lambda: "run=batch-1 step=1" in program.log.read_text(), program)
    service.kill()
    serves_without_it(program)
    wait_until(lambda: "training_waits batch=1" in program.log.read_text(), program)
    assert judged(program) == []

    service.start()
    commanded(program, "train")
    wait_until(lambda: "policy_trained version=1" in program.log.read_text(), program)
    opened = re.findall(
        r"training run open backend=\w+ run=batch-1 steps=(\d)", program.log.read_text()
    )
    assert opened[0] == "0"
    assert opened[-1] != "0"
    version = wait_until_served(program)
    assert len(program.get(f"/api/policy/{version}")["turns"]) >= 8
    assert share(program, 8_000) >= 0.34, "one answer in four before"

    answer = ask(program, "mice", 2)
    assert answer.headers["x-metaclaw-policy"] == str(version)
    assert recorded(program, answer)["policy_version"] == version
    tokens, trained, untrained = anyio.run(
        scored, program, service, answer.headers["x-metaclaw-turn"], version
    )
    assert trained == pytest.approx(tokens.logprobs, abs=2e-3)
    assert untrained != pytest.approx(tokens.logprobs, abs=0.05)
    assert commanded(program, "rollback")["policy_version"] == 0
    assert ask(program, "moles", 4).headers["x-metaclaw-policy"] == "0"
    assert commanded(program, "promote", str(version))["policy_version"] == version
    assert ask(program, "moles", 5).headers["x-metaclaw-policy"] == str(version)


def serves_without_it(program: Program) -> None:
    """Six questions: the base provider answers each of them, soon, and every turn is recorded as
    what it is.
    """
    turns = program.get("/api/status")["counts"]["turns"]
    began = time.monotonic()
    answers = [ask(program, animal, 30) for animal in ANIMALS[:6]]
    assert time.monotonic() - began < 60
    assert [said(answer).strip() for answer in answers] == [
        f"echo: {question(animal)}" for animal in ANIMALS[:6]
    ]
    assert {recorded(program, answer)["provider"] for answer in answers} == {"base"}
    assert {answer.headers["x-metaclaw-policy"] for answer in answers} == {"0"}
    assert program.get("/api/status")["counts"]["turns"] == turns + 6


def test_a_program_that_is_started_while_its_service_is_down_serves_and_finds_its_weights_when_it_is_back(
    program: Program, service: Service
) -> None:
    version = serving(program)
    assert version > 0
    program.kill()
    service.kill()
    program.start(wait_s=300)
    assert not is_ours(program, ask(program, "mice", 40))
    service.start()
    wait_until(lambda: serving(program) == version, program, 120)
    wait_until(lambda: is_ours(program, ask(program, "mice", 41)), program, 60)
    assert ask(program, "mice", 42).headers["x-metaclaw-policy"] == str(version)

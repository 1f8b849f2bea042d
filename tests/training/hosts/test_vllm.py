"""vLLM asked in tokens: exact tokens as they come, versions by their names, and errors another
provider can stand in for.
"""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from metaclaw.domain.chat import (
    Begin,
    ChatRequest,
    Delta,
    End,
    Finish,
    Message,
    Role,
    Sampling,
    Text,
    TextDelta,
    Wire,
)
from metaclaw.domain.policy import Weights
from metaclaw.engine.vocabulary import Vocabulary
from metaclaw.errors import BackendDownError, UpstreamError, WireError
from metaclaw.ports import Call, Headers, Reply
from metaclaw.training.hosts.adapter_server import HostSettings, ModelHost
from metaclaw.training.hosts.vllm import connect
from tests.support import tiny
from tests.support.lora_server import FakeVllm

pytestmark = pytest.mark.anyio

HELLO = ChatRequest(Wire.CHAT, "any", (Message(Role.USER, (Text("Hi"),)),))
CARDS = {
    "data": [{"id": "tiny", "max_model_len": 60}, {"id": "policy-000001", "max_model_len": 60}]
}


@dataclass
class Said:
    """One answer, in the pieces it came in."""

    pieces: list[bytes]
    status: int = 200
    headers: Headers = ()
    is_closed: bool = False

    async def chunks(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece

    async def aclose(self) -> None:
        self.is_closed = True


@dataclass
class Server:
    """A vLLM behind a provider: says the text it is told to, some tokens a piece."""

    vocabulary: Vocabulary
    text: str = "Hello there."
    finish: str = "stop"
    status: int = 200
    name: str = "gpu"
    wires: frozenset[Wire] = frozenset({Wire.CHAT})
    models: tuple[str, ...] = ()
    asked: list[dict[str, Any]] = field(default_factory=list)
    replies: list[Said] = field(default_factory=list)
    cards: bytes = json.dumps(CARDS).encode()
    adapters: FakeVllm | None = None
    lost: int = 0

    async def call(self, call: Call, caller: Mapping[str, str]) -> Reply:
        if call.path == "/v1/models":
            return Said([self.cards])
        if call.path.endswith("lora_adapter"):
            if self.adapters is None:
                raise UpstreamError("the server cannot be reached")
            status, text = self.adapters.answer(call.path, json.loads(call.body))
            return Said([text.encode()], status)
        self.asked.append(json.loads(call.body))
        if self.lost:
            self.lost -= 1
            return Said([b"{}"], 404)
        pieces = (
            list(self.events())
            if self.status == 200
            else [b'{"error": {"message": "no such model"}}']
        )
        self.replies.append(Said(pieces, self.status))
        return self.replies[-1]

    def ids(self) -> list[int]:
        return [*self.vocabulary.encode(self.text), *([tiny.END] if self.finish == "stop" else [])]

    def events(self) -> Iterator[bytes]:
        ids = self.ids()
        for at in range(0, len(ids), 4):
            part = ids[at : at + 4]
            reason = self.finish if at + 4 >= len(ids) else None
            scores = {"token_logprobs": [-0.5] * (len(part) - 1) + [1e-7]}
            chunk = {
                "choices": [
                    {
                        "index": 0,
                        "text": "?",
                        "token_ids": part,
                        "logprobs": scores,
                        "finish_reason": reason,
                    }
                ]
            }
            yield f"data: {json.dumps(chunk)}\n\n".encode()
        yield b'data: {"choices": [], "usage": {"prompt_tokens": 1}}\n\ndata: [DONE]\n\n'

    async def aclose(self) -> None:
        return


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    tiny.make_tokenizer(folder)
    return Vocabulary(folder)


@pytest.fixture
def adapters() -> Iterator[FakeVllm]:
    running = FakeVllm()
    yield running
    running.stop()


def make(server: Server) -> ModelHost:
    return connect(HostSettings(server, "tiny", frozenset, lambda: server.vocabulary))


async def told(model: ModelHost, request: ChatRequest, version: int = 0) -> list[Delta]:
    assert model.serves is not None
    return [delta async for delta in model.serves.generate(request, version)]


def spoken(deltas: list[Delta]) -> list[str]:
    return [delta.text for delta in deltas if isinstance(delta, TextDelta)]


def ended(deltas: list[Delta]) -> End:
    assert isinstance(deltas[-1], End)
    return deltas[-1]


async def test_an_answer_is_told_as_it_comes_and_carries_its_exact_tokens(
    vocabulary: Vocabulary,
) -> None:
    server = Server(vocabulary)
    deltas = await told(make(server), HELLO)
    assert isinstance(deltas[0], Begin)
    assert spoken(deltas) == ["Hell", "o th", "ere."]
    end = ended(deltas)
    assert end.finish is Finish.STOP
    assert end.tokens is not None
    assert (
        end.tokens.prompt_ids
        == tuple(vocabulary.render([("user", "Hi")], ""))
        == tuple(server.asked[0]["prompt"])
    )
    assert end.tokens.sampled_ids == tuple(server.ids())
    assert set(end.tokens.logprobs) == {-0.5, 0.0}
    assert server.replies[0].is_closed


async def test_it_asks_for_what_the_caller_wishes_within_the_room_the_server_has(
    vocabulary: Vocabulary,
) -> None:
    server = Server(vocabulary)
    model = make(server)
    await told(model, HELLO)
    options = Sampling(max_tokens=500, temperature=0.2, top_p=0.5, top_k=3, seed=5)
    await told(model, replace(HELLO, sampling=options))
    first, second = server.asked
    assert (first["model"], first["max_tokens"], first["temperature"], first["stop_token_ids"]) == (
        "tiny",
        60 - len(first["prompt"]),
        1.0,
        [tiny.END],
    )
    assert second["max_tokens"] == 60 - len(second["prompt"])
    assert (second["temperature"], second["top_p"], second["top_k"], second["seed"]) == (
        0.2,
        0.5,
        3,
        5,
    )
    with pytest.raises(WireError, match="room for 60"):
        await told(model, replace(HELLO, messages=(Message(Role.USER, (Text("x" * 80),)),)))


async def test_an_answer_that_is_cut_or_stopped_says_so(vocabulary: Vocabulary) -> None:
    server = Server(vocabulary, finish="length")
    assert ended(await told(make(server), HELLO)).finish is Finish.LENGTH
    deltas = await told(make(server), replace(HELLO, sampling=Sampling(stop=("o t",))))
    end = ended(deltas)
    assert ("".join(spoken(deltas)), end.finish, end.stop_sequence) == ("Hell", Finish.STOP, "o t")
    assert end.tokens is not None
    assert end.tokens.sampled_ids == tuple(vocabulary.encode("Hello t"))
    assert server.replies[-1].is_closed


async def test_a_version_is_asked_for_by_its_name_and_one_the_server_lost_is_loaded_again(
    vocabulary: Vocabulary, adapters: FakeVllm, tmp_path: Path
) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    server = Server(vocabulary)
    server.adapters = adapters
    model = make(server)
    await model.host.load(1, Weights("embedded", str(tmp_path)))
    await told(model, HELLO, 1)
    assert server.asked[0]["model"] == "policy-000001"
    adapters.adapters.clear()
    server.lost = 1
    assert ended(await told(model, HELLO, 1)).finish is Finish.STOP
    assert adapters.adapters, "it was loaded again"
    server.status = 404
    with pytest.raises(UpstreamError, match="no such model") as caught:
        await told(model, HELLO, 1)
    assert caught.value.retryable
    assert model.host.loaded == frozenset()
    await model.host.load(1, Weights("embedded", str(tmp_path)))
    assert model.host.loaded == {1}
    await model.host.unload(1)
    assert not adapters.adapters


async def test_a_server_that_is_not_there_is_told_apart_from_weights_that_are_broken(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    with pytest.raises(BackendDownError):
        await make(Server(vocabulary)).host.load(1, Weights("embedded", str(tmp_path)))


@pytest.mark.parametrize(
    "piece",
    [
        b"data: not JSON\n\n",
        b'data: {"error": {"message": "the engine died"}}\n\n',
        b'data: {"choices": [{"token_ids": [65, 66], "logprobs": {"token_logprobs": [-1.0]}}]}\n\n',
        b'data: {"choices": [{"token_ids": [65]}]}\n\n',
    ],
)
async def test_a_stream_that_makes_no_sense_is_an_error_and_not_a_guess(
    vocabulary: Vocabulary, piece: bytes
) -> None:
    class Odd(Server):
        def events(self) -> Iterator[bytes]:
            yield piece

    with pytest.raises(UpstreamError):
        await told(make(Odd(vocabulary)), HELLO)


async def test_a_server_without_a_list_of_models_is_an_error_another_provider_stands_in_for(
    vocabulary: Vocabulary,
) -> None:
    with pytest.raises(UpstreamError, match="no list of models"):
        await told(make(Server(vocabulary, cards=b"<html>")), HELLO)

"""Embeddings over HTTP: what is sent, and which answers count."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Mapping
from itertools import starmap

import msgspec
import pytest

from metaclaw.domain.chat import Wire
from metaclaw.errors import UpstreamError, WireError
from metaclaw.ports import Call, Headers, Reply
from metaclaw.upstream import HttpEmbeddings
from tests.support.cases import each


class Canned:
    """A reply that is there at once."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.headers: Headers = [("content-type", "application/json")]
        self._body = body

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self._body

    async def aclose(self) -> None:
        pass


class Scripted:
    """A provider that gives one answer."""

    name = "scripted"
    wires = frozenset({Wire.CHAT})
    models: tuple[str, ...] = ()

    def __init__(
        self,
        body: bytes = b"",
        status: int = 200,
        delay_s: float = 0.0,
        error: Exception | None = None,
    ) -> None:
        self._reply = Canned(status, body)
        self._delay_s = delay_s
        self._error = error
        self.calls: list[Call] = []

    async def call(self, call: Call, caller: Mapping[str, str]) -> Reply:
        self.calls.append(call)
        await asyncio.sleep(self._delay_s)
        if self._error is not None:
            raise self._error
        return self._reply

    async def aclose(self) -> None:
        pass


def embed(provider: Scripted, *texts: str, timeout_s: float = 30.0) -> list[bytes]:
    redact = {"secret": "<KEY>"}
    model = HttpEmbeddings(
        provider,
        "toy",
        lambda texts: [redact.get(text, text) for text in texts],
        timeout_s=timeout_s,
    )
    assert model.name == "scripted/toy"
    return asyncio.run(model.embed(texts))


def answer(*vectors: tuple[int | None, list[float]]) -> bytes:
    data = starmap(lambda index, vector: {"index": index, "embedding": vector}, vectors)
    return msgspec.json.encode(
        {"object": "list", "data": list(data), "usage": {"prompt_tokens": 3}}
    )


def test_texts_are_sent_redacted_and_cut_and_vectors_come_in_their_order() -> None:
    provider = Scripted(answer((1, [0.0, 1.0]), (0, [1.0, 0.5])))
    vectors = embed(provider, "secret", "begin " + "x" * 5_000 + " end")
    assert [array("f", vector).tolist() for vector in vectors] == [[1.0, 0.5], [0.0, 1.0]]
    [call] = provider.calls
    sent = msgspec.json.decode(call.body)
    assert (call.method, call.path, sent["model"], sent["input"][0]) == (
        "POST",
        "/embeddings",
        "toy",
        "<KEY>",
    )
    assert len(sent["input"][1]) == 1_001
    assert sent["input"][1].startswith("begin x")
    assert sent["input"][1].endswith("x end")


def test_vectors_without_an_index_are_in_the_order_of_the_texts() -> None:
    vectors = embed(Scripted(answer((None, [2.0]), (None, [3.0]))), "a", "b")
    assert [array("f", vector).tolist() for vector in vectors] == [[2.0], [3.0]]


@each(
    ("body", "words"),
    [
        (b"<html>", "sent no embeddings"),
        (b'{"data": [{"embedding": "AAAA"}]}', "sent no embeddings"),
        (b'{"data": [{"embedding": [null]}]}', "sent no embeddings"),
        (b'{"data": []}', "sent 0 embeddings"),
        (answer((0, []), (1, [])), "sent 2 embeddings of"),
        (answer((0, [])), "of [0] dimensions"),
        (answer((0, [0.5] * 9_000)), "of [9000] dimensions"),
        (b'{"data": [{"embedding": [1e308, 1e308]}]}', "not finite"),
    ],
)
def test_an_answer_without_usable_vectors_is_an_error(body: bytes, words: str) -> None:
    with pytest.raises(UpstreamError) as caught:
        embed(Scripted(body), "a")
    assert words in str(caught.value)


def test_a_refusal_a_silence_and_a_call_that_cannot_be_sent_are_errors() -> None:
    with pytest.raises(UpstreamError, match=r"refused \(401\): bad key") as caught:
        embed(Scripted(b'{"error": {"message": "bad key"}}', 401), "a")
    assert caught.value.status == 401
    with pytest.raises(UpstreamError, match="no embeddings within"):
        embed(Scripted(delay_s=5), "a", timeout_s=0.01)
    with pytest.raises(UpstreamError, match="cannot be asked: too odd"):
        embed(Scripted(error=WireError("too odd")), "a")

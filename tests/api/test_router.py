"""The table of routes: what is found, what is refused, and how answers and streams are sent."""

from collections.abc import AsyncGenerator
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest

from metaclaw.api.router import ApiError, ApiRequest, ApiStream, RequestBody, Route, Router
from metaclaw.errors import StoreError

FIELDS = RequestBody({"name": {"type": "string"}, "count": {"type": "integer"}})


async def echo(ask: ApiRequest) -> object:
    return {"path": dict(ask.path), "query": dict(ask.query), "said": ask.said}


async def number(ask: ApiRequest) -> object:
    return {"after": ask.number("after", 0), "limit": ask.number("limit", 50, 1000)}


async def broken(ask: ApiRequest) -> object:
    raise StoreError("the disk is full")


async def busy(ask: ApiRequest) -> object:
    raise ApiError("somebody else was first", 409)


TABLE = [
    Route("GET", "/things/{id}", echo, "One thing"),
    Route("POST", "/things/{id}", echo, "Change a thing", (), FIELDS),
    Route("PUT", "/things/{id}/{part}", echo, "Put a part", (), FIELDS),
    Route("GET", "/number", number, "Numbers"),
    Route("GET", "/broken", broken, "Breaks"),
    Route("GET", "/busy", busy, "Refuses"),
]


async def ask(method: str, path: str, body: bytes = b"") -> httpx.Response:
    transport = httpx.ASGITransport(app=Router(TABLE))
    async with httpx.AsyncClient(transport=transport, base_url="http://metaclaw") as client:
        return await client.request(method, path, content=body)


def sentence(answer: httpx.Response) -> str:
    assert answer.headers["content-type"] == "application/json"
    told: str = answer.json()["error"]["message"]
    return told


@pytest.mark.anyio
async def test_values_come_from_path_query_and_body() -> None:
    answer = await ask("PUT", "/things/a%20b/c?x=1&x=2&y=", b' {"name": "n"} ')
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json() == {
        "path": {"id": "a b", "part": "c"},
        "query": {"x": "2", "y": ""},
        "said": {"name": "n"},
    }


@pytest.mark.anyio
async def test_a_path_is_decoded_once_and_no_more() -> None:
    assert (await ask("GET", "/things/50%2525")).json()["path"] == {"id": "50%25"}


@pytest.mark.anyio
@pytest.mark.parametrize(
    "path", ["/", "/things", "/things/", "/things/a/b/c", "/thingsx/a", "/api"]
)
async def test_what_is_not_served_is_said_by_its_name(path: str) -> None:
    answer = await ask("GET", path)
    assert answer.status_code == 404
    assert sentence(answer) == f"nothing is served at {path}"


@pytest.mark.anyio
async def test_the_wrong_method_is_told_the_right_ones() -> None:
    answer = await ask("DELETE", "/things/a")
    assert answer.status_code == 405
    assert sentence(answer) == "/things/a takes GET or POST, not DELETE"


@pytest.mark.anyio
async def test_a_head_is_a_get_without_its_body() -> None:
    answer = await ask("HEAD", "/things/a")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"] == "application/json"
    assert (await ask("HEAD", "/things/a/b")).status_code == 405
    assert (await ask("HEAD", "/nothing")).content == b""


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{", "the body is not JSON"),
        (b"\xff\xfe", "the body is not JSON"),
        (b'{"name": NaN}', "the body is not JSON"),
        (b'{"name": "\\ud800"}', "the body is not JSON"),
        (b"[" * 100_000, "the body is not JSON"),
        (b"[]", "the body must be a JSON object"),
        (b"null", "the body must be a JSON object"),
        (b'"name"', "the body must be a JSON object"),
        (b'{"name": "n", "nmae": 1}', "'nmae' is not a field here; write name or count"),
        (b'{"name": "n", "count": "1"}', "count: '1' is not of type 'integer'"),
    ],
)
async def test_a_body_that_cannot_be_read_is_refused_with_the_reason(body: bytes, why: str) -> None:
    answer = await ask("POST", "/things/a", body)
    assert answer.status_code == 400
    assert sentence(answer).startswith(why)


@pytest.mark.anyio
async def test_no_body_is_an_empty_object() -> None:
    for body in (b"", b" \n"):
        assert (await ask("POST", "/things/a", body)).json()["said"] == {}


@pytest.mark.anyio
@pytest.mark.parametrize(
    "query",
    [
        "after=-1",
        "after=1.5",
        "after=x",
        "after=",
        "after=%D9%A3",
        "after=99999999999999999",
        "limit=0",
    ],
)
async def test_a_number_that_is_none_is_refused_by_its_name(query: str) -> None:
    answer = await ask("GET", f"/number?{query}")
    assert answer.status_code == 400
    assert sentence(answer).startswith(f"{query.partition('=')[0]} must be a whole number from ")


@pytest.mark.anyio
async def test_numbers_have_defaults_and_limits() -> None:
    assert (await ask("GET", "/number")).json() == {"after": 0, "limit": 50}
    assert (await ask("GET", "/number?after=7&limit=1000")).json() == {"after": 7, "limit": 1000}
    assert (await ask("GET", "/number?limit=1001")).status_code == 400


@pytest.mark.anyio
async def test_a_broken_store_is_503_and_a_conflict_its_own_status() -> None:
    answer = await ask("GET", "/broken")
    assert answer.status_code == 503
    assert sentence(answer) == "the store cannot be used now: the disk is full"
    assert (await ask("GET", "/busy")).status_code == 409


class Counting:
    """A stream that counts, and knows when nobody listens any more. `most` is where it ends by
    itself.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.sent = 0
        self.closed = False

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        try:
            while self.most is None or self.sent < self.most:
                self.sent += 1
                yield b"%d\n" % self.sent
                await anyio.lowlevel.checkpoint()
        finally:
            self.closed = True

    async def serve(self, ask: ApiRequest) -> object:
        return ApiStream("text/event-stream", self.chunks())


class Listener:
    """The other end of a streamed answer; it leaves after so many pieces."""

    def __init__(self, leaves_after: int | None = None) -> None:
        self.sent: list[dict[str, Any]] = []
        self.enough = anyio.Event()
        self._leaves_after = leaves_after
        self._asked = False

    async def receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.enough.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        if self._leaves_after is not None and len(self.sent) > self._leaves_after:
            self.enough.set()

    @property
    def is_whole(self) -> bool:
        return self.sent[-1]["type"] == "http.response.body" and not self.sent[-1].get(
            "more_body", False
        )


def scope(method: str = "GET") -> dict[str, Any]:
    return {"type": "http", "method": method, "path": "/count", "query_string": b"", "headers": []}


def counting_router(counting: Counting) -> Router:
    return Router([Route("GET", "/count", counting.serve, "Counts")])


@pytest.mark.anyio
async def test_a_stream_that_ends_is_sent_whole() -> None:
    counting, listener = Counting(most=3), Listener()
    with anyio.fail_after(60):
        await counting_router(counting)(scope(), listener.receive, listener.send)
    assert dict(listener.sent[0]["headers"]) == {
        b"content-type": b"text/event-stream",
        b"cache-control": b"no-cache",
    }
    assert b"".join(message["body"] for message in listener.sent[1:]) == b"1\n2\n3\n"
    assert listener.is_whole


@pytest.mark.anyio
async def test_a_client_that_leaves_ends_its_stream() -> None:
    counting, listener = Counting(), Listener(leaves_after=4)
    with anyio.fail_after(60):
        await counting_router(counting)(scope(), listener.receive, listener.send)
    assert counting.closed
    assert counting.sent >= 4
    assert not listener.is_whole


@pytest.mark.anyio
async def test_a_program_that_stops_ends_every_stream_properly() -> None:
    counting, listener = Counting(), Listener()
    router = counting_router(counting)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(router, scope(), listener.receive, listener.send)
            while counting.sent < 3:
                await anyio.lowlevel.checkpoint()
            router.stop()
    assert counting.closed
    assert listener.is_whole


@pytest.mark.anyio
async def test_a_head_of_a_stream_is_over_at_once() -> None:
    counting, listener = Counting(), Listener()
    with anyio.fail_after(60):
        await counting_router(counting)(scope("HEAD"), listener.receive, listener.send)
    assert counting.sent == 0
    assert listener.is_whole
    assert dict(listener.sent[0]["headers"])[b"content-type"] == b"text/event-stream"

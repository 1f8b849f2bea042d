"""How many calls a provider gets at once: as many as configured, in turn, and a clear refusal with
a time to come back.
"""

import asyncio
import json
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.program import NOT_LEARNING, Program
from tests.upstream.loopback import Conversation, Loopback, plain, serve

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = (
    b"data:"
    b' {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
)
FIRST = HEAD + b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
WHOLE = json.dumps(
    {
        "id": "c",
        "model": "m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
        ],
    }
).encode()
MANY = 600

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def script(conversation: Conversation) -> None:
    """A stream gets its first event and no end; any other request is answered at once."""
    while True:
        heard = await conversation.hear()
        if json.loads(heard.body).get("stream"):
            await conversation.say(FIRST)
            return
        await conversation.say(plain(WHOLE, "200 OK", "Content-Type: application/json"))


def entry(name: str, loopback: Loopback, settings: str = "", kind: str = "openai") -> str:
    base = loopback.url + ("/v1" if kind == "openai" else "")
    return (
        f'[[providers]]\nname = "{name}"\nkind = "{kind}"\nbase_url = "{base}"\napi_key ='
        f' "sk"\ntimeout_s = 60\n{settings}\n'
    )


@asynccontextmanager
async def running(home: Path, config: str, proxy: str = "") -> AsyncIterator[Program]:
    program = await asyncio.to_thread(Program(home, config, proxy=proxy, env=NOT_LEARNING).start)
    try:
        yield program
    finally:
        await asyncio.to_thread(program.kill)


@asynccontextmanager
async def started_with_few_files(home: Path, config: str) -> AsyncIterator[Program]:
    """The program under a soft limit on open files that is lower than it needs, as it is on many
    systems.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        program = Program(home, config, env=NOT_LEARNING)
        await asyncio.to_thread(program.start)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        yield program
    finally:
        await asyncio.to_thread(program.kill)


class Caller:
    """A client with its own connections."""

    def __init__(self, program: Program) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self.http = httpx.AsyncClient(
            base_url=program.url, headers=program.auth, timeout=60, limits=limits
        )
        self._held: list[
            AsyncIterator[bytes]
        ] = []  # a stream whose iterator is collected is closed

    async def ask(self, path: str = "/v1/chat/completions", session: str = "s") -> httpx.Response:
        asked = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": session}]}
        return await self.http.post(path, json=asked, headers={"x-session-id": session})

    async def hold(self, stack: AsyncExitStack, session: str = "holder") -> None:
        """Begin a stream that does not end, and keep it open."""
        asked = {"model": "m", "stream": True, "messages": [{"role": "user", "content": session}]}
        request = self.http.stream(
            "POST", "/v1/chat/completions", json=asked, headers={"x-session-id": session}
        )
        answer = await stack.enter_async_context(request)
        assert answer.status_code == 200
        self._held.append(answer.aiter_raw())
        await anext(self._held[-1])


async def test_more_than_five_hundred_streams_run_at_once_where_few_files_may_be_open(
    tmp_path: Path,
) -> None:
    async with (
        serve(script) as provider,
        started_with_few_files(tmp_path / "home", entry("p", provider)) as program,
    ):
        caller = Caller(program)
        async with AsyncExitStack() as stack:
            for begun in range(0, MANY, 50):
                await asyncio.gather(
                    *(caller.hold(stack, f"s{begun + number}") for number in range(50))
                )
            assert (
                sum(not conversation.gone.is_set() for conversation in provider.conversations)
                == MANY
            )
            assert (await caller.ask()).status_code == 200


@pytest.mark.parametrize(
    ("path", "kind"), [("/v1/chat/completions", "chat"), ("/v1/messages", "messages")]
)
async def test_a_call_beyond_the_limit_is_refused_with_a_time_to_come_back(
    tmp_path: Path, path: str, kind: str
) -> None:
    settings = "max_concurrency = 1\nqueue_timeout_s = 0.2"
    async with (
        serve(script) as provider,
        running(tmp_path / "home", entry("p", provider, settings)) as program,
    ):
        caller = Caller(program)
        async with AsyncExitStack() as stack:
            await caller.hold(stack)
            refused = await caller.ask(path)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            error = refused.json()["error"]
            assert error["type"] == "rate_limit_error"
            assert "max_concurrency" in error["message"]
            embedded = await caller.http.post("/v1/embeddings", json={"model": "m", "input": "x"})
            assert (embedded.status_code, embedded.headers["retry-after"]) == (429, "1")
        # The client has left, so its place is free as soon as that is noticed.
        async with asyncio.timeout(20):
            while (answer := await caller.ask(path)).status_code == 429:
                continue
        assert answer.status_code == 200


async def test_a_busy_provider_is_followed_by_the_next(tmp_path: Path) -> None:
    async with serve(script) as busy, serve(script) as spare:
        config = entry("busy", busy, "max_concurrency = 1\nqueue_timeout_s = 0") + entry(
            "spare", spare
        )
        async with running(tmp_path / "home", config) as program, AsyncExitStack() as stack:
            caller = Caller(program)
            await caller.hold(stack)
            answer = await caller.ask()
            assert answer.status_code == 200
            assert (
                program.get(f"/api/turns/{answer.headers['x-metaclaw-turn']}")["provider"]
                == "spare"
            )


async def test_one_session_cannot_starve_the_others(tmp_path: Path) -> None:
    served: list[str] = []
    release = asyncio.Event()

    async def slow(conversation: Conversation) -> None:
        while True:
            served.append(json.loads((await conversation.hear()).body)["messages"][-1]["content"])
            await release.wait()
            await conversation.say(plain(WHOLE, "200 OK", "Content-Type: application/json"))

    async with serve(slow) as provider:
        config = entry("p", provider, "max_concurrency = 1\nqueue_timeout_s = 60")
        async with running(tmp_path / "home", config) as program:
            caller = Caller(program)
            greedy = []
            for waiting in range(20):
                greedy.append(asyncio.create_task(caller.ask(session="greedy")))
                await in_flight(caller, waiting + 1)
            others = []
            for waiting, name in enumerate(("ann", "bob"), 21):
                others.append(asyncio.create_task(caller.ask(session=name)))
                await in_flight(caller, waiting)
            release.set()
            assert {answer.status_code for answer in await asyncio.gather(*greedy, *others)} == {
                200
            }
            assert served[:4] == ["greedy", "greedy", "ann", "bob"]


async def in_flight(caller: Caller, wanted: int) -> None:
    async with asyncio.timeout(20):
        while (
            f"metaclaw_turns_in_flight {wanted}.0" not in (await caller.http.get("/metrics")).text
        ):
            await asyncio.sleep(0)


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_client_that_never_reads_gives_its_place_back_when_it_leaves_or_is_cut(
    tmp_path: Path, leaves: bool
) -> None:
    async def flood(conversation: Conversation) -> None:
        while True:
            heard = await conversation.hear()
            if not json.loads(heard.body).get("stream"):
                await conversation.say(plain(WHOLE, "200 OK", "Content-Type: application/json"))
                continue
            await conversation.say(HEAD)
            while True:
                await conversation.say(b"%x\r\n%b\r\n" % (len(EVENT) * 100, EVENT * 100))

    async with serve(flood) as provider:
        config = entry("p", provider, "max_concurrency = 1\nqueue_timeout_s = 30")
        async with running(
            tmp_path / "home", config, f"write_timeout_s = {60 if leaves else 0.5}"
        ) as program:
            silent = await asyncio.to_thread(stop_reading, program)
            caller = Caller(program)
            waiting = asyncio.create_task(caller.ask())
            if leaves:
                await in_flight(caller, 2)
                silent.close()
            assert (await waiting).status_code == 200
            silent.close()


def stop_reading(program: Program) -> socket.socket:
    """Ask for a stream and read only the beginning of it."""
    host, port = program.url.removeprefix("http://").split(":")
    client = socket.create_connection((host, int(port)))
    body = json.dumps(
        {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}
    ).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization:"
        f" {program.auth['authorization']}\r\n"
    )
    client.sendall(
        f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        + body
    )
    assert client.recv(1024)
    return client

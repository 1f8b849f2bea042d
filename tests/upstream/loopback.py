"""A scripted provider on loopback: it reads requests for real and answers with exactly the bytes a
test gives it.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from metaclaw.ports import Call, Reply
from metaclaw.upstream import ApiKey, HttpEndpoint, Kind, PoolLimits, Timeouts

WAIT_S = 5.0


@dataclass
class Heard:
    """A request as it came."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """The one value of a field; None where it is absent."""
        values = [value for key, value in self.headers if key.lower() == name]
        assert len(values) <= 1, f"{name} came {len(values)} times"
        return values[0] if values else None


@dataclass
class Conversation:
    """One connection as the provider sees it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def hear(self) -> Heard:
        """Read one whole request."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *fields = head.removesuffix("\r\n\r\n").split("\r\n")
        headers = [(name, value) for name, _, value in (text.partition(": ") for text in fields)]
        length = next(
            (int(value) for name, value in headers if name.lower() == "content-length"), 0
        )
        return Heard(line, headers, await self.reader.readexactly(length))

    async def say(self, *pieces: bytes) -> None:
        """Send pieces, each on its own."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()

    async def wait_until_gone(self) -> None:
        """Return when the other side has closed or reset."""
        try:
            while await self.reader.read(65536):
                continue
        except ConnectionError:
            return


Script: TypeAlias = Callable[[Conversation], Awaitable[None]]


@dataclass
class Loopback:
    """A running scripted provider."""

    port: int
    conversations: list[Conversation] = field(default_factory=list)
    troubles: list[BaseException] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Its base URL without any path."""
        return f"http://127.0.0.1:{self.port}"

    async def wait_until_all_gone(self) -> None:
        """Return when every connection ever opened is closed."""
        async with asyncio.timeout(WAIT_S):
            for conversation in self.conversations:
                await conversation.gone.wait()


@asynccontextmanager
async def serve(script: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[Loopback]:
    """A provider that runs `script` for each connection; whatever goes wrong in a script fails the
    test.
    """
    loopback = Loopback(0)
    tasks: set[asyncio.Task[None]] = set()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversation = Conversation(reader, writer)
        loopback.conversations.append(conversation)
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await script(conversation)
            await conversation.wait_until_gone()
        except asyncio.IncompleteReadError as trouble:
            if trouble.partial:
                loopback.troubles.append(trouble)
        except ConnectionError:
            return
        except (AssertionError, ValueError) as trouble:
            loopback.troubles.append(trouble)
        finally:
            conversation.gone.set()
            writer.transport.abort()

    server = await asyncio.start_server(converse, "127.0.0.1", 0, ssl=tls)
    loopback.port = server.sockets[0].getsockname()[1]
    try:
        yield loopback
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
    assert not loopback.troubles, loopback.troubles


def answering(*pieces: bytes, close: bool = False) -> Script:
    """A script that answers every request with the same pieces, and closes after the first if told
    to.
    """

    async def script(conversation: Conversation) -> None:
        while True:
            await conversation.hear()
            await conversation.say(*pieces)
            if close:
                conversation.writer.close()
                return

    return script


@asynccontextmanager
async def endpoint(
    url: str,
    kind: Kind = "openai",
    *,
    api_key: ApiKey = None,
    timeouts: Timeouts | None = None,
    limits: PoolLimits | None = None,
) -> AsyncIterator[HttpEndpoint]:
    """A provider named `primary` at `url`; no connection may survive it."""
    provider = HttpEndpoint("primary", kind, url, api_key=api_key, timeouts=timeouts, limits=limits)
    try:
        yield provider
    finally:
        await provider.aclose()
    assert provider.open_connections == 0


def post(
    path: str = "/chat/completions",
    body: bytes = b"{}",
    *,
    query: str = "",
    headers: Iterable[tuple[str, str]] = (),
) -> Call:
    """A call as the proxy makes them."""
    return Call("POST", path, query, list(headers), body)


async def read(reply: Reply) -> bytes:
    """The whole body."""
    async with asyncio.timeout(WAIT_S):
        return b"".join([chunk async for chunk in reply.chunks()])


def plain(body: bytes, status: str = "200 OK", *fields: str) -> bytes:
    """An answer with a content-length."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *fields]
    return "\r\n".join([*lines, "", ""]).encode() + body

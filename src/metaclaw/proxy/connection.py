"""A client's connection: HTTP/1.1 requests in, one at a time to whoever serves them, responses out."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

import httptools

from metaclaw.proxy.abreast import Ranks
from metaclaw.proxy.client import Client

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
KEEP_ALIVE_S = 75.0
"""How long a connection may wait between two requests, and how long one may take to send a request's head."""
LINGER_S = 5.0
"""How long the rest of a request that was answered early is read and dropped: closed at once, the client might never see why."""

_MAX_NAMES = 1024
_METHODS = {name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE")}

Serve = Callable[[Client], Awaitable[None]]


class Room(Protocol):
    """Where connections are kept while they live, and the tasks that serve them."""

    connections: "set[Connection]"
    tasks: set[asyncio.Task[None]]
    ranks: Ranks


class _Names(dict[bytes, str]):
    """Header names in lower case; the same few dozen come with every request."""

    def __missing__(self, name: bytes) -> str:
        lower = name.decode("latin-1").lower()
        if len(self) >= _MAX_NAMES:
            self.clear()
        self[name] = lower
        return lower


_names = _Names()


class Connection(asyncio.Protocol):
    """Parses requests and serves them in the order they came. Only the one at work may write."""

    def __init__(self, serve: Serve, room: Room) -> None:
        self.peer: str | None = None
        self.is_full = False
        self._serve = serve
        self._room = room
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._at_work: Client | None = None
        self._arriving: Client | None = None
        self._waiting: deque[Client] = deque()
        self._drained: asyncio.Future[None] | None = None
        self._is_paused = False
        self._is_last = False
        self._close_at = self._loop.time() + KEEP_ALIVE_S
        self._target = b""
        self._headers: dict[str, str] = {}
        self._in_head = True
        self._fed_bytes = 0

    # What a Client needs (client.Line).

    def send(self, data: bytes) -> None:
        """Send now; what is sent to a client that has left is nobody's."""
        if self._transport is not None:
            self._transport.write(data)

    async def drain(self) -> None:
        """Wait until the client has read enough of what was sent, or has left."""
        if self.is_full and self._transport is not None:
            if self._drained is None:
                self._drained = self._loop.create_future()
            await self._drained

    def pause(self) -> None:
        """Read nothing more for now."""
        if not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    def answered(self, client: Client) -> None:
        """The response is whole: the next request may be served, if there may be one."""
        self._at_work = None
        transport = self._transport
        if transport is None:
            return
        if not client.is_whole:
            self._is_last = True
            self._close_at = self._loop.time() + LINGER_S
        elif not client.keeps or self._is_last:
            transport.close()
            return
        elif self._waiting:
            self._begin(self._waiting.popleft())
        else:
            self._close_at = self._loop.time() + KEEP_ALIVE_S
        if self._is_paused and not self._waiting:
            self.resume()  # also while the last of them is answered: its client may leave

    # What the listener asks for.

    def check(self, now: float) -> None:
        """Close a connection that has been silent for too long."""
        if self._at_work is None and now >= self._close_at and self._transport is not None:
            self._transport.close()

    def end(self) -> None:
        """Close as soon as what is being answered is answered."""
        self._is_last = True
        if self._at_work is not None:
            self._at_work.keeps = self._at_work.keeps and self._at_work.started
        elif self._transport is not None:
            self._transport.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._room.connections.add(self)
        address = transport.get_extra_info("peername")
        self.peer = str(address[0]) if isinstance(address, tuple) and address else None

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._fed_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # We speak nothing else: the request is served as it is, and what follows it is read as the next.
            self._parser = httptools.HttpRequestParser(self)
            rest = data[upgrade.args[0] :]
            if rest:
                self.data_received(rest)
        except httptools.HttpParserError:
            self._refuse("Invalid HTTP request received.")
        else:
            if self._in_head and self._fed_bytes > MAX_HEAD_BYTES:
                self._refuse(f"The request's head is larger than {MAX_HEAD_BYTES} bytes.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._room.connections.discard(self)
        self.resume_writing()
        if self._at_work is not None:
            self._at_work.lose()
        self._waiting.clear()

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    # httptools callbacks

    def on_message_begin(self) -> None:
        self._target = b""
        self._headers = {}
        if self._at_work is None and not self._is_last:
            self._close_at = self._loop.time() + KEEP_ALIVE_S

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer: nobody downstream could use it
        headers, key, text = self._headers, _names[name], value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text

    def on_headers_complete(self) -> None:
        if self._fed_bytes > MAX_HEAD_BYTES and self._head_bytes() > MAX_HEAD_BYTES:
            raise ValueError("the head is too large")  # the parser makes an error of whatever its callbacks raise
        self._in_head = False
        parser = self._parser
        method, is_modern = parser.get_method(), parser.get_http_version() == "1.1"
        client = self._arriving = Client(
            self,
            _METHODS.get(method) or method.decode("latin-1"),
            self._target,
            self._headers,
            keeps=is_modern and parser.should_keep_alive(),
            is_modern=is_modern,
        )
        if self._at_work is None and not self._waiting and not self._is_last:
            self._begin(client)
        else:
            self._waiting.append(client)
            self.pause()

    def on_body(self, body: bytes) -> None:
        if self._arriving is not None:
            self._arriving.feed(body)

    def on_message_complete(self) -> None:
        client, self._arriving = self._arriving, None
        self._in_head, self._fed_bytes = True, 0
        if client is not None:
            client.close_body()
            if client.ended and self._transport is not None:
                self._transport.close()

    def _head_bytes(self) -> int:
        return len(self._target) + sum(len(name) + len(value) for name, value in self._headers.items())

    def _begin(self, client: Client) -> None:
        self._at_work = client
        self._room.ranks.arriving += 1
        task = client.task = self._loop.create_task(self._work(client))
        self._room.tasks.add(task)

    async def _work(self, client: Client) -> None:
        self._room.ranks.arriving -= 1
        try:
            await self._serve(client)
        finally:
            if client.task is not None:
                self._room.tasks.discard(client.task)
            if not client.ended:
                self._break_off(client)

    def _break_off(self, client: Client) -> None:
        """The response will never be whole, and must not look as if it were."""
        if self._transport is None:
            return
        if client.is_modern:
            self._transport.close()  # the last chunk, or some of the declared length, is missing
        else:
            self._transport.abort()

    def _refuse(self, reason: str) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        at_work = self._at_work
        if (at_work is None or (at_work is self._arriving and not at_work.started)) and not self._is_last:
            head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {len(reason)}\r\n"
            transport.write(f"{head}connection: close\r\n\r\n{reason}".encode("ascii"))
        log.debug("bad_request reason=%s", reason)
        transport.close()

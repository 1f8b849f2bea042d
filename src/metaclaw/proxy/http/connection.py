"""A client's connection: parses HTTP/1.1 requests, serves them one at a time, and sends the
responses in order.
"""

import asyncio
import logging
import resource
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from typing import cast

import httptools

from metaclaw.proxy.http.client import Client

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
MAX_HEAD_FIELDS = 256
KEEP_ALIVE_S = 75.0
"""How long a connection may be idle between two requests, and how long a request's head may take to
arrive.
"""
LINGER_S = 5.0
"""How long the rest of a request that was answered early is read and dropped. If the connection
were closed at once, the client might not see the response."""
WRITE_TIMEOUT_S = 120.0
"""How long a client may leave its response unread."""
_HEAD_SLICE_BYTES = 4 * 1024
_BODY_SLICE_BYTES = 16 * 1024
_MAX_PIECES = 256
"""Body pieces parsed at once. Only tiny chunks make more; the rest waits until other connections
have been served.
"""
_VERSIONS = ("1.1", "1.0")
_OLD_VERSION = "This server speaks HTTP/1.1 and HTTP/1.0 only."
_NO_HOST = "The request has no Host header field."
_FIRST_PROBE_S = 0.25
_LAST_PROBE_S = 16.0


Serve = Callable[[Client], Awaitable[None]]


class Connection(asyncio.Protocol):
    """Parses requests and serves them one after the other. Only the request being served
    (`_at_work`) may write.

    Parsing stops while a request waits for the one before it, so at most one read of pipelined data
    is buffered."""

    def __init__(
        self, serve: Serve, listener: "Listener", write_timeout_s: float = WRITE_TIMEOUT_S
    ) -> None:
        self.peer: str | None = None
        self.is_full = False
        self._serve = serve
        self._listener = listener
        self._write_timeout_s = write_timeout_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._at_work: Client | None = None
        self._arriving: Client | None = None
        self._waiting: deque[Client] = deque()
        self._rest = b""  # received, not yet parsed
        self._drained: asyncio.Future[None] | None = None
        self._is_paused = False
        self._is_last = False
        self._is_leaving = False
        self._has_eof = False
        self._is_encrypted = False
        self._written_bytes = 0
        self._taken_bytes = -1
        self._taken_at = 0.0
        self._close_at = self._loop.time() + KEEP_ALIVE_S
        self._target = b""
        self._headers: dict[str, str] = {}
        self._in_head = True
        self._fed_bytes = 0
        self._fields = 0
        self._pieces = 0
        self._fault = ""

    # What a Client needs (client.Line).

    def send(self, data: bytes) -> None:
        """Send bytes; they are dropped if the client has left."""
        if self._transport is not None:
            self._written_bytes += len(data)
            self._transport.write(data)

    async def drain(self) -> None:
        """Wait until the client has read enough of what was sent, or has left."""
        if self.is_full and self._transport is not None:
            if self._drained is None:
                self._drained = self._loop.create_future()
            await self._drained

    def pause(self) -> None:
        """Stop reading until `resume`."""
        if not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Parse what has been received, then read on."""
        if not self._is_paused or self._transport is None or self._transport.is_closing():
            return
        self._is_paused = False
        if self._rest:
            self._parse(self._rest)
        if not self._is_paused and self._transport is not None:
            self._transport.resume_reading()

    def answered(self, client: Client) -> None:
        """End a response: serve the next request, unless this was the last or the client does not
        read.
        """
        self._at_work = None
        transport = self._transport
        if transport is None:
            return
        if not client.is_whole:
            self._is_last = True
            self._close_at = self._loop.time() + LINGER_S
            self.resume()
        elif not client.keeps or self._is_last:
            transport.close()
        elif self.is_full:
            self._close_at = self._loop.time() + KEEP_ALIVE_S
            self.pause()
        else:
            self._go_on()

    def _go_on(self) -> None:
        if self._waiting:
            self._begin(self._waiting.popleft())
        elif self._has_eof and self._transport is not None:
            self._transport.close()
            return
        else:
            self._close_at = self._loop.time() + KEEP_ALIVE_S
        if not self._waiting:
            # also while the last request is answered, to notice when its client leaves
            self.resume()

    # What a Listener needs.

    def check(self, now: float) -> None:
        """Close the connection if it has been idle for too long, or has read none of its response
        for too long.
        """
        transport = self._transport
        if transport is None:
            return
        unsent = transport.get_write_buffer_size()
        taken = self._written_bytes - unsent
        if not unsent or taken != self._taken_bytes:
            self._taken_bytes, self._taken_at = taken, now
        elif now - self._taken_at >= self._write_timeout_s:
            if self._at_work is not None:
                self._at_work.lose(f"the client read nothing for {self._write_timeout_s:g} s")
            transport.abort()
            return
        if self._at_work is None and now >= self._close_at:
            transport.close()

    def leave(self) -> None:
        """Close the connection after the next response."""
        self._is_leaving = True
        if self._at_work is not None and not self._at_work.started:
            self._at_work.keeps = False

    def end(self) -> None:
        """Close the connection after the response in progress."""
        self._is_last = True
        if self._at_work is not None:
            self._at_work.keeps = self._at_work.keeps and self._at_work.started
        elif self._transport is not None:
            self._transport.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)
        if not self._listener.admit(self):
            stream.write(_FULL)
            stream.close()
            return
        self._transport = stream
        self._is_encrypted = transport.get_extra_info("sslcontext") is not None
        address = transport.get_extra_info("peername")
        self.peer = str(address[0]) if isinstance(address, tuple) and address else None

    def data_received(self, data: bytes) -> None:
        self._parse(self._rest + data if self._rest else data)

    def eof_received(self) -> bool:
        """Answer the complete requests, then close.

        A client that closed only its sending side and a client that is gone look the same until
        something is sent to them."""
        self._has_eof = True
        if self._arriving is not None:
            self._arriving.lose()
        if self._at_work is None or self._is_encrypted:
            return False  # TLS has no half-closed connections
        self._loop.call_later(_FIRST_PROBE_S, self._probe, _FIRST_PROBE_S)
        return True

    def _probe(self, after_s: float) -> None:
        """Send bytes without meaning: if the client is gone, the connection is reset, and the next
        write shows it.
        """
        if self._transport is None or self._at_work is None:
            return
        self._at_work.probe()
        if after_s < _LAST_PROBE_S:
            self._loop.call_later(2 * after_s, self._probe, 2 * after_s)

    def _parse(self, data: bytes) -> None:
        """Feed the parser slice by slice, until a request has to wait or `_MAX_PIECES` is reached:
        the rest is parsed later.
        """
        self._rest, self._pieces = b"", 0
        view: bytes | memoryview = data if len(data) <= _HEAD_SLICE_BYTES else memoryview(data)
        at, size = 0, len(data)
        while at < size:
            piece = view[at : at + (_HEAD_SLICE_BYTES if self._in_head else _BODY_SLICE_BYTES)]
            at += len(piece)
            if self._in_head:
                self._fed_bytes += len(piece)
            try:
                self._parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                # Upgrades are not supported: the following bytes are the next request.
                self._parser = httptools.HttpRequestParser(self)
                at += upgrade.args[0] - len(piece)
            except httptools.HttpParserError:
                self._refuse(self._fault or "Invalid HTTP request received.")
                return
            if self._in_head and self._fed_bytes > MAX_HEAD_BYTES:
                self._refuse(f"The request's head is larger than {MAX_HEAD_BYTES} bytes.")
                return
            if at < size and (self._is_paused or self._pieces > _MAX_PIECES):
                self._rest = bytes(view[at:])
                if not self._is_paused:
                    self.pause()
                    self._loop.call_soon(self.resume)
                return

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._listener.connections.discard(self)
        self._waiting.clear()
        self.resume_writing()
        if self._at_work is not None:
            self._at_work.lose()

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)
        if self._at_work is None and self._transport is not None and not self._is_last:
            self._go_on()

    # httptools callbacks

    def on_message_begin(self) -> None:
        self._target = b""
        self._headers = {}
        self._fields = 0
        if self._at_work is None and not self._is_last:
            self._close_at = self._loop.time() + KEEP_ALIVE_S

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer, which is ignored
        self._fields += 1
        if self._fields > MAX_HEAD_FIELDS:
            self._fault = f"The request has more than {MAX_HEAD_FIELDS} header fields."
            raise ValueError(self._fault)  # the parser turns it into an HttpParserError
        headers, key, text = self._headers, name.decode("latin-1").lower(), value.decode("latin-1")
        if key in headers:
            if key == "host":
                self._fault = "The request has more than one Host header field."
                raise ValueError(self._fault)
            text = f"{headers[key]}, {text}"
        headers[key] = text

    def on_headers_complete(self) -> None:
        fields = self._headers.items()
        if (
            self._fed_bytes > MAX_HEAD_BYTES
            and len(self._target) + sum(len(a) + len(b) for a, b in fields) > MAX_HEAD_BYTES
        ):
            self._fault = f"The request's head is larger than {MAX_HEAD_BYTES} bytes."
            raise ValueError(self._fault)
        parser = self._parser
        version = parser.get_http_version()
        if version not in _VERSIONS or not self._headers.get("host"):
            self._fault = _NO_HOST if version in _VERSIONS else _OLD_VERSION
            raise ValueError(self._fault)
        self._in_head = False
        is_modern = version == "1.1"
        client = self._arriving = Client(
            self,
            parser.get_method().decode("latin-1"),
            self._target,
            self._headers,
            keeps=is_modern and parser.should_keep_alive() and not self._is_leaving,
            is_modern=is_modern,
        )
        if self._at_work is None and not self._waiting and not self._is_last:
            self._begin(client)
        else:
            self._waiting.append(client)
            self.pause()

    def on_body(self, body: bytes) -> None:
        self._pieces += 1
        if self._arriving is not None:
            self._arriving.feed(body)

    def on_message_complete(self) -> None:
        client, self._arriving = self._arriving, None
        self._in_head, self._fed_bytes = True, 0
        if client is not None:
            client.close_body()
            if client.ended and self._transport is not None:
                self._transport.close()

    def _begin(self, client: Client) -> None:
        self._at_work = client
        task = client.task = self._loop.create_task(self._work(client))
        self._listener.tasks.add(task)

    async def _work(self, client: Client) -> None:
        try:
            await self._serve(client)
        finally:
            if client.task is not None:
                self._listener.tasks.discard(client.task)
            if not client.ended:
                self._break_off(client)

    def _break_off(self, client: Client) -> None:
        """Close the connection so that the client sees that the response is incomplete."""
        if self._transport is None:
            return
        if client.is_modern:
            # the client misses the last chunk, or part of the declared length
            self._transport.close()
        else:
            self._transport.abort()

    def _refuse(self, reason: str) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        at_work = self._at_work
        if (
            at_work is None or (at_work is self._arriving and not at_work.started)
        ) and not self._is_last:
            head = (
                "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain;"
                f" charset=utf-8\r\ncontent-length: {len(reason)}\r\n"
            )
            transport.write(
                f"{head}x-content-type-options: nosniff\r\nconnection: close\r\n\r\n{reason}".encode(
                    "ascii"
                )
            )
        log.debug("bad_request reason=%s", reason)
        transport.close()


_BACKLOG = 2048
_ACCEPTED_AT_ONCE = 8
_OWN_FILES = 32
_FEWEST_CONNECTIONS = 8
_WARN_EVERY_S = 60.0
_FULL_REASON = b"MetaClaw has too many connections open; try again shortly."
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain;"
    b" charset=utf-8\r\ncontent-length: %d\r\nretry-after: 1\r\nx-content-type-options:"
    b" nosniff\r\nconnection: close\r\n\r\n%b" % (len(_FULL_REASON), _FULL_REASON)
)


def most_connections() -> int | None:
    """How many connections of clients leave as many open files to those of providers. None: any
    number.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        None
        if limit == resource.RLIM_INFINITY
        else max(_FEWEST_CONNECTIONS, (limit - _OWN_FILES) // 2)
    )


_TICK_S = 1.0
_HANDSHAKE_S = 10.0
_LEAVE_S = 0.5
_LAST_CHANCE_S = 1.0


class Listener:
    """Accepts the connections of one socket: as many as leave open files for those of providers.
    Others are answered with 503.
    """

    def __init__(self, serve: Serve, write_timeout_s: float = WRITE_TIMEOUT_S) -> None:
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.refused = 0
        self._most: int | None = None
        self._warn_at = 0.0
        self._serve = serve
        self._write_timeout_s = write_timeout_s
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def open(self, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Start accepting connections, by TLS if a context is given."""
        loop = asyncio.get_running_loop()

        def connection() -> Connection:
            return Connection(self._serve, self, self._write_timeout_s)

        self._most = most_connections()
        # asyncio accepts as many at once as its backlog before it asks whether they are admitted;
        # the system's queue may be longer.
        self._server = await loop.create_server(
            connection,
            sock=listening,
            backlog=_ACCEPTED_AT_ONCE,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else _HANDSHAKE_S,
        )
        listening.listen(_BACKLOG)
        self._timer = loop.call_later(_TICK_S, self._tick)

    def admit(self, connection: Connection) -> bool:
        """Take up a new connection, unless there are too many."""
        if self._most is None or len(self.connections) < self._most:
            self.connections.add(connection)
            return True
        self.refused += 1
        now = asyncio.get_running_loop().time()
        if now >= self._warn_at:
            self._warn_at = now + _WARN_EVERY_S
            why = "the system allows few open files (ulimit -n)"
            log.warning(
                "connections_refused count=%d most=%d reason=%s", self.refused, self._most, why
            )
        return False

    async def leave(self) -> None:
        """Accept no more connections: another process has the socket. A client that connected just
        now, or uses its connection again, is answered."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.leave()
        await asyncio.sleep(_LEAVE_S)

    async def close(self, within_s: float, hurry: asyncio.Event) -> None:
        """Accept no more connections. Let running answers finish for `within_s`, or until `hurry`
        is set; then cancel them.
        """
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.end()
        await self._finish(within_s, hurry)
        if self._timer is not None:
            self._timer.cancel()
        for task in self.tasks:
            task.cancel("the program is stopping")
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=_LAST_CHANCE_S)
        for connection in list(self.connections):
            connection.end()

    async def _finish(self, within_s: float, hurry: asyncio.Event) -> None:
        if not self.tasks:
            return
        hurried = asyncio.create_task(hurry.wait())
        finished = asyncio.create_task(asyncio.wait(self.tasks))
        await asyncio.wait(
            (hurried, finished), timeout=within_s, return_when=asyncio.FIRST_COMPLETED
        )
        for waiter in (hurried, finished):
            waiter.cancel()
        await asyncio.wait((hurried, finished))

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._timer = loop.call_later(
            _TICK_S, self._tick
        )  # first, so that an error does not end it
        for connection in list(self.connections):
            connection.check(now)

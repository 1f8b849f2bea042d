"""One HTTP request and its response: the body as it arrives, the response as it is sent, and
whether the client has left.
"""

import asyncio
import zlib
from collections.abc import Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Protocol

import msgspec
from msgspec.structs import force_setattr

from metaclaw.domain.chat import Json, Wire
from metaclaw.errors import WireError
from metaclaw.ports import Headers

RawHeaders = list[tuple[bytes, bytes]]

UNASKED_BYTES = 1024 * 1024
"""How much of a body is buffered before the key has been checked and the body is read."""

_STATUS_LINES = {
    int(status): f"HTTP/1.1 {int(status)} {status.phrase}\r\n".encode("ascii")
    for status in HTTPStatus
}
_BODILESS = frozenset((204, 304))
_LARGE_BYTES = 1024 * 1024
_PACKED_BYTES = 256 * 1024
_NOSNIFF = (b"x-content-type-options", b"nosniff")


class Incoming(msgspec.Struct, frozen=True, gc=False):
    """A request for an answer, decoded as JSON but not parsed in its wire.

    `json` has the fields of the body (`body.Body`); its messages may be in `json.listed` instead.
    """

    wire: Wire
    path: str
    query: str
    headers: Mapping[str, str]
    forward: Headers
    body: bytes
    json: Mapping[str, Json]
    peer: str | None
    received_at: datetime
    began: float
    stream: bool = False
    """Whether the client asked for the answer piece by piece."""
    model: str = ""
    """The model the client named, or an empty string."""

    def __post_init__(self) -> None:
        """Read the two fields of the body that many parts of the program need."""
        model = self.json.get("model")
        force_setattr(self, "stream", self.json.get("stream") is True)
        force_setattr(self, "model", model if isinstance(model, str) else "")


class ClientGone(Exception):  # noqa: N818 - an event, not a failure
    """The client closed its connection before its answer was complete."""


class Line(Protocol):
    """The connection as a client needs it (`connection.Connection`)."""

    peer: str | None
    is_full: bool
    """Whether the send buffer is above its limit."""

    def send(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def answered(self, client: "Client") -> None: ...


class Client:
    """One request and the response to it. Cancels the task that makes the response when the client
    goes away.
    """

    def __init__(
        self,
        line: Line,
        method: str,
        target: bytes,
        headers: dict[str, str],
        *,
        keeps: bool = True,
        is_modern: bool = True,
    ) -> None:
        """`target` is the target of the request line. `keeps` says whether the connection may be
        used again, `is_modern` whether the client speaks HTTP/1.1."""
        self.method = method
        self.target = target
        self.headers = headers
        self.keeps = keeps
        self.is_modern = is_modern
        self.is_whole = False
        self.started = False
        self.ended = False
        self.gone = False
        self.gone_reason = ""
        self.task: asyncio.Task[None] | None = None
        """The task that makes the response."""
        self._line = line
        self._pieces: list[bytes] = []
        self._size = 0
        self._limit = UNASKED_BYTES
        self._expects = (
            "expect" in headers and is_modern and headers["expect"].lower() == "100-continue"
        )
        self._waiter: asyncio.Future[None] | None = None
        self._gone_waiter: asyncio.Future[None] | None = None
        self._watched = False
        self._deferred: tuple[int, RawHeaders] | None = None
        self._chunked = False
        self._left: int | None = None  # bytes still to send of a response whose length was declared

    @property
    def peer(self) -> str | None:
        return self._line.peer

    # The request, as the connection hands it over.

    def feed(self, piece: bytes) -> None:
        """Take a piece of the body; it is dropped if the response has ended."""
        if self.ended:
            return
        before, self._size = self._size, self._size + len(piece)
        if before <= self._limit:
            self._pieces.append(piece)
            if self._size > self._limit and self._waiter is None:
                self._line.pause()
        self._wake()

    def close_body(self) -> None:
        """Record that the body is complete."""
        self.is_whole = True
        self._wake()

    def lose(self, reason: str = "the client went away before its answer was complete") -> None:
        """Record that the connection is lost, or about to be closed. The first `reason` counts."""
        self.gone = True
        self.gone_reason = self.gone_reason or reason
        self._wake()
        if self._gone_waiter is not None and not self._gone_waiter.done():
            self._gone_waiter.set_result(None)
        if self._watched and self.task is not None:
            self.task.cancel("client gone")

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def read(self, max_bytes: int, timeout_s: float) -> bytes:
        """Read the whole body. Raises WireError (413 if it is too large, 408 if it stops arriving),
        or ClientGone.
        """
        if not self.is_whole:
            await self._read_rest(max_bytes, timeout_s)
        if self._size > max_bytes:
            raise too_large(max_bytes)
        pieces, self._pieces = self._pieces, []
        if self._size < _LARGE_BYTES:
            return b"".join(pieces)
        # Joining them does not hold the interpreter's lock.
        return await asyncio.to_thread(b"".join, pieces)

    async def _read_rest(self, max_bytes: int, timeout_s: float) -> None:
        self._limit = max_bytes
        if self._expects and not self._size:
            self._line.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        loop = asyncio.get_running_loop()
        try:
            while not self.is_whole and self._size <= max_bytes:
                if self.gone:
                    raise ClientGone
                self._waiter = loop.create_future()
                self._line.resume()
                async with asyncio.timeout(timeout_s):
                    await self._waiter
        except TimeoutError as error:
            raise WireError(
                f"the request body did not arrive within {timeout_s:g} s",
                status=408,
                code="request_timeout",
            ) from error
        finally:
            self._waiter = None

    # The connection.

    def probe(self) -> None:
        """Send bytes that every client must ignore: an interim response, or a leading zero of the
        next chunk's size.
        """
        if self._chunked and not self.ended:
            self._line.send(b"0")
        elif self.is_modern and not self.started:
            self._line.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def watch(self) -> None:
        """From now until `unwatch`, a disconnect sets `gone` and cancels the task that makes the
        response.
        """
        self._watched = True
        if self.gone and self.task is not None:
            self.task.cancel("client gone")

    def unwatch(self) -> None:
        """Stop watching: a disconnect no longer cancels the task."""
        self._watched = False

    async def wait_gone(self) -> None:
        if not self.gone:
            self._gone_waiter = asyncio.get_running_loop().create_future()
            await self._gone_waiter

    # The response.

    def start(self, status: int, headers: RawHeaders) -> None:
        """Send the status line and headers, once. Without a content length the body is sent in
        chunks.
        """
        has_body = self.method != "HEAD" and status not in _BODILESS
        declared = next((value for name, value in headers if name == b"content-length"), None)
        if has_body and declared is None:
            if self.is_modern:
                self._chunked = True
                headers = [*headers, (b"transfer-encoding", b"chunked")]
            else:
                self.keeps = False
        elif has_body and declared is not None and declared.isdigit():
            self._left = int(declared)
        head = self._head(status, headers)
        self.started = True
        self._line.send(head)

    async def write(self, data: bytes) -> None:
        """Send a piece of the body, then wait if the client reads too slowly."""
        if data and not self.send(data):
            await self.drain()

    def send(self, data: bytes) -> bool:
        """Send a piece of the body. False if the client reads too slowly: `drain` before the next
        piece.
        """
        self._send_piece(data)
        return not self._line.is_full

    async def drain(self) -> None:
        """Wait until the client has read enough, or has left."""
        if self._line.is_full:
            await self._line.drain()

    def defer(self, status: int, headers: RawHeaders) -> None:
        """Set status and headers of a whole answer; `finish` sends them together with its body."""
        self._deferred = (status, headers)

    def finish(self, data: bytes = b"") -> None:
        """Send the deferred head, if there is one, and the last piece of the body; end the
        response.
        """
        deferred = self._deferred
        if deferred is not None:
            status, headers = deferred
            head = self._head(status, [*headers, (b"content-length", b"%d" % len(data))])
            self.started = True
            self._line.send(head if self.method == "HEAD" or status in _BODILESS else head + data)
        elif self._chunked:
            self._line.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n")
        else:
            if data:
                self._send_piece(data)
            if self._left:
                # only closing the connection shows the client that the body is incomplete
                self.keeps = False
        self.ended = True
        self._line.answered(self)

    def respond(self, status: int, headers: RawHeaders, body: bytes) -> None:
        self._deferred = (status, headers)
        self.finish(body)

    def _send_piece(self, data: bytes) -> None:
        if self._chunked:
            self._line.send(b"%x\r\n%b\r\n" % (len(data), data))
        elif self.method != "HEAD":
            if self._left is not None:
                self._left = max(0, self._left - len(data))
            self._line.send(data)

    def _head(self, status: int, headers: RawHeaders) -> bytes:
        if not self.is_whole:
            self.keeps = False  # the rest of this request would be parsed as the next one
        if status >= 400:
            headers = [field for field in headers if field[0].lower() != _NOSNIFF[0]] + [_NOSNIFF]
        lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
        lines += [b"%b: %b\r\n" % field for field in headers]
        lines.append(b"\r\n" if self.keeps else b"connection: close\r\n\r\n")
        head = b"".join(lines)
        if head.count(b"\n") != len(headers) + (2 if self.keeps else 3):
            raise ValueError("a response header has a line break in it")
        return head


def too_large(max_bytes: int) -> WireError:
    """The error for a body beyond the limit."""
    return WireError(
        f"the request body is larger than {max_bytes} bytes; raise proxy.max_body_bytes if you"
        " mean it",
        status=413,
        code="request_too_large",
    )


async def read_body(
    client: Client, headers: Mapping[str, str], *, max_bytes: int, timeout_s: float
) -> bytes:
    """Read and decompress the whole body. Raises WireError 413 if it is too large, and what
    `Client.read` raises.
    """
    declared = headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared) > max_bytes:
        raise too_large(max_bytes)
    body = await client.read(max_bytes, timeout_s)
    encoding = headers.get("content-encoding")
    if encoding is None:
        return body
    encoding = encoding.strip().lower()
    return (
        body
        if encoding in ("", "identity")
        else await asyncio.to_thread(unpack, body, encoding, max_bytes)
    )


def unpack(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """Decompress gzip or deflate. Raises WireError 413 beyond `max_bytes`."""
    bits = {"gzip": 31, "x-gzip": 31, "deflate": 15}.get(encoding)
    if bits is None:
        raise WireError(
            f"content-encoding {encoding!r} is not understood; send gzip, deflate or none",
            status=415,
            code="unsupported_encoding",
        )
    stream = zlib.decompressobj(bits)
    pieces: list[bytes] = []
    size = 0
    # In pieces: a single call would hold the interpreter's lock while it puts its result together.
    for begin in range(0, len(body), _PACKED_BYTES):
        rest = body[begin : begin + _PACKED_BYTES]
        while rest and not stream.eof:
            try:
                pieces.append(stream.decompress(rest, _LARGE_BYTES))
            except zlib.error as error:
                raise WireError(f"the body is not valid {encoding}: {error}") from error
            rest = stream.unconsumed_tail
            size += len(pieces[-1])
            if size > max_bytes:
                raise too_large(max_bytes)
    if not stream.eof:
        raise WireError(f"the {encoding} body ends too early")
    return b"".join(pieces)

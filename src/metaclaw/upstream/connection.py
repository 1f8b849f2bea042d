"""One HTTP/1.1 connection to a provider, and the response that arrives on it."""

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import cast

import httptools

from metaclaw.errors import UpstreamError
from metaclaw.ports import Headers
from metaclaw.upstream.transport import ClosedEarlyError, MalformedAnswerError, failure

MAX_HEAD_BYTES = 64 * 1024
HIGH_WATER_BYTES = 256 * 1024
LOW_WATER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts for opening a connection, for the first byte of a response, and between two reads of
    it.
    """

    connect_s: float = 10.0
    first_byte_s: float = 600.0
    idle_s: float = 300.0


Take = Callable[[bytes], bool]
"""Takes a chunk of a response; returns False to pause."""


class StaleConnectionError(Exception):
    """An idle connection was closed before the first byte of a response: the call may be sent again
    on a new one.
    """


class ProviderResponse:
    """A provider's response as it arrives (ports.Reply). It buffers bytes, so that the connection
    is free after the last byte.

    If a task is cancelled while it waits for the next chunk, the connection is closed.
    """

    def __init__(self, connection: "ProviderConnection", peer: str) -> None:
        self.status = 0
        self.headers: Headers = ()
        self.buffered_bytes = 0
        self._connection = connection
        self._peer = peer
        self._chunks: deque[bytes] = deque()
        self._ended = False
        self._failure: BaseException | None = None
        self._refusal: UpstreamError | None = None
        self._take: Take | None = None
        self._waiter: asyncio.Future[None] | None = None

    def chunks(self) -> AsyncIterator[bytes]:
        return self

    def __aiter__(self) -> "ProviderResponse":
        return self

    async def __anext__(self) -> bytes:
        while not self._chunks:
            if self._ended:
                self._raise_failure()
                raise StopAsyncIteration
            await self.change()
        chunk = self._chunks.popleft()
        self.buffered_bytes -= len(chunk)
        if self.buffered_bytes <= LOW_WATER_BYTES:
            self._connection.read_on(self)
        return chunk

    async def pour(self, take: "Take") -> bool:
        """Call `take` with every chunk as it arrives, without waking the waiting task, until `take`
        returns False.

        Returns True if `take` returned False, and False at the end of the body.
        """
        while self._chunks:
            if not take(await anext(self)):
                return True
        self._take = take
        try:
            while self._is_taking() and not self._ended:
                await self.change()
            has_enough = not self._is_taking()
        finally:
            self._take = None
        if self._refusal is not None:
            raise self._refusal
        if not has_enough:
            self._raise_failure()
        return has_enough

    def _is_taking(self) -> bool:
        return self._take is not None

    async def aclose(self) -> None:
        """Cancel the call: close the connection at once."""
        self._chunks.clear()
        self.buffered_bytes = 0
        self._connection.drop(self)

    def begin(self, status: int, headers: Headers) -> None:
        """Record status and headers."""
        self.status = status
        self.headers = headers
        self._wake()

    def add(self, chunk: bytes) -> None:
        """Add a chunk of the body."""
        if self._take is not None and not self._chunks:
            self._hand_over(chunk, self._take)
            return
        self._chunks.append(chunk)
        self.buffered_bytes += len(chunk)
        self._wake()

    def end(self, cause: BaseException | None = None) -> None:
        """Record the end of the body, or its failure with `cause`."""
        if not self._ended:
            self._ended = True
            self._failure = cause
            self._wake()

    def _hand_over(self, chunk: bytes, take: "Take") -> None:
        try:
            goes_on = take(chunk)
        except UpstreamError as error:
            self._refusal = error
            goes_on = False
        if not goes_on:
            self._take = None
            self._wake()

    def _raise_failure(self) -> None:
        cause = self._failure
        if isinstance(cause, StaleConnectionError):
            raise cause
        if cause is not None:
            raise failure(self._peer, cause, head_seen=bool(self.status)) from cause

    async def change(self) -> None:
        """Wait for more of the response. Raises the failure of the call."""
        if self._ended:
            self._raise_failure()
        self._waiter = self._connection.loop.create_future()
        try:
            await self._waiter
        except asyncio.CancelledError:
            self._connection.drop(self)
            raise
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class ProviderConnection(asyncio.Protocol):
    """Makes one call at a time. `on_free` is called when it is free again, `on_lost` when it is
    closed.
    """

    def __init__(
        self,
        peer: str,
        timeouts: Timeouts,
        on_free: "Callable[[ProviderConnection], None]",
        on_lost: "Callable[[ProviderConnection], None]",
    ) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.idle_since = 0.0
        self.loop = asyncio.get_running_loop()
        self._peer = peer
        self._timeouts = timeouts
        self._on_free = on_free
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: ProviderResponse | None = None
        self._deadline = 0.0
        self._calls = 0
        self._read_paused = False
        self._reset("")

    def _reset(self, method: str) -> None:
        self._method = method
        self._headers: list[tuple[str, str]] = []
        self._pieces: list[bytes] = []
        self._header_bytes = 0
        self._raw_head_bytes = 0
        self._head_seen = False
        self._whole = False
        self._keep_alive = False
        self._until_close = True

    @property
    def is_usable(self) -> bool:
        """Whether a call may be sent on it now."""
        return (
            self._transport is not None
            and self._answer is None
            and not self._transport.is_closing()
        )

    async def send(self, method: str, head: bytes, body: bytes) -> ProviderResponse:
        """Send a call in one write and return once the response head has arrived."""
        transport = self._transport
        if transport is None or not self.is_usable:
            unanswered = ClosedEarlyError("closed without an answer")
            raise (
                StaleConnectionError
                if self._calls
                else failure(self._peer, unanswered, head_seen=False)
            )
        self._reset(method)
        self._calls += 1
        answer = self._answer = ProviderResponse(self, self._peer)
        self._deadline = self.loop.time() + self._timeouts.first_byte_s
        transport.writelines((head, body) if body else (head,))
        while not answer.status:
            await answer.change()
        return answer

    def drop(self, answer: ProviderResponse | None = None) -> None:
        """Close at once; with `answer`, only if that response is still arriving."""
        if answer is not None and answer is not self._answer:
            return
        if self._answer is not None:
            self._answer.end(ClosedEarlyError("the call was given up"))
            self._answer = None
        if self._transport is not None:
            self._transport.abort()

    def read_on(self, answer: ProviderResponse) -> None:
        """Resume reading from the socket after the reader has caught up."""
        if self._read_paused and answer is self._answer and self._transport is not None:
            self._read_paused = False
            self._deadline = self.loop.time() + self._timeouts.idle_s
            self._transport.resume_reading()

    def check_deadline(self, now: float) -> None:
        """Fail the call if its deadline has passed, unless our reader is the slow side."""
        if self._answer is None or self._read_paused or now < self._deadline:
            return
        waited, what = (
            (self._timeouts.idle_s, "sent nothing")
            if self._answer.status
            else (self._timeouts.first_byte_s, "did not answer")
        )
        self._fail(TimeoutError(f"{what} for {waited:g} s"))

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:
            # Unexpected bytes must not become part of the next response.
            self.drop()
            return
        self._deadline = self.loop.time() + self._timeouts.idle_s
        trouble = self._parse(data)
        if self._pieces:
            answer.add(self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces))
            self._pieces = []
        if self._whole:
            self._finish(answer, reusable=self._keep_alive and trouble is None)
        elif trouble is not None:
            self._fail(trouble)
        elif (
            answer.buffered_bytes > HIGH_WATER_BYTES
            and self._transport is not None
            and not self._read_paused
        ):
            self._read_paused = True
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        answer, self._answer = self._answer, None
        self._transport = None
        if answer is not None:
            answer.end(self._loss(answer, exc))
        if not self.closed.done():
            self.closed.set_result(None)
        self._on_lost(self)

    # httptools callbacks

    def on_message_begin(self) -> None:
        if self._whole:
            raise MalformedAnswerError("more bytes than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_seen:
            return  # a trailer, which is ignored
        self._header_bytes += len(name) + len(value) + 4
        _check_head(self._header_bytes)
        lower, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self._headers.append((lower, text))
        if lower == "content-length":
            self._until_close = False
        elif lower == "transfer-encoding":
            self._until_close = _is_close_delimited(text.lower())

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status == 101 or status < 100:
            raise MalformedAnswerError(f"status {status} where an answer was due")
        if status < 200:
            self._headers = []
            self._until_close = True
            return
        self._head_seen = True
        self._keep_alive = self._parser.should_keep_alive()
        if self._answer is not None:
            self._answer.begin(status, self._headers)
        if self._method == "HEAD":
            # The parser cannot know that no body follows: stop it here, which also closes the
            # connection.
            self._whole = True
            raise MalformedAnswerError("the answer to HEAD has no body")

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self._whole = self._head_seen

    def _parse(self, data: bytes) -> BaseException | None:
        try:
            self._parser.feed_data(data)
            if not self._head_seen:
                self._raw_head_bytes += len(data)
                _check_head(self._raw_head_bytes)
        except httptools.HttpParserCallbackError as wrapped:
            return wrapped.__context__ or wrapped
        except (
            httptools.HttpParserError,
            httptools.HttpParserUpgrade,
            MalformedAnswerError,
        ) as trouble:
            return trouble
        return None

    def _finish(self, answer: ProviderResponse, *, reusable: bool) -> None:
        self._answer = None
        answer.end()
        transport = self._transport
        if transport is None:
            return
        if self._read_paused:
            self._read_paused = False
            transport.resume_reading()
        if reusable and not transport.is_closing() and not transport.get_write_buffer_size():
            self.idle_since = self.loop.time()
            self._on_free(self)
        else:
            transport.abort()

    def _fail(self, cause: BaseException) -> None:
        if self._answer is not None:
            self._answer.end(cause)
            self._answer = None
        self.drop()

    def _loss(self, answer: ProviderResponse, exc: Exception | None) -> BaseException | None:
        if answer.status:
            if self._until_close and exc is None:
                return None
            return exc or ClosedEarlyError("closed in the middle of the answer")
        if self._calls > 1 and not self._raw_head_bytes:
            return StaleConnectionError()
        return exc or ClosedEarlyError("closed without an answer")


async def pour(chunks: AsyncIterator[bytes], take: Take) -> bool:
    """`ProviderResponse.pour` for the chunks of any reply."""
    if isinstance(chunks, ProviderResponse):
        return await chunks.pour(take)
    async for chunk in chunks:
        if not take(chunk):
            return True
    return False


def _check_head(head_bytes: int) -> None:
    if head_bytes > MAX_HEAD_BYTES:
        raise MalformedAnswerError(f"headers beyond {MAX_HEAD_BYTES} bytes")


def _is_close_delimited(coding: str) -> bool:
    if coding not in ("chunked", "identity"):
        raise MalformedAnswerError(f"transfer-encoding {coding!r} is not supported")
    return coding == "identity"

"""Undo a compression nobody asked for: the ledger must be able to read what was said."""

import zlib
from collections.abc import AsyncIterator

from metaclaw.ports import Headers, Reply
from metaclaw.upstream.failures import ClosedEarlyError, failure

_PIECE_BYTES = 256 * 1024
_GZIP_MAGIC = b"\x1f\x8b"
_CODINGS = frozenset({"gzip", "x-gzip", "deflate"})


def readable(reply: Reply, peer: str) -> Reply:
    """The reply itself, or, where it is compressed with gzip or deflate, one that yields the plain bytes."""
    for name, value in reply.headers:
        if name == "content-encoding":
            return _Plain(reply, peer) if value.strip().lower() in _CODINGS else reply
    return reply


class _Plain:
    """A reply whose body is decompressed piece by piece, so that a small answer cannot become a huge one in memory."""

    def __init__(self, reply: Reply, peer: str) -> None:
        self._reply = reply
        self._peer = peer
        self._source = reply.chunks()
        self._inflater = _Inflater()

    @property
    def status(self) -> int:
        return self._reply.status

    @property
    def headers(self) -> Headers:
        return [(name, value) for name, value in self._reply.headers if name not in ("content-encoding", "content-length")]

    def chunks(self) -> AsyncIterator[bytes]:
        return self

    def __aiter__(self) -> "_Plain":
        return self

    async def __anext__(self) -> bytes:
        while True:
            try:
                piece = self._inflater.next_piece()
            except zlib.error as cause:
                await self._reply.aclose()
                raise failure(self._peer, cause, head_seen=True) from cause
            if piece:
                return piece
            try:
                self._inflater.feed(await anext(self._source))
            except StopAsyncIteration:
                if self._inflater.is_mid_stream:
                    raise failure(self._peer, ClosedEarlyError("its compressed answer has no end"), head_seen=True) from None
                raise

    async def aclose(self) -> None:
        await self._reply.aclose()


class _Inflater:
    """gzip (also several members in a row), zlib or bare deflate, told apart by the first two bytes."""

    def __init__(self) -> None:
        self._pending = b""
        self._stream: zlib._Decompress | None = None
        self._has_more = False
        self._members = 0

    @property
    def is_mid_stream(self) -> bool:
        return self._stream is not None or (not self._members and bool(self._pending))

    def feed(self, chunk: bytes) -> None:
        self._pending += chunk

    def next_piece(self) -> bytes:
        """Up to a piece's worth of plain bytes; empty when more input is needed."""
        while self._stream is not None or self._begin():
            if not (self._pending or self._has_more):
                break
            piece = self._inflate()
            if piece:
                return piece
        return b""

    def _begin(self) -> bool:
        if len(self._pending) < 2:
            return False
        if self._members and self._pending[:2] != _GZIP_MAGIC:
            self._pending = b""  # padding behind the last member
            return False
        self._stream = zlib.decompressobj(_window_bits(self._pending[0], self._pending[1]))
        return True

    def _inflate(self) -> bytes:
        stream = self._stream
        if stream is None:
            return b""
        piece = stream.decompress(self._pending, _PIECE_BYTES)
        # A full piece may have left output behind inside zlib even where all input is used up.
        self._has_more = len(piece) == _PIECE_BYTES and not stream.eof
        self._pending = stream.unused_data if stream.eof else stream.unconsumed_tail
        if stream.eof:
            self._stream = None
            self._members += 1
        return piece


def _window_bits(first: int, second: int) -> int:
    if bytes((first, second)) == _GZIP_MAGIC:
        return zlib.MAX_WBITS | 16
    is_zlib = first & 0x0F == 8 and (first << 8 | second) % 31 == 0
    return zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS

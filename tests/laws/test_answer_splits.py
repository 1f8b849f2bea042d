"""However an answer's bytes are split on their way, its body is the same, and so is what goes wrong
with it.
"""

import asyncio
import gzip
import json
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.errors import UpstreamError
from metaclaw.upstream.connection import ProviderConnection, Timeouts
from metaclaw.upstream.endpoint import decompressed
from tests.support.depth import tries


class Wire(asyncio.Transport):
    """A transport that swallows what is written and remembers being closed."""

    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        return

    def is_closing(self) -> bool:
        return self.is_closed

    def abort(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return

    def get_write_buffer_size(self) -> int:
        return 0


async def outcome(pieces: Iterable[bytes], *, close: bool) -> tuple[int, bytes, str, bool]:
    """Status, body, error and whether the connection may be used again, for an answer that arrives
    in these pieces.
    """
    freed: list[ProviderConnection] = []
    connection = ProviderConnection("provider p", Timeouts(), freed.append, lambda _: None)
    transport = Wire()
    connection.connection_made(transport)
    call = asyncio.create_task(connection.send("POST", b"", b"{}"))
    await asyncio.sleep(0)
    for piece in pieces:
        if not transport.is_closed:
            connection.data_received(piece)
    if close or transport.is_closed:
        connection.connection_lost(None)
    status, body = 0, b""
    try:
        reply = decompressed(await call, "provider p")
        status = reply.status
        async for chunk in reply.chunks():
            assert chunk
            body += chunk
    except UpstreamError as error:
        return status, body, error.code, bool(freed)
    return status, body, "", bool(freed)


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """An answer, whole or cut off."""
    body = draw(st.binary(max_size=60))
    packed = gzip.compress(body) if draw(st.booleans()) else body
    fields = [b"Content-Encoding: gzip"] if packed is not body else []
    framing = draw(st.sampled_from(["length", "chunked", "close"]))
    match framing:
        case "length":
            fields.append(b"Content-Length: %d" % len(packed))
            framed = packed
        case "chunked":
            fields.append(b"Transfer-Encoding: chunked")
            cut = draw(st.integers(0, len(packed)))
            parts = [part for part in (packed[:cut], packed[cut:]) if part]
            framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        case _:
            framed = packed
    interim = draw(st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n"]))
    whole = (
        interim
        + b"\r\n".join(
            [b"HTTP/1.1 %d X" % draw(st.sampled_from([200, 404, 529])), *fields, b"", b""]
        )
        + framed
    )
    if draw(st.booleans()):
        whole = whole[: draw(st.integers(0, len(whole)))]
    return whole


@settings(max_examples=tries(50, nightly=750), deadline=None)
@given(answers(), st.data())
def test_any_split_of_an_answer_means_the_same(whole: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(whole) - 1)))))
    pieces = [whole[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]

    async def both() -> tuple[object, object, object]:
        bytewise = [whole[at : at + 1] for at in range(len(whole))]
        return (
            await outcome([whole], close=True),
            await outcome(filter(None, pieces), close=True),
            await outcome(bytewise, close=True),
        )

    at_once, split, bytewise = asyncio.run(both())
    assert at_once == split == bytewise


@pytest.mark.parametrize(
    "tail", [b"", b"garbage", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"]
)
def test_what_follows_an_answer_changes_nothing_but_the_connections_future(tail: bytes) -> None:
    body = json.dumps({"a": 1}).encode()
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    assert asyncio.run(outcome([answer + tail], close=False)) == (200, body, "", not tail)
    split = asyncio.run(outcome([answer, *([tail] if tail else [])], close=False))
    assert split[:3] == (200, body, "")

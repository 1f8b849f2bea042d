"""Requests from clients: whatever way their bytes come, they are served in order, and what is no
request is refused.
"""

import asyncio
from itertools import pairwise

import pytest
from anyio import fail_after
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaclaw.errors import WireError
from metaclaw.proxy.http.client import UNASKED_BYTES, Client
from metaclaw.proxy.http.connection import MAX_HEAD_BYTES
from tests.proxy.talking import PLAIN, ask, connected, echo, post, read_response, serving
from tests.support.cases import each


@pytest.fixture(params=[pytest.param(True, id="uvloop"), pytest.param(False, id="asyncio")])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """The event loop the program uses, and the standard library's."""
    return "asyncio", {"use_uvloop": request.param}


@pytest.mark.anyio
async def test_one_connection_carries_one_request_after_the_other() -> None:
    with fail_after(60):
        async with serving(echo) as (listener, port):
            reader, writer = await connected(port)
            for word in (b"one", b"two"):
                writer.write(post(word))
                status, fields, body = await read_response(reader)
                assert (status, body) == (200, b"POST /x " + word)
                assert "connection" not in fields
            assert len(listener.connections) == 1


@pytest.mark.anyio
async def test_requests_sent_ahead_are_answered_in_the_order_they_came() -> None:
    let_go = asyncio.Event()
    order: list[bytes] = []

    async def slow_first(client: Client) -> None:
        if client.target == b"/slow":
            await let_go.wait()
        order.append(client.target)
        await echo(client)

    with fail_after(60):
        async with serving(slow_first) as (_, port):
            reader, writer = await connected(port)
            writer.write(
                b"GET /slow HTTP/1.1\r\nhost: h\r\n\r\n"
                + post(b"body")
                + b"GET /last HTTP/1.1\r\nhost: h\r\n\r\n"
            )
            await asyncio.sleep(0.02)
            assert order == []
            let_go.set()
            bodies = [(await read_response(reader))[2] for _ in range(3)]
            assert bodies == [b"GET /slow ", b"POST /x body", b"GET /last "]


@pytest.mark.anyio
async def test_a_body_is_read_whole_however_it_comes() -> None:
    with fail_after(60):
        async with serving(echo) as (_, port):
            whole = post(b"hello world")
            assert (await ask(port, whole[:30], whole[30:-4], whole[-4:]))[
                2
            ] == b"POST /x hello world"
            chunked = b"POST /c HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
            chunked += b"5\r\nhello\r\n6\r\n world\r\n0\r\nx-trailer: 1\r\n\r\n"
            assert (await ask(port, chunked))[2] == b"POST /c hello world"


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(cuts=st.lists(st.integers(1, 220), max_size=6))
def test_any_split_of_the_bytes_gives_the_same_answers(cuts: list[int]) -> None:
    chunked = (
        b"POST /c HTTP/1.1\r\nhost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    )
    sent = post(b"first", b"a: 1", b"a: 2") + chunked + b"GET /%41?q=1 HTTP/1.1\r\nhost: h\r\n\r\n"
    places = sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent))})

    async def exchange() -> list[bytes]:
        async with serving(echo) as (_, port):
            reader, writer = await connected(port)
            for begin, end in pairwise(places):
                writer.write(sent[begin:end])
                await writer.drain()
                await asyncio.sleep(0.001)
            answers = [(await read_response(reader))[2] for _ in range(3)]
            writer.close()
            return answers

    assert asyncio.run(exchange()) == [b"POST /x first", b"POST /c abc", b"GET /%41?q=1 "]


@pytest.mark.anyio
async def test_a_client_that_asks_first_is_told_to_go_on_only_when_its_body_is_wanted() -> None:
    async def refuse(client: Client) -> None:
        client.respond(401, PLAIN, b"no")

    head = b"POST /x HTTP/1.1\r\nhost: h\r\nexpect: 100-Continue\r\ncontent-length: 3\r\n\r\n"
    with fail_after(60):
        async with serving(echo) as (_, port):
            reader, writer = await connected(port)
            writer.write(head)
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"abc")
            assert (await read_response(reader))[2] == b"POST /x abc"
            writer.close()
        async with serving(refuse) as (_, port):
            status, fields, _ = await ask(port, head)
            assert (status, fields["connection"]) == (401, "close")


@pytest.mark.anyio
async def test_a_body_over_the_limit_is_refused_and_the_answer_can_still_be_read() -> None:
    with fail_after(60):
        async with serving(echo) as (_, port):
            chunk = b"1000\r\n" + b"x" * 4096 + b"\r\n"
            reader, writer = await connected(port)
            writer.write(
                b"POST /x HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n" + chunk * 500
            )
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            status, fields, body = await read_response(reader)
            assert (status, fields["connection"]) == (413, "close")
            assert b"larger than 1000 bytes" in body
            assert await reader.read() == b""


@pytest.mark.anyio
async def test_what_nobody_asked_for_is_read_only_up_to_a_bound() -> None:
    asked = asyncio.Event()

    async def later(client: Client) -> None:
        await asked.wait()
        body = await client.read(64 * UNASKED_BYTES, 5)
        client.respond(200, PLAIN, str(len(body)).encode())

    size = 24 * UNASKED_BYTES
    with fail_after(60):
        async with serving(later) as (_, port):
            reader, writer = await connected(port)
            writer.write(post(b"x" * size))
            sending = asyncio.create_task(writer.drain())
            done, _ = await asyncio.wait([sending], timeout=0.2)
            assert not done, "all of it was read before anybody asked"
            asked.set()
            await sending
            assert (await read_response(reader))[2] == str(size).encode()


@pytest.mark.anyio
async def test_a_body_that_does_not_come_is_a_408() -> None:
    async def impatient(client: Client) -> None:
        with pytest.raises(WireError) as caught:
            await client.read(1000, 0.02)
        client.respond(caught.value.status, PLAIN, b"")

    with fail_after(60):
        async with serving(impatient) as (_, port):
            assert (await ask(port, b"POST /x HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\n\r\nab"))[
                0
            ] == 408


@pytest.mark.anyio
@each(
    "sent",
    [
        b"GET / HTTP/1.1\r\nhost: h\r\nx: " + b"a" * (MAX_HEAD_BYTES + 1) + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: h\r\nx: " + b"a" * (2 * MAX_HEAD_BYTES),
        b"GET /" + b"a" * (2 * MAX_HEAD_BYTES) + b" HTTP/1.1\r\nhost: h\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"GET / HTTP/1.1\r\nhost: h\r\nno colon\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
    ],
)
async def test_what_is_no_request_or_has_no_end_is_refused_and_hung_up_on(sent: bytes) -> None:
    with fail_after(60):
        async with serving(echo) as (listener, port):
            reader, writer = await connected(port)
            writer.write(sent)
            status, fields, _ = await read_response(reader)
            assert (status, fields["connection"]) == (400, "close")
            writer.close()
            while listener.connections:
                await asyncio.sleep(0.005)


@pytest.mark.anyio
async def test_a_large_body_in_the_same_read_does_not_make_the_head_too_large() -> None:
    async def count(client: Client) -> None:
        client.respond(200, PLAIN, str(len(await client.read(10**6, 5))).encode())

    with fail_after(60):
        async with serving(count) as (_, port):
            assert (await ask(port, post(b"x" * (2 * MAX_HEAD_BYTES))))[2] == str(
                2 * MAX_HEAD_BYTES
            ).encode()


@pytest.mark.anyio
async def test_the_answer_to_head_has_the_length_and_no_body() -> None:
    with fail_after(60):
        async with serving(echo) as (_, port):
            reader, writer = await connected(port)
            for _ in range(2):
                writer.write(b"HEAD /x HTTP/1.1\r\nhost: h\r\n\r\n")
                status, fields, _ = await read_response(reader, has_body=False)
                assert (status, fields["content-length"]) == (200, str(len(b"HEAD /x ")))


@pytest.mark.anyio
async def test_an_old_client_gets_no_chunks_and_a_closed_connection() -> None:
    async def stream(client: Client) -> None:
        client.start(200, PLAIN)
        await client.write(b"one ")
        client.finish(b"two")

    with fail_after(60):
        async with serving(stream) as (_, port):
            status, fields, body = await ask(
                port, b"GET / HTTP/1.0\r\nhost: h\r\nconnection: keep-alive\r\n\r\n"
            )
            assert (status, fields["connection"], body) == (200, "close", b"one two")
            assert "transfer-encoding" not in fields


@pytest.mark.anyio
async def test_every_piece_of_a_stream_leaves_on_its_own() -> None:
    seen = asyncio.Event()

    async def stream(client: Client) -> None:
        client.start(200, PLAIN)
        await client.write(b"first")
        await seen.wait()
        await client.write(b"")
        client.finish()

    with fail_after(60):
        async with serving(stream) as (_, port):
            reader, writer = await connected(port)
            writer.write(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
            assert (await reader.readuntil(b"first\r\n")).endswith(b"\r\n\r\n5\r\nfirst\r\n")
            seen.set()
            assert await reader.readexactly(5) == b"0\r\n\r\n"
            writer.write(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
            assert (await read_response(reader))[2] == b"first"


@pytest.mark.anyio
async def test_a_declared_length_is_kept_to_and_a_missing_rest_closes_the_connection() -> None:
    async def short(client: Client) -> None:
        client.start(200, [(b"content-length", b"5")])
        client.finish(b"abc" if client.target == b"/short" else b"abcde")

    with fail_after(60):
        async with serving(short) as (_, port):
            reader, writer = await connected(port)
            writer.write(b"GET /whole HTTP/1.1\r\nhost: h\r\n\r\n")
            assert (await read_response(reader))[2] == b"abcde"
            writer.write(b"GET /short HTTP/1.1\r\nhost: h\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.read() == b"abc"


@pytest.mark.anyio
async def test_repeated_fields_are_joined_and_names_are_lower_case() -> None:
    seen: list[tuple[dict[str, str], str | None]] = []

    async def tell(client: Client) -> None:
        seen.append((client.headers, client.peer))
        await echo(client)

    with fail_after(60):
        async with serving(tell) as (_, port):
            await ask(
                port, b"GET / HTTP/1.1\r\nhost: h\r\nX-A: 1\r\nx-a: 2\r\nX-B: caf\xe9\r\n\r\n"
            )
    assert seen == [({"host": "h", "x-a": "1, 2", "x-b": "caf\xe9"}, "127.0.0.1")]


@pytest.mark.anyio
async def test_a_header_with_a_line_break_is_never_sent() -> None:
    raised = asyncio.Event()

    async def smuggle(client: Client) -> None:
        with pytest.raises(ValueError, match="line break"):
            client.respond(200, [(b"x", b"a\r\nset-cookie: b")], b"")
        raised.set()

    with fail_after(60):
        async with serving(smuggle) as (_, port):
            reader, writer = await connected(port)
            writer.write(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
            await raised.wait()
            assert b"cookie" not in await reader.read()


@pytest.mark.anyio
@pytest.mark.parametrize("upgrade", [b"websocket", b"h2c"])
async def test_another_protocol_is_not_spoken_and_the_request_is_served_as_it_is(
    upgrade: bytes,
) -> None:
    offer = (
        b"GET /a HTTP/1.1\r\nhost: h\r\nconnection: Upgrade\r\nupgrade: " + upgrade + b"\r\n\r\n"
    )
    with fail_after(60):
        async with serving(echo) as (_, port):
            reader, writer = await connected(port)
            writer.write(offer + b"GET /b HTTP/1.1\r\nhost: h\r\n\r\n")
            assert (await read_response(reader))[2] == b"GET /a "
            assert (await read_response(reader))[2] == b"GET /b "


@pytest.mark.anyio
async def test_a_body_of_tiny_chunks_is_read_whole_and_what_follows_it_too() -> None:
    async def measure(client: Client) -> None:
        body = await client.read(1_000_000, 5)
        client.respond(200, PLAIN, b"%d %d" % (len(body), body.count(b"x")))

    one = (
        b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
        + b"1\r\nx\r\n" * 50_000
        + b"0\r\n\r\n"
    )
    with fail_after(60):
        async with serving(measure) as (_, port):
            reader, writer = await connected(port)
            writer.write(one * 2 + b"GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n")
            answers = [(await read_response(reader))[2] for _ in range(3)]
            assert answers == [b"50000 50000", b"50000 50000", b"0 0"]
            assert await reader.read() == b""

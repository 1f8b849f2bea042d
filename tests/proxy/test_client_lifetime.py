"""Clients that leave, do not read or fall silent, and a listener that closes: nobody works for
nobody, and no answer lies.
"""

import asyncio
import resource

import pytest
from anyio import fail_after

from metaclaw.proxy.http.client import Client, ClientGone
from metaclaw.proxy.http.connection import KEEP_ALIVE_S, LINGER_S, Listener, most_connections
from tests.proxy.talking import PLAIN, ask, connected, echo, post, read_response, serving


@pytest.fixture(params=[pytest.param(True, id="uvloop"), pytest.param(False, id="asyncio")])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """The event loop the program uses, and the standard library's."""
    return "asyncio", {"use_uvloop": request.param}


@pytest.mark.anyio
async def test_a_client_that_leaves_cancels_whoever_works_for_it() -> None:
    ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def endless(client: Client) -> None:
        client.watch()
        client.start(200, PLAIN)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.set_result(client.gone)
            raise

    with fail_after(60):
        async with serving(endless) as (_, port):
            reader, writer = await connected(port)
            writer.write(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            writer.close()
            assert await ended


@pytest.mark.anyio
async def test_leaving_is_noticed_also_behind_requests_that_were_sent_ahead() -> None:
    ended = asyncio.Event()

    async def second_is_endless(client: Client) -> None:
        if client.target == b"/first":
            await echo(client)
            return
        client.watch()
        try:
            client.start(200, PLAIN)
            await asyncio.Event().wait()
        finally:
            ended.set()

    with fail_after(60):
        async with serving(second_is_endless) as (_, port):
            reader, writer = await connected(port)
            writer.write(
                b"GET /first HTTP/1.1\r\nhost: h\r\n\r\nGET /second HTTP/1.1\r\nhost: h\r\n\r\n"
            )
            await read_response(reader)
            await reader.readuntil(b"\r\n\r\n")
            writer.close()
            assert await ended.wait()


@pytest.mark.anyio
async def test_work_that_is_no_longer_watched_goes_on_without_its_client() -> None:
    left, finished = asyncio.Event(), asyncio.Event()

    async def record(client: Client) -> None:
        client.watch()
        client.unwatch()
        client.start(200, PLAIN)
        await client.wait_gone()
        left.set()
        await asyncio.sleep(0)
        client.finish(b"too late")
        finished.set()

    with fail_after(60):
        async with serving(record) as (_, port):
            reader, writer = await connected(port)
            writer.write(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            writer.close()
            await left.wait()
            assert await finished.wait()


@pytest.mark.anyio
async def test_a_client_that_leaves_while_sending_is_noticed() -> None:
    noticed = asyncio.Event()

    async def wait(client: Client) -> None:
        with pytest.raises(ClientGone):
            await client.read(1000, 5)
        noticed.set()

    with fail_after(60):
        async with serving(wait) as (_, port):
            _, writer = await connected(port)
            writer.write(b"POST /x HTTP/1.1\r\nhost: h\r\ncontent-length: 10\r\n\r\nabc")
            await writer.drain()
            writer.close()
            await noticed.wait()


@pytest.mark.anyio
async def test_whoever_writes_waits_for_a_client_that_does_not_read() -> None:
    written, pieces = 0, 400

    async def flood(client: Client) -> None:
        nonlocal written
        client.start(200, PLAIN)
        for _ in range(pieces):
            await client.write(b"x" * 65536)
            written += 1
        client.finish()

    with fail_after(60):
        async with serving(flood) as (_, port):
            reader, writer = await connected(port)
            writer.write(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
            before = -1
            while before != written or not written:
                before = written
                await asyncio.sleep(0.05)
            assert written < pieces
            assert len((await read_response(reader))[2]) == pieces * 65536


@pytest.mark.anyio
async def test_a_response_that_breaks_off_does_not_look_whole() -> None:
    async def fail(client: Client) -> None:
        client.start(200, PLAIN)
        await client.write(b"some")
        await asyncio.sleep(0.01)

    with fail_after(60):
        async with serving(fail) as (_, port):
            reader, writer = await connected(port)
            writer.write(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
            answer = await reader.read()
            assert answer.endswith(b"4\r\nsome\r\n")


@pytest.mark.anyio
async def test_silent_connections_are_closed_and_busy_ones_are_not() -> None:
    let_go = asyncio.Event()

    async def slow(client: Client) -> None:
        await let_go.wait()
        await echo(client)

    with fail_after(60):
        async with serving(slow) as (listener, port):
            idle_reader, _ = await connected(port)
            busy_reader, busy_writer = await connected(port)
            busy_writer.write(b"GET /busy HTTP/1.1\r\nhost: h\r\n\r\n")
            while len(listener.tasks) < 1 or len(listener.connections) < 2:
                await asyncio.sleep(0.005)
            later = asyncio.get_running_loop().time() + KEEP_ALIVE_S + 1
            check_all(listener, later - 2)
            assert len(listener.connections) == 2
            check_all(listener, later)
            assert await idle_reader.read() == b""
            let_go.set()
            assert (await read_response(busy_reader))[2] == b"GET /busy "


@pytest.mark.anyio
async def test_the_rest_of_a_request_that_was_refused_is_not_waited_for_for_ever() -> None:
    async def refuse(client: Client) -> None:
        client.respond(401, PLAIN, b"no")

    with fail_after(60):
        async with serving(refuse) as (listener, port):
            reader, writer = await connected(port)
            writer.write(b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 100\r\n\r\nabc")
            assert (await read_response(reader))[0] == 401
            assert listener.connections
            check_all(listener, asyncio.get_running_loop().time() + LINGER_S + 1)
            assert await reader.read() == b""


def check_all(listener: Listener, now: float) -> None:
    for connection in list(listener.connections):
        connection.check(now)


@pytest.mark.anyio
async def test_a_listener_that_closes_lets_running_answers_finish_and_takes_nothing_more() -> None:
    begun, let_go = asyncio.Event(), asyncio.Event()

    async def slow(client: Client) -> None:
        begun.set()
        await let_go.wait()
        await echo(client)

    with fail_after(60):
        async with serving(slow) as (listener, port):
            reader, writer = await connected(port)
            idle_reader, _ = await connected(port)
            writer.write(b"GET /a HTTP/1.1\r\nhost: h\r\n\r\n")
            await begun.wait()
            closing = asyncio.create_task(listener.close(5, asyncio.Event()))
            assert await idle_reader.read() == b""
            with pytest.raises(ConnectionRefusedError):
                await connected(port)
            let_go.set()
            status, fields, body = await read_response(reader)
            assert (status, fields["connection"], body) == (200, "close", b"GET /a ")
            await closing


@pytest.mark.anyio
@pytest.mark.parametrize("hurries", [True, False])
async def test_answers_that_take_too_long_are_stopped_when_the_listener_closes(
    hurries: bool,
) -> None:
    begun, stopped, hurry = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def endless(client: Client) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()
            assert not client.gone
            client.respond(503, PLAIN, b"stopping")

    with fail_after(60):
        async with serving(endless) as (listener, port):
            reader, writer = await connected(port)
            writer.write(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
            await begun.wait()
            if hurries:
                hurry.set()
            await listener.close(60 if hurries else 0.02, hurry)
            assert stopped.is_set()
            assert (await read_response(reader))[0] == 503


@pytest.mark.anyio
async def test_a_client_that_reads_no_answers_gets_no_more_of_them_than_fit() -> None:
    served = 0

    async def serve(client: Client) -> None:
        nonlocal served
        served += 1
        client.respond(200, PLAIN, b"x" * 100_000)

    with fail_after(60):
        async with serving(serve) as (_, port):
            reader, writer = await connected(port)
            writer.write(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n" * 1000)
            await writer.drain()
            before = -1
            while served != before:
                before = served
                for _ in range(1000):
                    await asyncio.sleep(0)
            assert served < 500
            for _ in range(1000):
                assert len((await read_response(reader))[2]) == 100_000
            assert served == 1000


@pytest.mark.anyio
async def test_what_a_client_that_left_had_sent_ahead_is_not_served() -> None:
    served = 0

    async def serve(client: Client) -> None:
        nonlocal served
        served += 1
        client.respond(200, PLAIN, b"x" * 20_000_000)

    with fail_after(20):
        async with serving(serve) as (listener, port):
            _, writer = await connected(port)
            writer.write(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n" * 3)
            while not served:
                await asyncio.sleep(0)
            writer.transport.abort()
            while listener.connections:
                await asyncio.sleep(0.01)
            assert served == 1


@pytest.mark.anyio
async def test_a_connection_beyond_what_the_open_files_allow_is_answered_with_503_until_another_closes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("metaclaw.proxy.http.connection.most_connections", lambda: 2)
    with fail_after(60):
        async with serving(echo) as (listener, port):
            first, second = await connected(port), await connected(port)
            for _ in range(3):
                status, fields, _ = await read_response((await connected(port))[0])
                assert (status, fields["retry-after"], fields["connection"]) == (503, "1", "close")
                assert fields["x-content-type-options"] == "nosniff"
            assert (listener.refused, len(listener.connections)) == (3, 2)
            second[1].write(post(b"served"))
            assert (await read_response(second[0]))[0] == 200
            first[1].close()
            while len(listener.connections) == 2:
                await asyncio.sleep(0.01)
            assert (await ask(port, post(b"again")))[0] == 200
    assert [
        record.message for record in caplog.records if "connections_refused" in record.message
    ] == ["connections_refused count=1 most=2 reason=the system allows few open files (ulimit -n)"]


@pytest.mark.parametrize(
    ("files", "most"),
    [(16, 8), (64, 16), (256, 112), (65536, 32752), (resource.RLIM_INFINITY, None)],
)
def test_half_of_the_open_files_are_left_to_providers(
    monkeypatch: pytest.MonkeyPatch, files: int, most: int | None
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert most_connections() == most

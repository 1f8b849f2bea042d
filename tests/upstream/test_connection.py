"""One call on one connection: every way an answer can be framed, cut, garbled, given up or never
come.
"""

import asyncio

import pytest

from metaclaw.errors import UpstreamError
from metaclaw.ports import Call, Reply
from metaclaw.upstream import HttpEndpoint, Timeouts, pour
from metaclaw.upstream.connection import HIGH_WATER_BYTES, MAX_HEAD_BYTES, ProviderResponse, Take
from tests.support.cases import each
from tests.upstream.loopback import (
    WAIT_S,
    Conversation,
    answering,
    endpoint,
    plain,
    post,
    read,
    serve,
)

pytestmark = pytest.mark.anyio

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
QUICK = Timeouts(connect_s=0.2, first_byte_s=0.2, idle_s=0.2)


async def fails(provider: HttpEndpoint) -> UpstreamError:
    """The error a call meets, before or within its answer."""
    with pytest.raises(UpstreamError) as caught:
        await read(await provider.call(post(), {}))
    return caught.value


async def whole(provider: HttpEndpoint, call: Call | None = None) -> tuple[int, bytes]:
    async with asyncio.timeout(WAIT_S):
        reply = await provider.call(call or post(), {})
    return reply.status, await read(reply)


async def next_chunk(reply: Reply) -> bytes:
    async with asyncio.timeout(WAIT_S):
        return await anext(aiter(reply.chunks()))


@each(
    ("answer", "close", "body"),
    [
        (plain(b"hello"), False, b"hello"),
        (plain(b""), False, b""),
        (CHUNKED + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: 1\r\n\r\n", False, b"abcde"),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", True, b"until the end"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", True, b"ok"),
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
            + plain(b"late"),
            False,
            b"late",
        ),
        (b"HTTP/1.1 204 No Content\r\n\r\n", False, b""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", False, b""),
        (plain(b"bye", "200 OK", "Connection: close"), True, b"bye"),
    ],
    ids=[
        "length",
        "empty",
        "chunked",
        "until-close",
        "http-1.0",
        "interim",
        "204",
        "304",
        "connection-close",
    ],
)
async def test_every_framing_gives_its_body(answer: bytes, close: bool, body: bytes) -> None:
    async with (
        serve(answering(answer, close=close)) as loopback,
        endpoint(loopback.url) as provider,
    ):
        assert (await whole(provider))[1] == body
        assert (await whole(provider))[1] == body


async def test_an_answer_sent_byte_by_byte_is_whole() -> None:
    answer = b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    pieces = [answer[at : at + 1] for at in range(len(answer))]
    async with serve(answering(*pieces)) as loopback, endpoint(loopback.url) as provider:
        assert await whole(provider) == (200, b"abcde")
        assert await whole(provider) == (200, b"abcde")
        assert provider.open_connections == 1


async def test_a_head_answer_has_no_body_whatever_its_length_says() -> None:
    async with (
        serve(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")) as loopback,
        endpoint(loopback.url) as provider,
    ):
        assert await whole(provider, Call("HEAD", "/v1/models", "", (), b"")) == (200, b"")


async def test_status_and_headers_come_before_the_body() -> None:
    release = asyncio.Event()

    async def script(conversation: Conversation) -> None:
        await conversation.hear()
        await conversation.say(
            b"HTTP/1.1 429 Slow down\r\nRetry-After: 7\r\nX-A: \xe9\r\nX-A: 2\r\nContent-Length:"
            b" 2\r\n\r\n"
        )
        await release.wait()
        await conversation.say(b"no")

    async with serve(script) as loopback, endpoint(loopback.url) as provider:
        reply = await provider.call(post(), {})
        assert reply.status == 429
        assert list(reply.headers) == [
            ("retry-after", "7"),
            ("x-a", "é"),
            ("x-a", "2"),
            ("content-length", "2"),
        ]
        release.set()
        assert await read(reply) == b"no"


async def test_each_piece_is_handed_on_as_it_arrives() -> None:
    turn = asyncio.Semaphore(0)

    async def script(conversation: Conversation) -> None:
        await conversation.hear()
        await conversation.say(CHUNKED)
        for word in (b"one", b"two", b"three"):
            await turn.acquire()
            await conversation.say(b"%x\r\n%b\r\n" % (len(word), word))
        await turn.acquire()
        await conversation.say(b"0\r\n\r\n")

    async with serve(script) as loopback, endpoint(loopback.url) as provider:
        reply = await provider.call(post(), {})
        for word in (b"one", b"two", b"three"):
            turn.release()
            assert await next_chunk(reply) == word
        turn.release()
        assert await read(reply) == b""


async def test_pieces_that_wait_are_not_glued_together() -> None:
    go_on = asyncio.Event()

    async def script(conversation: Conversation) -> None:
        await conversation.hear()
        await conversation.say(CHUNKED + b"1\r\na\r\n1\r\nb\r\n")
        await go_on.wait()
        await conversation.say(b"1\r\nc\r\n0\r\n\r\n")

    async with serve(script) as loopback, endpoint(loopback.url) as provider:
        reply = await provider.call(post(), {})
        chunks = [await next_chunk(reply)]
        go_on.set()
        chunks += [chunk async for chunk in reply.chunks()]
        assert chunks == [b"ab", b"c"]


@each(
    ("answer", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "malformed"),
        (b"HTTP/1.1 abc\r\n\r\n", "malformed"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "101"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
            "Content-Length",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            "Transfer-Encoding",
        ),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "transfer-encoding"),
        (CHUNKED + b"zz\r\n", "chunk size"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * (MAX_HEAD_BYTES + 1), "headers beyond"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * MAX_HEAD_BYTES + b"\r\n\r\n", "headers beyond"),
        (b"HTTP/1.1 102 Processing\r\n\r\n" * (MAX_HEAD_BYTES // 20), "headers beyond"),
    ],
    ids=[
        "not-http",
        "bad-status",
        "upgrade",
        "two-lengths",
        "smuggling",
        "coding",
        "bad-chunk",
        "endless-head",
        "big-head",
        "endless-1xx",
    ],
)
async def test_nonsense_is_an_upstream_error_that_names_the_provider(
    answer: bytes, words: str
) -> None:
    async with serve(answering(answer)) as loopback, endpoint(loopback.url) as provider:
        error = await fails(provider)
        assert words in str(error)
        assert f"provider primary (127.0.0.1:{loopback.port})" in str(error)
        assert (error.status, error.code) == (502, "upstream_garbled")
        await loopback.wait_until_all_gone()


@each(
    "framing", [b"Content-Length: 10\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"]
)
async def test_an_answer_cut_off_in_the_middle_gives_what_came_and_then_fails(
    framing: bytes,
) -> None:
    async with (
        serve(answering(b"HTTP/1.1 200 OK\r\n" + framing, close=True)) as loopback,
        endpoint(loopback.url) as provider,
    ):
        reply = await provider.call(post(), {})
        assert await next_chunk(reply) == b"abc"
        with pytest.raises(UpstreamError, match="middle of the answer") as caught:
            await next_chunk(reply)
        assert not caught.value.retryable
        assert caught.value.code == "upstream_closed"


async def test_a_provider_that_hangs_up_without_a_word_is_an_error() -> None:
    async with serve(answering(close=True)) as loopback, endpoint(loopback.url) as provider:
        error = await fails(provider)
        assert "closed without an answer" in str(error)
        assert error.retryable


async def test_what_follows_a_whole_answer_reaches_nobody() -> None:
    calls = 0

    async def script(conversation: Conversation) -> None:
        nonlocal calls
        calls += 1
        await conversation.hear()
        await conversation.say(plain(b"%d" % calls) + plain(b"leftover"))

    async with serve(script) as loopback, endpoint(loopback.url) as provider:
        assert await whole(provider) == (200, b"1")
        assert await whole(provider) == (200, b"2")
        assert len(loopback.conversations) == 2


async def test_bytes_on_an_idle_connection_close_it() -> None:
    late = asyncio.Event()

    async def script(conversation: Conversation) -> None:
        await conversation.hear()
        await conversation.say(plain(b"first"))
        await late.wait()
        await conversation.say(plain(b"nobody asked"))

    async with serve(script) as loopback, endpoint(loopback.url) as provider:
        assert await whole(provider) == (200, b"first")
        late.set()
        await loopback.wait_until_all_gone()
        assert await whole(provider) == (200, b"first")
        assert len(loopback.conversations) == 2


async def test_silence_before_the_answer_is_a_timeout() -> None:
    async with serve(answering()) as loopback, endpoint(loopback.url, timeouts=QUICK) as provider:
        error = await fails(provider)
        assert (error.status, error.code, error.retryable) == (504, "upstream_timeout", True)
        assert "did not answer for 0.2 s" in str(error)
        await loopback.wait_until_all_gone()


async def test_silence_within_the_answer_is_a_timeout() -> None:
    async with (
        serve(answering(CHUNKED + b"1\r\na\r\n")) as loopback,
        endpoint(loopback.url, timeouts=QUICK) as provider,
    ):
        reply = await provider.call(post(), {})
        assert await next_chunk(reply) == b"a"
        with pytest.raises(UpstreamError, match=r"sent nothing for 0\.2 s") as caught:
            await next_chunk(reply)
        assert (caught.value.status, caught.value.retryable) == (504, False)


async def test_a_refused_connection_is_unreachable() -> None:
    async with serve(answering()) as loopback:
        pass
    async with endpoint(loopback.url) as provider:
        error = await fails(provider)
        assert (error.status, error.code, error.retryable) == (502, "upstream_unreachable", True)
        assert "refused" in str(error)


async def test_a_host_that_does_not_exist_is_unreachable() -> None:
    async with endpoint("http://nowhere.invalid/v1") as provider:
        error = await fails(provider)
        assert error.code == "upstream_unreachable"


async def test_giving_up_closes_the_connection_at_once() -> None:
    seen = asyncio.Event()

    async def script(conversation: Conversation) -> None:
        await conversation.hear()
        await conversation.say(CHUNKED + b"1\r\na\r\n")
        await conversation.wait_until_gone()
        seen.set()

    async with serve(script) as loopback, endpoint(loopback.url) as provider:
        reply = await provider.call(post(), {})
        assert await next_chunk(reply) == b"a"
        await reply.aclose()
        async with asyncio.timeout(WAIT_S):
            await seen.wait()
        assert provider.open_connections == 0
        with pytest.raises(UpstreamError, match="given up"):
            await next_chunk(reply)


async def test_closing_a_whole_answer_keeps_its_connection() -> None:
    async with serve(answering(plain(b"x"))) as loopback, endpoint(loopback.url) as provider:
        reply = await provider.call(post(), {})
        await read(reply)
        await reply.aclose()
        await whole(provider)
        assert len(loopback.conversations) == 1


@each("answer", [b"", CHUNKED], ids=["before-the-head", "within-the-body"])
async def test_a_cancelled_task_takes_its_call_down_and_poisons_nothing(answer: bytes) -> None:
    heard = asyncio.Event()

    async def script(conversation: Conversation) -> None:
        await conversation.hear()
        heard.set()
        await conversation.say(answer)

    async with serve(script) as loopback, endpoint(loopback.url) as provider:
        task = asyncio.create_task(whole(provider))
        async with asyncio.timeout(WAIT_S):
            await heard.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await loopback.wait_until_all_gone()
        assert provider.open_connections == 0


async def test_a_reader_that_does_not_read_stops_the_provider_and_does_not_blame_it() -> None:
    piece = b"x" * 65536
    stalled = asyncio.Event()

    async def script(conversation: Conversation) -> None:
        await conversation.hear()
        await conversation.say(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1024 * len(piece))
        )
        for _ in range(1024):
            conversation.writer.write(piece)
            try:
                async with asyncio.timeout(2 * QUICK.idle_s):
                    await conversation.writer.drain()
            except TimeoutError:
                stalled.set()
                await conversation.writer.drain()

    async with serve(script) as loopback, endpoint(loopback.url, timeouts=QUICK) as provider:
        reply = await provider.call(post(), {})
        assert isinstance(reply, ProviderResponse)
        async with asyncio.timeout(WAIT_S):
            await stalled.wait()
        assert reply.buffered_bytes <= HIGH_WATER_BYTES + 512 * 1024
        assert len(await read(reply)) == 1024 * len(piece)


async def test_a_large_body_arrives_whole() -> None:
    body = bytes(range(256)) * 40_000

    async def script(conversation: Conversation) -> None:
        heard = await conversation.hear()
        await conversation.say(plain(b"%d" % (heard.body == body)))

    async with serve(script) as loopback, endpoint(loopback.url) as provider:
        assert await whole(provider, post(body=body)) == (200, b"1")


async def test_an_early_refusal_of_a_body_still_being_sent_is_relayed() -> None:
    async def script(conversation: Conversation) -> None:
        await conversation.reader.readuntil(b"\r\n\r\n")
        await conversation.say(plain(b"too big", "413 Too Large"))

    async with serve(script) as loopback, endpoint(loopback.url) as provider:
        assert await whole(provider, post(body=b"x" * 20_000_000)) == (413, b"too big")
        await loopback.wait_until_all_gone()


async def poured(provider: HttpEndpoint, take: Take) -> bool:
    async with asyncio.timeout(WAIT_S):
        reply = await provider.call(post(), {})
        return await pour(reply.chunks(), take)


async def test_what_is_poured_is_the_body_and_then_nothing() -> None:
    taken: list[bytes] = []

    def take(chunk: bytes) -> bool:
        taken.append(chunk)
        return True

    async with (
        serve(answering(CHUNKED, b"3\r\nabc\r\n", b"2\r\nde\r\n", b"0\r\n\r\n")) as loopback,
        endpoint(loopback.url) as provider,
    ):
        assert await poured(provider, take) is False
        assert b"".join(taken) == b"abcde"
        assert await whole(provider) == (200, b"abcde")
        assert provider.open_connections == 1


async def test_whoever_has_enough_finds_the_rest_where_it_was() -> None:
    taken: list[bytes] = []

    def take_one(chunk: bytes) -> bool:
        taken.append(chunk)
        return False

    async with (
        serve(answering(CHUNKED, b"3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n")) as loopback,
        endpoint(loopback.url) as provider,
    ):
        async with asyncio.timeout(WAIT_S):
            chunks = (await provider.call(post(), {})).chunks()
            while await pour(chunks, take_one):
                taken.append(b"|")
        assert b"".join(taken).replace(b"|", b"") == b"abcde"
        assert taken.count(b"|") == len(taken) // 2


async def test_what_the_taker_refuses_is_raised_where_the_pouring_is_waited_for() -> None:
    def take(_: bytes) -> bool:
        raise UpstreamError("too much")

    async with (
        serve(answering(CHUNKED, b"3\r\nabc\r\n", b"2\r\nde\r\n")) as loopback,
        endpoint(loopback.url) as provider,
    ):
        with pytest.raises(UpstreamError, match="too much"):
            await poured(provider, take)


async def test_an_answer_that_breaks_off_while_it_is_poured_is_an_error_behind_what_came() -> None:
    taken: list[bytes] = []

    def take(chunk: bytes) -> bool:
        taken.append(chunk)
        return True

    async with (
        serve(answering(CHUNKED, b"3\r\nabc\r\n", close=True)) as loopback,
        endpoint(loopback.url) as provider,
    ):
        with pytest.raises(UpstreamError, match="closed"):
            await poured(provider, take)
    assert taken == [b"abc"]

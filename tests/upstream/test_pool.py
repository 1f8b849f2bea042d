"""Connections are kept, counted, expired, replaced when stale, and never lost."""

import asyncio
from collections.abc import Awaitable

import pytest

from metaclaw.errors import UpstreamError
from metaclaw.ports import Reply
from metaclaw.upstream import HttpEndpoint, PoolLimits, Timeouts
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


async def ask(provider: HttpEndpoint) -> bytes:
    async with asyncio.timeout(WAIT_S):
        return await read(await provider.call(post(), {}))


async def refusal(call: Awaitable[object]) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        await call
    return caught.value


async def test_calls_in_a_row_share_one_connection() -> None:
    async with serve(answering(plain(b"x"))) as loopback, endpoint(loopback.url) as provider:
        assert [await ask(provider) for _ in range(20)] == [b"x"] * 20
        assert len(loopback.conversations) == 1


async def test_a_connection_is_free_before_its_answer_is_read() -> None:
    async with serve(answering(plain(b"x"))) as loopback, endpoint(loopback.url) as provider:
        replies = [await provider.call(post(), {}) for _ in range(5)]
        assert [await read(reply) for reply in replies] == [b"x"] * 5
        assert len(loopback.conversations) == 1


async def test_calls_at_once_have_a_connection_each_and_share_them_later() -> None:
    together = asyncio.Barrier(8)

    async def script(conversation: Conversation) -> None:
        for _ in range(2):
            await conversation.hear()
            await together.wait()
            await conversation.say(plain(b"x"))

    async with serve(script) as loopback, endpoint(loopback.url) as provider:
        for _ in range(2):
            assert await asyncio.gather(*(ask(provider) for _ in range(8))) == [b"x"] * 8
        assert len(loopback.conversations) == 8


async def test_a_full_pool_lets_calls_wait_in_line() -> None:
    async with (
        serve(answering(plain(b"x"))) as loopback,
        endpoint(loopback.url, limits=PoolLimits(connections=2)) as provider,
    ):
        assert await asyncio.gather(*(ask(provider) for _ in range(20))) == [b"x"] * 20
        assert len(loopback.conversations) == 2


async def test_a_place_freed_by_a_closed_connection_goes_to_the_next_in_line() -> None:
    async with (
        serve(answering(plain(b"x"), close=True)) as loopback,
        endpoint(loopback.url, limits=PoolLimits(connections=1)) as provider,
    ):
        assert await asyncio.gather(*(ask(provider) for _ in range(5))) == [b"x"] * 5
        assert len(loopback.conversations) >= 5


async def test_waiting_too_long_in_line_is_an_error_of_its_own() -> None:
    limits = PoolLimits(connections=1, queue_s=0.05)
    async with serve(answering(b"")) as loopback, endpoint(loopback.url, limits=limits) as provider:
        first = asyncio.create_task(provider.call(post(), {}))
        await asyncio.sleep(0)
        error = await refusal(provider.call(post(), {}))
        assert (error.status, error.code, error.retryable) == (429, "upstream_busy", True)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_a_task_cancelled_in_line_leaves_its_place_to_others() -> None:
    release = asyncio.Event()

    async def script(conversation: Conversation) -> None:
        while True:
            await conversation.hear()
            await release.wait()
            await conversation.say(plain(b"x"))

    async with (
        serve(script) as loopback,
        endpoint(loopback.url, limits=PoolLimits(connections=1)) as provider,
    ):
        tasks = [asyncio.create_task(ask(provider)) for _ in range(4)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        tasks[2].cancel()
        release.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [results[0], results[3]] == [b"x", b"x"]
        assert all(isinstance(result, asyncio.CancelledError) for result in results[1:3])


async def test_cancelling_at_any_moment_never_leaks_a_place() -> None:
    limits = PoolLimits(connections=2)
    async with (
        serve(answering(plain(b"x"))) as loopback,
        endpoint(loopback.url, limits=limits) as provider,
    ):
        for steps in range(40):
            tasks = [asyncio.create_task(ask(provider)) for _ in range(5)]
            for _ in range(steps // 2):
                await asyncio.sleep(0)
            for task in tasks[steps % 2 :: 2]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(
                result == b"x" or isinstance(result, asyncio.CancelledError) for result in results
            )
        assert await asyncio.gather(*(ask(provider) for _ in range(6))) == [b"x"] * 6
        assert provider.open_connections <= 2


async def test_a_stale_connection_is_replaced_without_the_caller_noticing() -> None:
    heard: list[bytes] = []

    async def script(conversation: Conversation) -> None:
        heard.append((await conversation.hear()).body)
        await conversation.say(plain(b"x"))
        # A provider that closes just as the next request comes: it is read, and never answered.
        heard.append((await conversation.hear()).body)
        conversation.writer.transport.abort()

    async with serve(script) as loopback, endpoint(loopback.url) as provider:
        assert await read(await provider.call(post(body=b"1"), {})) == b"x"
        assert await read(await provider.call(post(body=b"2"), {})) == b"x"
        assert heard == [b"1", b"2", b"2"]


async def test_a_fresh_connection_that_dies_is_not_tried_again() -> None:
    async with serve(answering(close=True)) as loopback, endpoint(loopback.url) as provider:
        assert (await refusal(provider.call(post(), {}))).code == "upstream_closed"
        assert len(loopback.conversations) == 1


async def test_a_kept_connection_that_dies_after_a_byte_is_not_tried_again() -> None:
    async def script(conversation: Conversation) -> None:
        await conversation.hear()
        await conversation.say(plain(b"x"))
        await conversation.hear()
        await conversation.say(b"H")
        conversation.writer.close()

    async with serve(script) as loopback, endpoint(loopback.url) as provider:
        assert await ask(provider) == b"x"
        assert (await refusal(ask(provider))).code == "upstream_closed"
        assert len(loopback.conversations) == 1


async def test_a_connection_the_provider_closed_meanwhile_is_not_used() -> None:
    async with (
        serve(answering(plain(b"x"), close=True)) as loopback,
        endpoint(loopback.url) as provider,
    ):
        assert await ask(provider) == b"x"
        await loopback.wait_until_all_gone()
        assert await ask(provider) == b"x"


async def test_an_unused_connection_is_closed_after_a_while() -> None:
    async with (
        serve(answering(plain(b"x"))) as loopback,
        endpoint(loopback.url, limits=PoolLimits(keep_s=0.05)) as provider,
    ):
        assert await ask(provider) == b"x"
        await loopback.wait_until_all_gone()
        assert provider.open_connections == 0


async def test_a_connection_that_never_opens_is_given_up() -> None:
    release = asyncio.Event()

    async def silent(conversation: Conversation) -> None:
        await release.wait()

    timeouts = Timeouts(connect_s=0.1)
    async with (
        serve(silent) as loopback,
        endpoint(f"https://127.0.0.1:{loopback.port}", timeouts=timeouts) as provider,
    ):
        error = await refusal(provider.call(post(), {}))
        assert (error.status, error.code, error.retryable) == (504, "upstream_unreachable", True)
        release.set()
        await loopback.wait_until_all_gone()
        assert provider.open_connections == 0


async def test_closing_the_provider_ends_calls_under_way_and_in_line() -> None:
    heard = asyncio.Event()

    async def script(conversation: Conversation) -> None:
        await conversation.hear()
        heard.set()

    async with (
        serve(script) as loopback,
        endpoint(loopback.url, limits=PoolLimits(connections=1)) as provider,
    ):
        tasks: list[asyncio.Task[Reply]] = [
            asyncio.create_task(provider.call(post(), {})) for _ in range(2)
        ]
        await heard.wait()
        await provider.aclose()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, UpstreamError) for result in results)
        assert (await refusal(provider.call(post(), {}))).code == "upstream_busy"
        await loopback.wait_until_all_gone()

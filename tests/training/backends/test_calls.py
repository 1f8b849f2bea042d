"""Foreign code that blocks or fails, and servers that are not there."""

import asyncio
import socket
import threading

import pytest

from metaclaw.errors import BackendDownError, TrainingError
from metaclaw.training.backends.calls import (
    ServerReach,
    ServiceCalls,
    gather_all,
    run_in_thread,
)

pytestmark = pytest.mark.anyio


async def test_what_a_thread_gives_or_raises_comes_back() -> None:
    assert await run_in_thread(lambda: threading.current_thread().daemon)
    with pytest.raises(ZeroDivisionError):
        await run_in_thread(lambda: 1 // 0)


async def test_a_thread_that_never_ends_is_left_behind() -> None:
    end = threading.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await run_in_thread(end.wait)
    end.set()


def calls(*foreign: type[Exception]) -> ServiceCalls:
    return ServiceCalls("service", None, foreign)


async def test_foreign_errors_and_long_waits_become_training_errors() -> None:
    async def fail(error: Exception) -> None:
        raise error

    with pytest.raises(TrainingError, match="service: asking: who are you") as caught:
        await calls(KeyError, ValueError).wait(
            "asking", 5.0, lambda: fail(ValueError("who are you"))
        )
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(TrainingError, match=r"no answer within 0\.01 s"):
        await calls(OSError).wait("asking", 0.01, asyncio.Event().wait)
    with pytest.raises(KeyError):
        await calls(ValueError).wait("asking", 5.0, lambda: fail(KeyError("ours")))
    assert await calls().run("asking", 5.0, lambda: 7) == 7


async def test_when_one_of_many_fails_the_others_are_cancelled() -> None:
    cancelled = asyncio.Event()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def fails() -> None:
        await asyncio.sleep(0)
        raise TrainingError("one of them")

    with pytest.raises(TrainingError):
        await gather_all([waits(), fails()])
    async with asyncio.timeout(5):
        await cancelled.wait()


async def test_a_server_that_is_not_there_is_noticed_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        here = ServerReach(f"http://127.0.0.1:{port}", fresh_s=60.0)
        await here.check()
    # A success is believed for a while; who asks for the first time finds out.
    await here.check()
    with pytest.raises(TrainingError, match=f"no server answers at 127.0.0.1:{port}"):
        await ServerReach(f"http://127.0.0.1:{port}").check()


@pytest.mark.parametrize("url", [None, "", "not a url"])
async def test_without_an_address_nothing_is_checked(url: str | None) -> None:
    reach = ServerReach(url)
    await reach.check()
    assert reach._address is None


async def test_behind_a_proxy_nothing_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    reach = ServerReach("http://somewhere.example:1")
    await reach.check()
    assert reach._address is None


async def test_work_is_given_up_when_its_server_goes_away_and_only_then() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        reach = ServerReach(f"http://127.0.0.1:{taken.getsockname()[1]}", fresh_s=0.01)

        async def work() -> int:
            await asyncio.sleep(0.05)
            return 7

        assert await reach.during(work()) == 7
        waiting = asyncio.ensure_future(asyncio.Event().wait())
    with pytest.raises(BackendDownError, match="no server answers"):
        async with asyncio.timeout(5):
            await reach.during(waiting)
    assert waiting.cancelled() or waiting.cancelling()


async def test_work_that_fails_says_so_itself() -> None:
    async def work() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await ServerReach(None).during(work())

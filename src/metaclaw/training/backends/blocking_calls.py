"""Run blocking calls of SDKs and servers in threads with time limits, and notice unreachable
servers early.
"""

import asyncio
import json
import logging
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar
from urllib.parse import urlsplit

from metaclaw.domain.chat import Json
from metaclaw.errors import BackendDownError, TrainingError

log = logging.getLogger(__name__)

T = TypeVar("T")

_PORTS = {"http": 80, "https": 443}
_MAX_REPLY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ServerReply:
    """Status and text of an HTTP response."""

    status: int
    text: str


async def post_json(
    url: str, body: Json, headers: Mapping[str, str], timeout_s: float
) -> ServerReply:
    """Send a JSON body. Raises TimeoutError and OSError if no response comes, ValueError if the URL
    is invalid.
    """
    request = urllib.request.Request(
        url,
        json.dumps(body).encode(),
        {"content-type": "application/json", **headers},
        method="POST",
    )

    def post() -> ServerReply:
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as reply:
                return ServerReply(
                    reply.status, reply.read(_MAX_REPLY_BYTES).decode(errors="replace")
                )
        except urllib.error.HTTPError as refusal:
            with refusal:
                return ServerReply(
                    refusal.code, refusal.read(_MAX_REPLY_BYTES).decode(errors="replace")
                )

    return await run_in_thread(post, timeout_s)


async def run_in_thread(work: Callable[[], T], timeout_s: float) -> T:
    """Run blocking work in a new thread. Raises TimeoutError when it takes too long; the thread is
    then abandoned.

    `asyncio.to_thread` does not do: the process waits for its threads at exit, and an SDK may retry
    for minutes."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        with _ExceptionRelay(loop, answer):
            result = work()
            _deliver(loop, lambda: answer.set_result(result), answer)

    threading.Thread(target=run, daemon=True, name="training service").start()
    async with asyncio.timeout(timeout_s):
        return await answer


async def gather_all(calls: Sequence[Awaitable[T]]) -> list[T]:
    """Await all calls at once; when one fails the others are cancelled."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


@asynccontextmanager
async def bounded(
    what: str, timeout_s: float, foreign: tuple[type[Exception], ...]
) -> AsyncIterator[None]:
    """Turn the errors `foreign` of a library and a timeout into TrainingError."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as error:
        raise TrainingError(f"{what}: no answer within {timeout_s:g} s") from error
    except foreign as error:
        raise TrainingError(f"{what}: {str(error) or type(error).__name__}") from error


async def ignore_failure(release: Awaitable[None]) -> None:
    """Await the release of something on a server; log a failure."""
    try:
        await release
    except TrainingError as error:
        log.info("not released on the server error=%s", error)


class ServerReach:
    """Checks whether a server can be reached, at most once in `fresh_s` seconds.

    SDKs retry for minutes before they report an unreachable server; a client cannot wait for that.
    """

    def __init__(self, url: str | None, *, timeout_s: float = 3.0, fresh_s: float = 5.0) -> None:
        parts = urlsplit(url or "")
        is_direct = (
            bool(parts.hostname)
            and parts.scheme in _PORTS
            and not _is_proxied(parts.scheme, parts.hostname or "")
        )
        self._address = (
            (parts.hostname or "", parts.port or _PORTS[parts.scheme]) if is_direct else None
        )
        self._timeout_s = timeout_s
        self._fresh_s = fresh_s
        self._until = 0.0

    async def check(self) -> None:
        """Raises BackendDownError if no server listens there."""
        now = asyncio.get_running_loop().time()
        if self._address is None or now < self._until:
            return
        host, port = self._address
        try:
            async with asyncio.timeout(self._timeout_s):
                _, writer = await asyncio.open_connection(host, port)
        except OSError as error:
            raise BackendDownError(
                f"no server answers at {host}:{port}: {str(error) or 'the connection timed out'}"
            ) from error
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        self._until = now + self._fresh_s

    async def during(self, work: Awaitable[T]) -> T:
        """Await the work. Cancels it and raises BackendDownError as soon as the server is
        unreachable.
        """
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait([task], timeout=self._fresh_s))[0]:
                await self.check()
            return task.result()
        finally:
            task.cancel()


class _ExceptionRelay:
    """Passes an exception raised in the block on to the future."""

    def __init__(self, loop: asyncio.AbstractEventLoop, answer: "asyncio.Future[T]") -> None:
        self._loop = loop
        self._answer = answer

    def __enter__(self) -> None:
        return

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if error is None:
            return False
        _deliver(self._loop, lambda: self._answer.set_exception(error), self._answer)
        return True


def _deliver(
    loop: asyncio.AbstractEventLoop, set_outcome: Callable[[], None], answer: "asyncio.Future[T]"
) -> None:
    def deliver() -> None:
        if not answer.done():
            set_outcome()

    # The loop may have ended meanwhile.
    if not loop.is_closed():
        loop.call_soon_threadsafe(deliver)


def _is_proxied(scheme: str, host: str) -> bool:
    return scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host)

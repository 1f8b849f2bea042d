"""Calls to training services: SDKs that block, or retry for minutes, run with time limits, and an
unreachable server is noticed early.
"""

import asyncio
import logging
import threading
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, TypeVar
from urllib.parse import urlsplit

from metaclaw.errors import BackendDownError, TrainingError

log = logging.getLogger(__name__)

T = TypeVar("T")

_PORTS: Final = {"http": 80, "https": 443}


class ServiceCalls:
    """Calls to the service `name`. The errors `foreign` of its SDK and timeouts become
    TrainingError.
    """

    def __init__(
        self,
        name: str,
        url: str | None,
        foreign: tuple[type[Exception], ...],
        *,
        fresh_s: float = 5.0,
    ) -> None:
        self.name = name
        self._foreign = foreign
        self._reach = ServerReach(url, fresh_s=fresh_s)

    async def wait(self, what: str, timeout_s: float, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`, which is given up as soon as the server is unreachable. `what` is
        said if it fails. Raises TrainingError."""
        await self._reach.check()
        try:
            async with asyncio.timeout(timeout_s):
                return await self._reach.during(work())
        except TimeoutError as error:
            raise TrainingError(f"{self.name}: {what}: no answer within {timeout_s:g} s") from error
        except self._foreign as error:
            raise TrainingError(
                f"{self.name}: {what}: {str(error) or type(error).__name__}"
            ) from error

    async def run(self, what: str, timeout_s: float, work: Callable[[], T]) -> T:
        """The same for work that blocks."""
        return await self.wait(what, timeout_s, lambda: run_in_thread(work))


async def run_in_thread(work: Callable[[], T]) -> T:
    """Run blocking work in a new thread, which is abandoned on cancellation.

    `asyncio.to_thread` does not do: the process waits for its threads at exit, and an SDK may retry
    for minutes."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = work()
        except Exception as error:  # whatever it is, the caller gets it
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, daemon=True, name="training service").start()
    return await asyncio.wrap_future(future)


async def gather_all(calls: Sequence[Awaitable[T]]) -> list[T]:
    """Await all calls at once; when one fails the others are cancelled."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


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
        host, scheme = parts.hostname or "", parts.scheme
        is_direct = host and scheme in _PORTS and not _is_proxied(scheme, host)
        self._address = (host, parts.port or _PORTS[scheme]) if is_direct else None
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


def _is_proxied(scheme: str, host: str) -> bool:
    return scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host)

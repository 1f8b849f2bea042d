"""The connection pool of one provider: keep-alive, a limit of connections, and one timer for all
timeouts.
"""

import asyncio
import logging
import ssl
from collections import deque
from dataclasses import dataclass

from metaclaw.errors import UpstreamError
from metaclaw.upstream.connection import (
    ProviderConnection,
    ProviderResponse,
    StaleConnectionError,
    Timeouts,
)
from metaclaw.upstream.transport import BUSY, Address, dial, opening_errors, tls_context

log = logging.getLogger(__name__)

_MAX_TICK_S = 1.0
_MIN_TICK_S = 0.01
_CLOSE_S = 1.0


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """The number of connections, how long an idle one is kept, and how long a call may wait for
    one.
    """

    connections: int = 1024
    keep_s: float = 30.0
    queue_s: float = 2.0


class ConnectionPool:
    """Connections to one address. `peer` is the provider's name in messages."""

    def __init__(
        self,
        peer: str,
        address: Address,
        timeouts: Timeouts,
        limits: PoolLimits,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._peer = peer
        self._address = address
        self._timeouts = timeouts
        self._limits = limits
        self._tls = tls or (tls_context() if address.scheme == "https" else None)
        self._taken = 0
        self._connections: set[ProviderConnection] = set()
        self._idle: list[ProviderConnection] = []
        self._queues: dict[
            str, deque[asyncio.Future[ProviderConnection | None]]
        ] = {}  # by session; the first is served next
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        shortest_s = min(timeouts.first_byte_s, timeouts.idle_s, limits.keep_s)
        self._tick_s = max(_MIN_TICK_S, min(_MAX_TICK_S, shortest_s / 4))

    @property
    def open_connections(self) -> int:
        return self._taken

    async def request(
        self, method: str, head: bytes, body: bytes, session: str = ""
    ) -> ProviderResponse:
        """Send a call and return once the response head has arrived. Raises UpstreamError.

        In a full pool, calls of one session are served in order and sessions take turns, so that no
        session starves the others. If an idle connection turns out to be dead, the call is sent
        again on a new one."""
        connection = self._take_idle() or await self._acquire(session)
        if connection is not None:
            try:
                return await connection.send(method, head, body)
            except StaleConnectionError:
                log.debug("stale connection peer=%s", self._peer)
            await self._take_place(session)
        return await (await self._open()).send(method, head, body)

    async def reach(self, within_s: float) -> None:
        """Connect and disconnect, without TLS and without a request. Raises UpstreamError."""
        at = self._address.proxy or self._address
        with opening_errors(self._peer):
            async with asyncio.timeout(within_s):
                _, writer = await asyncio.open_connection(at.host, at.port)
        writer.transport.abort()

    async def aclose(self) -> None:
        """Close all connections, also those with a call in progress."""
        self._closed = True
        while (waiter := self._next_in_line()) is not None:
            waiter.set_exception(self._closing())
        if self._timer is not None:
            self._timer.cancel()
        losing = [connection.closed for connection in self._connections]
        for connection in list(self._connections):
            connection.drop()
        if losing:
            await asyncio.wait(losing, timeout=_CLOSE_S)

    def _take_idle(self) -> ProviderConnection | None:
        """An idle connection that can still be used, or None."""
        while self._idle and not self._closed:
            connection = self._idle.pop()
            if (
                connection.is_usable
                and asyncio.get_running_loop().time() - connection.idle_since < self._limits.keep_s
            ):
                return connection
            connection.drop()
        return None

    async def _acquire(self, session: str) -> ProviderConnection | None:
        """Wait for a slot. Returns a free connection, or None: then the caller may open one."""
        if self._closed:
            raise self._closing()
        if self._taken < self._limits.connections:
            self._taken += 1
            return None
        return await self._wait_in_line(session)

    async def _take_place(self, session: str) -> None:
        """Wait for a slot to open a new connection; in a full pool an idle connection is closed for
        it.
        """
        while self._taken >= self._limits.connections:
            connection = self._idle.pop(0) if self._idle else await self._wait_in_line(session)
            if connection is None:
                return
            if connection in self._connections:
                self._connections.remove(
                    connection
                )  # so that `_forget` does not free its slot, which is ours now
                connection.drop()
                return
        self._taken += 1

    async def _wait_in_line(self, session: str) -> ProviderConnection | None:
        waiter: asyncio.Future[ProviderConnection | None] = (
            asyncio.get_running_loop().create_future()
        )
        self._queues.setdefault(session, deque()).append(waiter)
        try:
            async with asyncio.timeout(self._limits.queue_s):
                return await waiter
        except (TimeoutError, asyncio.CancelledError) as cause:
            self._leave_line(session, waiter)
            if isinstance(cause, TimeoutError):
                message = (
                    f"{self._peer} is busy: all {self._limits.connections} connections that its"
                    f" max_concurrency allows were in use for {self._limits.queue_s:g} s; try again"
                    " shortly"
                )
                raise UpstreamError(message, status=429, retryable=True, code=BUSY) from cause
            raise

    def _leave_line(self, session: str, waiter: asyncio.Future[ProviderConnection | None]) -> None:
        queue = self._queues.get(session)
        if queue is not None and waiter in queue:
            queue.remove(waiter)
            if not queue:
                del self._queues[session]
        if not waiter.done() or waiter.cancelled() or waiter.exception() is not None:
            return
        connection = waiter.result()  # it came just when we gave up: pass it to the next waiter
        if connection is None:
            self._free_place()
        else:
            self._put_back(connection)

    async def _open(self) -> ProviderConnection:
        """Open a connection for a slot that is already taken."""
        opened: ProviderConnection | None = None
        try:
            with opening_errors(self._peer):
                async with asyncio.timeout(self._timeouts.connect_s):
                    connection = await dial(self._address, self._tls, self._make)
                if connection.closed.done():
                    raise ConnectionResetError("closed at once")
            opened = connection
        finally:
            if opened is None:
                self._free_place()
        self._connections.add(opened)
        if self._closed:
            opened.drop()
            raise self._closing()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)
        return opened

    def _make(self) -> ProviderConnection:
        return ProviderConnection(self._peer, self._timeouts, self._put_back, self._forget)

    def _put_back(self, connection: ProviderConnection) -> None:
        if self._closed:
            connection.drop()
            return
        waiter = self._next_in_line()
        if waiter is None:
            self._idle.append(connection)
        else:
            waiter.set_result(connection)

    def _forget(self, connection: ProviderConnection) -> None:
        if connection not in self._connections:
            return  # lost while being opened, or closed to make room: its slot is already released
        self._connections.remove(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._free_place()

    def _free_place(self) -> None:
        waiter = self._next_in_line()
        if waiter is None:
            self._taken -= 1
        else:
            waiter.set_result(None)

    def _next_in_line(self) -> asyncio.Future[ProviderConnection | None] | None:
        while self._queues:
            session = next(iter(self._queues))
            queue = self._queues.pop(session)
            waiter = queue.popleft()
            if queue:
                self._queues[session] = queue  # behind the other sessions
            if not waiter.done():
                return waiter
        return None

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self._connections):
            connection.check_deadline(now)
        for connection in [
            idle for idle in self._idle if now - idle.idle_since >= self._limits.keep_s
        ]:
            self._idle.remove(connection)
            connection.drop()
        self._timer = loop.call_later(self._tick_s, self._tick) if self._connections else None

    def _closing(self) -> UpstreamError:
        return UpstreamError(
            f"{self._peer} is no longer called: the program is stopping", status=503, code=BUSY
        )

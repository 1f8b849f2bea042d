"""The open port: takes connections in, closes the silent ones, and lets running answers finish before it shuts."""

import asyncio
import socket

from metaclaw.proxy.abreast import Ranks
from metaclaw.proxy.connection import WRITE_TIMEOUT_S, Connection, Serve

_BACKLOG = 2048
_TICK_S = 1.0
_LAST_CHANCE_S = 1.0


class Listener:
    """Serves every request that comes to one socket."""

    def __init__(self, serve: Serve, ranks: Ranks, write_timeout_s: float = WRITE_TIMEOUT_S) -> None:
        self.ranks = ranks
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self._serve = serve
        self._write_timeout_s = write_timeout_s
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def open(self, listening: socket.socket) -> None:
        """Begin to serve."""
        loop = asyncio.get_running_loop()

        def connection() -> Connection:
            return Connection(self._serve, self, self._write_timeout_s)

        self._server = await loop.create_server(connection, sock=listening, backlog=_BACKLOG)
        self._timer = loop.call_later(_TICK_S, self._tick)

    async def close(self, within_s: float, hurry: asyncio.Event) -> None:
        """Take nothing more in; let running answers finish for so long, or until told to `hurry`, then stop them."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.end()
        await self._finish(within_s, hurry)
        if self._timer is not None:
            self._timer.cancel()
        for task in self.tasks:
            task.cancel("the program is stopping")
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=_LAST_CHANCE_S)
        for connection in list(self.connections):
            connection.end()

    async def _finish(self, within_s: float, hurry: asyncio.Event) -> None:
        if not self.tasks:
            return
        hurried = asyncio.create_task(hurry.wait())
        finished = asyncio.create_task(asyncio.wait(self.tasks))
        await asyncio.wait((hurried, finished), timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        for one in (hurried, finished):
            one.cancel()
        await asyncio.wait((hurried, finished))

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self.connections):
            connection.check(now)
        self._timer = loop.call_later(_TICK_S, self._tick)

"""The client's end of one request: what was read from it, what is sent to it, and whether it is still there."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from metaclaw.domain.chat import Json, Wire
from metaclaw.ports import Headers

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
RawHeaders = list[tuple[bytes, bytes]]

# Most answers end sooner than this; only longer ones pay for a task that watches the connection.
_LOOK_EVERY_S = 0.02


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request for an answer, read and checked as JSON but not yet understood."""

    wire: Wire
    path: str
    query: str
    headers: Mapping[str, str]
    forward: Headers
    body: bytes
    json: Mapping[str, Json]
    peer: str | None
    received_at: datetime
    began: float

    @property
    def stream(self) -> bool:
        """Whether the client asked for the answer piece by piece."""
        return self.json.get("stream") is True

    @property
    def model(self) -> str:
        """The model the client named, or an empty string."""
        model = self.json.get("model")
        return model if isinstance(model, str) else ""


class ClientGone(Exception):  # noqa: N818 - an event, not a failure
    """The client closed its connection before its answer was whole."""


class Watch:
    """Finds out which clients have gone. One timer for all of them: setting one for each costs more than most answers take."""

    def __init__(self) -> None:
        self._waiting: dict[Client, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, client: "Client") -> None:
        """Look after this client from the next look but one on."""
        self._waiting[client] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._look, ())

    def remove(self, client: "Client") -> None:
        """Its answer is whole."""
        self._waiting.pop(client, None)

    def _look(self, seen_before: Collection["Client"]) -> None:
        for client in seen_before:
            if client in self._waiting:
                del self._waiting[client]
                client.begin_watch()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_LOOK_EVERY_S, self._look, tuple(self._waiting)) if self._waiting else None


class Client:
    """Sends one response, and cancels the task that makes it when the client goes away."""

    __slots__ = ("_deferred", "_owner", "_receive", "_send", "_task", "_watch", "ended", "gone", "started")

    def __init__(self, receive: Receive, send: Send, watch: Watch) -> None:
        self._receive = receive
        self._send = send
        self._watch = watch
        self._task: asyncio.Task[None] | None = None
        self._owner: asyncio.Task[Any] | None = None
        self._deferred: tuple[int, RawHeaders] | None = None
        self.started = False
        self.ended = False
        self.gone = False

    def watch(self) -> None:
        """From now until `unwatch`, a disconnect cancels the current task, and `gone` tells why."""
        self._owner = asyncio.current_task()
        self._watch.add(self)

    def begin_watch(self) -> None:
        """This answer takes long enough to be worth a task of its own."""
        self._task = asyncio.create_task(self._wait_for_disconnect())

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        if self._owner is not None:
            self._owner.cancel("client gone")

    def unwatch(self) -> None:
        """Stop watching; the rest of the answer is sent whether or not anyone reads it."""
        self._owner = None
        self._watch.remove(self)
        if self._task is not None:
            self._task.cancel()

    async def start(self, status: int, headers: RawHeaders) -> None:
        """Send the status line and headers, once."""
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    @property
    def send(self) -> Send:
        """The raw way out, for applications that speak ASGI themselves."""
        return self._send

    def defer(self, status: int, headers: RawHeaders) -> None:
        """Settle how a whole answer will begin; it is sent together with its body by `finish`."""
        self._deferred = (status, headers)

    async def write(self, data: bytes) -> None:
        """Send a piece of the body now."""
        if data:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, data: bytes = b"") -> None:
        """Send the last piece of the body, after the deferred beginning if there is one, and end the response."""
        if self._deferred is not None:
            status, headers = self._deferred
            await self.start(status, [*headers, (b"content-length", str(len(data)).encode())])
        self.ended = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def respond(self, status: int, headers: RawHeaders, body: bytes) -> None:
        """Send a whole response."""
        self.defer(status, headers)
        await self.finish(body)

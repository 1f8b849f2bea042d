"""A bridge to applications that speak ASGI: the program's own API."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from metaclaw.proxy.client import Client, RawHeaders

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]


async def serve_asgi(app: Asgi, client: Client, path: str, query: str, body: bytes, *, has_key: bool = True) -> None:
    """Have an application answer a request whose body has been read. `has_key` says whether our key came with it."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1" if client.is_modern else "1.0",
        "scheme": "http",
        "method": client.method,
        "path": path,
        "raw_path": client.target.partition(b"?")[0],
        "query_string": query.encode("latin-1"),
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in client.headers.items()],
        "client": None if client.peer is None else (client.peer, 0),
        "has_key": has_key,
    }
    bridge = _Bridge(client, body)
    await app(scope, bridge.receive, bridge.send)


class _Bridge:
    def __init__(self, client: Client, body: bytes) -> None:
        self._client = client
        self._body: bytes | None = body
        self._status = 200
        self._headers: RawHeaders = []

    async def receive(self) -> dict[str, Any]:
        """The body, all at once; after that, word of the client's leaving."""
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self._client.wait_gone()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        """The response; one that comes in one piece leaves in one piece."""
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], list(message.get("headers", ()))
            if all(name.lower() != b"content-length" for name, _ in self._headers):
                self._client.start(self._status, self._headers)
            return
        body, more = message.get("body", b""), bool(message.get("more_body", False))
        if more and not self._client.started:
            self._client.start(self._status, self._headers)
        if more:
            await self._client.write(body)
        elif self._client.started:
            self._client.finish(body)
        else:
            fields = [field for field in self._headers if field[0].lower() != b"content-length"]
            self._client.respond(self._status, fields, body)

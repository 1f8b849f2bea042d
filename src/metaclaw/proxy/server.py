"""The front door: plain ASGI, one table of routes, errors in the shape of the wire that was spoken."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import unquote

from metaclaw.domain.chat import Wire
from metaclaw.errors import MetaClawError, UpstreamError, WireError
from metaclaw.proxy.auth import Gatekeeper, split_path_key
from metaclaw.proxy.body import parse_object, read_body
from metaclaw.proxy.client import Client, ClientGone, Incoming, RawHeaders, Receive, Scope, Send, Watch
from metaclaw.proxy.metrics import Metrics
from metaclaw.proxy.pipeline import Pipeline
from metaclaw.proxy.relay import Elsewhere
from metaclaw.wires import wire_format

log = logging.getLogger(__name__)

Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

_WIRES = {"/chat/completions": Wire.CHAT, "/responses": Wire.RESPONSES, "/messages": Wire.MESSAGES}
_BARE = ("/chat/completions", "/responses", "/messages", "/messages/count_tokens", "/models", "/completions", "/embeddings")
_JSON: RawHeaders = [(b"content-type", b"application/json")]
_PROBES = {("HEAD", "/"), ("HEAD", "/api/hello")}


@dataclass(frozen=True, slots=True)
class Intake:
    """What may come in."""

    max_body_bytes: int
    body_timeout_s: float = 120.0
    max_concurrency: int = 1024


class Server:
    """Checks the key, reads the body and hands the request to the pipeline, the relay or the program's own API."""

    def __init__(
        self, *, gatekeeper: Gatekeeper, pipeline: Pipeline, elsewhere: Elsewhere, api: Asgi, metrics: Metrics, intake: Intake
    ) -> None:
        self._gatekeeper = gatekeeper
        self._pipeline = pipeline
        self._elsewhere = elsewhere
        self._api = api
        self._metrics = metrics
        self._intake = intake
        self._serving = 0
        self._watch = Watch()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1008})
            return
        began = time.perf_counter()
        path, path_key = split_path_key(scope["path"])
        headers = _headers(scope)
        client = Client(receive, send, self._watch)
        wire = wire_spoken(path, headers)
        try:
            await self._route(scope, receive, client, _tidy(path), path_key, headers, wire, began)
        except ClientGone:
            log.debug("client_gone path=%s", path)
        except (WireError, UpstreamError) as error:
            param = error.param if isinstance(error, WireError) else None
            await self._refuse(client, wire, error.status, str(error), error.code, param)
        except MetaClawError as error:
            await self._refuse(client, wire, 500, str(error), "internal_error")
        except Exception:
            log.exception("unexpected_error path=%s", path)
            await self._refuse(
                client, wire, 500, "MetaClaw failed to handle this request; its log has the details", "internal_error"
            )

    async def _route(
        self,
        scope: Scope,
        receive: Receive,
        client: Client,
        path: str,
        path_key: str | None,
        headers: Mapping[str, str],
        wire: Wire,
        began: float,
    ) -> None:
        method: str = scope["method"]
        if path == "/healthz" or (method, path) in _PROBES:
            await client.respond(200, _JSON, b"" if method == "HEAD" else b'{"ok":true}')
            return
        if not self._gatekeeper.admits(headers, path_key):
            raise WireError(_NO_KEY, status=401, code="invalid_api_key")
        inner = _inner_path(path)
        if inner is None:
            await self._api({**scope, "path": path}, receive, client.send)
            return
        if inner in _WIRES and method != "POST":
            raise WireError(f"{path} takes POST, not {method}", status=405, code="method_not_allowed")
        body = await read_body(receive, headers, max_bytes=self._intake.max_body_bytes, timeout_s=self._intake.body_timeout_s)
        caller = self._gatekeeper.callers_own(headers)
        caller.pop("content-encoding", None)  # `read_body` has undone it
        query = scope.get("query_string", b"").decode("latin-1")
        if inner not in _WIRES:
            await self._elsewhere.serve(method, _as_sent(scope, inner), query, caller, body, client, wire)
            return
        json = parse_object(body)
        peer = scope.get("client")
        incoming = Incoming(
            wire=_WIRES[inner],
            path=inner,
            query=query,
            headers=caller,
            forward=list(caller.items()),
            body=body,
            json=json,
            peer=peer[0] if peer else None,
            received_at=datetime.now(UTC),
            began=began,
        )
        await self._within_limit(incoming, client)

    async def idle(self, within_s: float) -> None:
        """Wait until no answer is being made any more, or this much time has passed."""
        deadline = time.monotonic() + within_s
        while self._serving and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    async def _within_limit(self, incoming: Incoming, client: Client) -> None:
        if self._serving >= self._intake.max_concurrency:
            raise WireError(
                f"{self._serving} answers are being made already (proxy.max_concurrency); try again shortly",
                status=429,
                code="rate_limit_exceeded",
            )
        self._serving += 1
        try:
            await self._pipeline.answer(incoming, client)
        finally:
            self._serving -= 1

    async def _refuse(self, client: Client, wire: Wire, status: int, message: str, code: str, param: str | None = None) -> None:
        self._metrics.refused.labels(str(status)).inc()
        if client.started:
            return  # an end that looks clean would be a lie: the connection is closed without one
        headers = [*_JSON, (b"retry-after", b"1")] if status == 429 else _JSON
        await client.respond(status, headers, wire_format(wire).error_body(status, message, code, param))


_NO_KEY = (
    "this request carries no valid MetaClaw key; send the proxy.api_key of the file that `metaclaw config path` names "
    "as `Authorization: Bearer`, `x-api-key` or `X-Metaclaw-Key`, or put it in the base URL as /k/<key>/v1"
)


def _headers(scope: Scope) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        found[key] = f"{found[key]}, {text}" if key in found else text
    return found


def _inner_path(path: str) -> str | None:
    """The path below `/v1`, also for clients that leave it out or put it under `/api`; None for the program's own pages."""
    if path.startswith("/v1/"):
        return path[3:]
    if path.startswith("/api/v1/"):
        return path[7:]
    return path if path in _BARE else None


def _tidy(path: str) -> str:
    """The path without doubled or trailing slashes. One that climbs is refused: it would leave the provider's base URL."""
    segments = [segment for segment in path.split("/") if segment]
    if "." in segments or ".." in segments:
        raise WireError("the path has . or .. in it", status=400)
    return "/" + "/".join(segments)


def _as_sent(scope: Scope, inner: str) -> str:
    """The path below /v1 as the client wrote it, escapes and all; the decoded one where they cannot be matched."""
    raw = scope.get("raw_path", b"").decode("latin-1")
    at = raw.find("/v1/")
    written = raw[at + 3 :] if at >= 0 else inner
    return written if _tidy(unquote(written)) == inner else inner


def wire_spoken(path: str, headers: Mapping[str, str]) -> Wire:
    """The wire whose error shape a request expects, also where it asks for none of our routes."""
    for suffix, wire in _WIRES.items():
        if path.endswith(suffix):
            return wire
    return Wire.MESSAGES if "/messages" in path or "anthropic-version" in headers else Wire.CHAT

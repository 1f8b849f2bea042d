"""The front door: one table of routes, errors in the shape of the wire that was spoken."""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import unquote

import httptools

from metaclaw.domain.chat import Wire
from metaclaw.errors import MetaClawError, UpstreamError, WireError
from metaclaw.proxy.asgi import Asgi, serve_asgi
from metaclaw.proxy.auth import Gatekeeper, split_path_key
from metaclaw.proxy.body import read_body
from metaclaw.proxy.client import Client, ClientGone, Incoming, RawHeaders
from metaclaw.proxy.metrics import Metrics
from metaclaw.proxy.pipeline import ERROR_HEADERS, Pipeline
from metaclaw.proxy.reading import MAX_ITEMS, read
from metaclaw.proxy.relay import Elsewhere
from metaclaw.wires import wire_format

log = logging.getLogger(__name__)

_CHAT = Wire.CHAT  # to look an enum's member up takes longer than to compare it
_WIRES = {"/chat/completions": Wire.CHAT, "/responses": Wire.RESPONSES, "/messages": Wire.MESSAGES}
_BARE = ("/chat/completions", "/responses", "/messages", "/messages/count_tokens", "/models", "/completions", "/embeddings")
_JSON: RawHeaders = [(b"content-type", b"application/json")]
_MAX_KNOWN_BYTES = 512
_PROBES = {("HEAD", "/"), ("HEAD", "/api/hello")}
_MAX_FORM_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Intake:
    """What may come in."""

    max_body_bytes: int
    body_timeout_s: float = 120.0
    max_concurrency: int = 1024
    max_items: int = MAX_ITEMS


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

    async def serve(self, client: Client) -> None:
        """Answer one request. Whatever goes wrong is told to the client in its own wire."""
        began = time.perf_counter()
        path, wire = "", _CHAT
        try:
            path, path_key, query = read_target(client.target)
            wire = wire_spoken(path, client.headers)
            if "upgrade" in client.headers and _asks_for_websocket(client):
                raise WireError(_NO_WEBSOCKET, status=426, code="websocket_not_supported")
            await self._route(client, _tidy(path), path_key, query, wire, began)
        except ClientGone:
            log.debug("client_gone path=%s", path)
        except (WireError, UpstreamError) as error:
            param = error.param if isinstance(error, WireError) else None
            self._refuse(client, wire, error.status, str(error), error.code, param)
        except MetaClawError as error:
            self._refuse(client, wire, 500, str(error), "internal_error")
        except Exception:
            log.exception("unexpected_error path=%s", path)
            self._refuse(client, wire, 500, "MetaClaw failed to handle this request; its log has the details", "internal_error")

    async def _route(self, client: Client, path: str, path_key: str | None, query: str, wire: Wire, began: float) -> None:
        method, headers = client.method, client.headers
        inner = _inner_path(path)
        if inner is None and (path == "/healthz" or (method, path) in _PROBES):
            client.respond(200, _JSON, b"" if method == "HEAD" else b'{"ok":true}')
            return
        caller = self._gatekeeper.admit(headers, path_key)
        if caller is None and inner is None and _is_page(path) and path_key is None:
            # A browser has a cookie instead of the key, which the pages check themselves.
            body = await read_body(client, headers, max_bytes=_MAX_FORM_BYTES, timeout_s=self._intake.body_timeout_s)
            await serve_asgi(self._api, client, path, query, body, has_key=False)
            return
        if caller is None:
            raise WireError(self._gatekeeper.refusal(headers, path_key), status=401, code="invalid_api_key")
        spoken = _WIRES.get(inner) if inner is not None else None
        if spoken is not None and method != "POST":
            raise WireError(f"{path} takes POST, not {method}", status=405, code="method_not_allowed")
        body = await read_body(client, headers, max_bytes=self._intake.max_body_bytes, timeout_s=self._intake.body_timeout_s)
        if inner is None:
            await serve_asgi(self._api, client, path, query, body)
            return
        caller.pop("content-encoding", None)  # `read_body` has undone it
        caller.pop("content-length", None)  # the body that is sent has its own
        if spoken is None:
            await self._elsewhere.serve(method, _as_sent(client.target, inner), query, caller, body, client, wire)
            return
        json = read(spoken, body, self._intake.max_items)
        incoming = Incoming(spoken, inner, query, caller, tuple(caller.items()), body, json, client.peer, datetime.now(UTC), began)
        self._admit()
        self._serving += 1
        try:
            await self._pipeline.answer(incoming, client)
        finally:
            self._serving -= 1

    async def idle(self, within_s: float) -> None:
        """Wait until no answer is being made any more, or this much time has passed."""
        deadline = time.monotonic() + within_s
        while self._serving and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    def _admit(self) -> None:
        if self._serving >= self._intake.max_concurrency:
            raise WireError(
                f"{self._serving} answers are being made already (proxy.max_concurrency); try again shortly",
                status=429,
                code="rate_limit_exceeded",
            )

    def _refuse(self, client: Client, wire: Wire, status: int, message: str, code: str, param: str | None = None) -> None:
        self._metrics.refused(status)
        if client.started:
            return  # an end that looks clean would be a lie: the connection is closed without one
        headers = _JSON + ERROR_HEADERS.get(status, [])
        client.respond(status, headers, wire_format(wire).error_body(status, message, code, param))


_NO_WEBSOCKET = "MetaClaw does not speak WebSocket; send the request as HTTP POST and its answer is streamed as server-sent events"


def _asks_for_websocket(client: Client) -> bool:
    offered = client.headers["upgrade"].lower().split(",")
    return client.is_modern and client.method == "GET" and "websocket" in [protocol.strip() for protocol in offered]


def read_target(target: bytes) -> tuple[str, str | None, str]:
    """The path, decoded and without our key, the key that stood in it, and the query, of what a request line names."""
    return _read_known_target(target) if len(target) <= _MAX_KNOWN_BYTES else _read_target(target)


def _read_target(target: bytes) -> tuple[str, str | None, str]:
    try:
        url = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError as error:
        raise WireError("the request names no path", status=400) from error
    path = (url.path or b"/").decode("latin-1")
    return *split_path_key(unquote(path) if "%" in path else path), (url.query or b"").decode("latin-1")


_read_known_target = lru_cache(maxsize=1024)(_read_target)


def _inner_path(path: str) -> str | None:
    """The path below `/v1`, also for clients that leave it out or put it under `/api`; None for the program's own pages."""
    if path.startswith("/v1/"):
        return path[3:]
    if path.startswith("/api/v1/"):
        return path[7:]
    return path if path in _BARE else None


def _is_page(path: str) -> bool:
    """Whether a path belongs to the pages for a browser."""
    return path == "/" or path == "/ui" or path.startswith("/ui/")


def _tidy(path: str) -> str:
    """The path without doubled or trailing slashes. One that climbs is refused: it would leave the provider's base URL."""
    if path.startswith("/") and not path.endswith("/") and "//" not in path and "/." not in path:
        return path
    segments = [segment for segment in path.split("/") if segment]
    if "." in segments or ".." in segments:
        raise WireError("the path has . or .. in it", status=400)
    return "/" + "/".join(segments)


def _as_sent(target: bytes, inner: str) -> str:
    """The path below /v1 as the client wrote it, escapes and all; the decoded one where they cannot be matched."""
    raw = (httptools.parse_url(target).path or b"").decode("latin-1")
    at = raw.find("/v1/")
    written = raw[at + 3 :] if at >= 0 else inner
    return written if _tidy(unquote(written)) == inner else inner


def wire_spoken(path: str, headers: Mapping[str, str]) -> Wire:
    """The wire whose error shape a request expects, also where it asks for none of our routes."""
    for suffix, wire in _WIRES.items():
        if path.endswith(suffix):
            return wire
    return Wire.MESSAGES if "/messages" in path or "anthropic-version" in headers else Wire.CHAT

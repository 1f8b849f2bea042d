"""HTTP routing: check the key, read the body, hand the request on, and report errors in the
client's wire.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil
from typing import Any
from urllib.parse import unquote

import httptools

from metaclaw.clock import utc_now
from metaclaw.domain.chat import Wire
from metaclaw.domain.person import HOME, Person
from metaclaw.errors import MetaClawError, UpstreamError, WireError
from metaclaw.ports import Call
from metaclaw.proxy.http.body import MAX_ITEMS, SMALL_BYTES, Body, NotStrictError, is_costly, read
from metaclaw.proxy.http.body_check import BodyChecker
from metaclaw.proxy.http.client import Client, ClientGone, Incoming, RawHeaders, read_body
from metaclaw.proxy.http.wrong_keys import WrongKeys
from metaclaw.proxy.keyring import Keyring
from metaclaw.proxy.metrics import Metrics
from metaclaw.proxy.other_requests import OtherRequests
from metaclaw.proxy.pipeline import ERROR_HEADERS, Pipeline
from metaclaw.proxy.response import JSON_HEADERS
from metaclaw.wires import join_call, read_path, signed_wire, wire_format, wire_formats

log = logging.getLogger(__name__)


_CREDENTIALS = ("x-metaclaw-key", "x-api-key", "authorization", "x-goog-api-key")
_HOW = (
    "`metaclaw key` prints it: send it as `Authorization: Bearer`, `x-api-key` or `X-Metaclaw-Key`,"
    " or put it in the base URL as /k/<key>/v1"
)


class Gatekeeper:
    """Finds our keys in a request and removes them, so that they are never sent to a provider."""

    def __init__(self, keyring: Keyring) -> None:
        self._holder = keyring.holder

    def admit(
        self, headers: Mapping[str, str], path_key: str | None
    ) -> tuple[Person, dict[str, str]] | None:
        """Whose key is among the request's credentials, and the header fields without our keys,
        with the user whom the key decides; None if there is no such key.
        """
        # Compare every credential, so that the time taken does not show which of them was right.
        found = None if path_key is None else self._holder(path_key)
        kept = dict(headers)
        for name in _CREDENTIALS:
            value = kept.get(name)
            if value is None:
                continue
            if (holder := self._holder(_without_bearer(value))) is not None:
                found = found or holder
                del kept[name]
            elif name == "x-metaclaw-key":
                del kept[name]
        if found is None:
            return None
        _speak_as(found, kept)
        return found, kept

    def wrong_keys(self, headers: Mapping[str, str], path_key: str | None) -> list[str]:
        """Where a caller who is not admitted has sent keys."""
        return [name for name in _CREDENTIALS if _without_bearer(headers.get(name, ""))] + (
            ["/k/<key>"] if path_key else []
        )

    def refusal(self, sent: Sequence[str]) -> str:
        """The message for a caller who is not admitted and has sent these keys."""
        if sent:
            return f"the key in this request ({', '.join(sent)}) is not the MetaClaw key; {_HOW}"
        return f"this request carries no MetaClaw key; {_HOW}"


def _speak_as(person: Person, headers: dict[str, str]) -> None:
    """Let the key decide who speaks. A session that a client names belongs to its user: their name
    is put before it, so that nobody continues another's."""
    if person is HOME:
        return
    user = (headers.get("x-user-id") if person.speaks_for_others else None) or person.name
    headers["x-user-id"] = user
    named, own = headers.get("x-session-id"), f"{user}:"
    if named and not named.startswith(own):
        headers["x-session-id"] = own + named


def _without_bearer(value: str) -> str:
    scheme, _, token = value.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else value.strip()


def split_path_key(path: str) -> tuple[str, str | None]:
    """Split `/k/<key>/v1/…` into `/v1/…` and the key; any other path has no key."""
    if not path.startswith("/k/"):
        return path, None
    key, slash, rest = path[3:].partition("/")
    return (slash + rest) or "/", key


Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]


async def serve_asgi(
    app: Asgi, client: Client, path: str, query: str, body: bytes, *, person: Person | None
) -> None:
    """Have an ASGI application answer a request whose body has been read. `person` is the holder of
    its key; None if it had none.
    """
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1" if client.is_modern else "1.0",
        "scheme": "http",
        "method": client.method,
        "path": path,
        "raw_path": client.target.partition(b"?")[0],
        "query_string": query.encode("latin-1"),
        "headers": [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in client.headers.items()
        ],
        "client": None if client.peer is None else (client.peer, 0),
        "person": person,
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
        """Return the whole body; on the second call, wait until the client leaves."""
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self._client.wait_gone()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        """Send the response. A body that comes in one piece is sent together with the head."""
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


_WIRES = {format_.path: format_.wire for format_ in wire_formats()}
_COUNT_TOKENS = "/messages/count_tokens"
_PATHS_WITHOUT_V1 = (*_WIRES, _COUNT_TOKENS, "/models", "/completions", "/embeddings")
_GOOGLE = "/v1beta/"
_MAX_KNOWN_BYTES = 512
_PROBES = {("HEAD", "/"), ("HEAD", "/api/hello")}
_MAX_FORM_BYTES = 256 * 1024
_MAX_API_BYTES = 512 * 1024
_REFUSED_METHODS = ("TRACE", "CONNECT")
_METHODS = b"DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"


class _MethodError(WireError):
    """A request with the wrong method; `allow` lists the right ones."""

    def __init__(self, message: str, allow: bytes) -> None:
        super().__init__(message, status=405, code="method_not_allowed")
        self.allow = allow


class _LimitError(WireError):
    """A request of a person who has used as much as they may."""

    def __init__(self, message: str, wait_s: float) -> None:
        super().__init__(message, status=429, code="rate_limit_exceeded")
        self.wait_s = ceil(wait_s)


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of incoming requests."""

    max_body_bytes: int
    body_timeout_s: float = 120.0
    max_concurrency: int = 1024
    max_items: int = MAX_ITEMS


@dataclass(kw_only=True, slots=True, eq=False)
class Server:
    """Checks the key, reads the body and hands the request to the pipeline, the other requests or
    the program's own API.
    """

    gatekeeper: Gatekeeper
    keyring: Keyring
    wrong_keys: WrongKeys
    pipeline: Pipeline
    other_requests: OtherRequests
    api: Asgi
    metrics: Metrics
    limits: RequestLimits
    body_checker: BodyChecker = field(default_factory=BodyChecker)
    _serving: int = field(default=0, init=False)

    async def serve(self, client: Client) -> None:
        """Answer one request. Every error is reported to the client in its own wire."""
        began = time.perf_counter()
        path, wire = "", Wire.CHAT
        try:
            path, path_key, query = read_target(client.target)
            wire = wire_spoken(path, client.headers)
            if "upgrade" in client.headers and _asks_for_websocket(client):
                raise WireError(_NO_WEBSOCKET, status=426, code="websocket_not_supported")
            await self._route(client, _tidy(path), path_key, query, wire, began)
        except ClientGone:
            log.debug("client_gone path=%s", path)
        except (WireError, UpstreamError) as error:
            self._refuse(client, wire, error)
        except MetaClawError as error:
            self._refuse(client, wire, _internal_error(str(error)))
        except Exception:
            log.exception("unexpected_error path=%s", path)
            self._refuse(
                client,
                wire,
                _internal_error("MetaClaw failed to handle this request; its log has the details"),
            )

    async def _route(
        self, client: Client, path: str, path_key: str | None, query: str, wire: Wire, began: float
    ) -> None:
        method, headers = client.method, client.headers
        inner = _inner_path(path)
        if method in _REFUSED_METHODS:
            raise _MethodError(f"{method} is not supported", _METHODS)
        if inner is None and (path == "/healthz" or (method, path) in _PROBES):
            client.respond(200, JSON_HEADERS, b"" if method == "HEAD" else b'{"ok":true}')
            return
        admitted = self.gatekeeper.admit(headers, path_key)
        if admitted is None:
            await self._serve_without_key(
                client, path, path_key, query, is_page=inner is None and _is_page(path)
            )
            return
        person, caller = admitted
        spoken = _WIRES.get(inner) if inner is not None else None
        asked = None
        if spoken is None and inner is not None and ":" in inner:
            asked = read_path(inner)
        if (spoken or asked) is not None and method != "POST":
            raise _MethodError(f"{path} takes POST, not {method}", b"POST")
        most = (
            self.limits.max_body_bytes
            if inner is not None
            else min(self.limits.max_body_bytes, _MAX_API_BYTES)
        )
        if inner is not None and person.limits:
            await self._count(person)
        body = await read_body(
            client, headers, max_bytes=most, timeout_s=self.limits.body_timeout_s
        )
        if inner is None:
            await serve_asgi(self.api, client, path, query, body, person=person)
            return
        caller.pop("content-encoding", None)  # `read_body` has undone it
        caller.pop("content-length", None)  # the forwarded body gets its own
        if asked is not None and (joined := join_call(asked, query, body)) is not None:
            spoken, inner, query, body = Wire.GEMINI, wire_format(Wire.GEMINI).path, "", joined
        if spoken is None:
            if inner == _COUNT_TOKENS and is_costly(body):
                await self.body_checker.check(Wire.MESSAGES, body, self.limits.max_items)
            path = _as_sent(client.target, inner)
            call = Call(method, path, query, list(caller.items()), body)
            await self.other_requests.serve(call, caller, client, wire)
            return
        self._require_capacity()
        self._serving += 1
        try:
            json = await self._read(spoken, body)
            now = utc_now()
            incoming = Incoming(
                spoken,
                inner,
                query,
                caller,
                tuple(caller.items()),
                body,
                json,
                client.peer,
                now,
                began,
            )
            await self.pipeline.answer(incoming, client)
        finally:
            self._serving -= 1

    async def _count(self, person: Person) -> None:
        if (reached := await self.keyring.count_request(person)) is not None:
            limit, wait_s = reached
            raise _LimitError(f"the key of {person.name} has reached its limit {limit}", wait_s)

    async def _serve_without_key(
        self, client: Client, path: str, path_key: str | None, query: str, *, is_page: bool
    ) -> None:
        """Slow down wrong keys, and refuse all requests but those for pages: a browser sends a
        cookie, which the pages check.
        """
        headers = client.headers
        sent = self.gatekeeper.wrong_keys(headers, path_key)
        if sent:
            await self.wrong_keys.slow_down(client.peer)
        if not is_page or path_key is not None:
            raise WireError(self.gatekeeper.refusal(sent), status=401, code="invalid_api_key")
        body = await read_body(
            client, headers, max_bytes=_MAX_FORM_BYTES, timeout_s=self.limits.body_timeout_s
        )
        await serve_asgi(self.api, client, path, query, body, person=None)

    async def _read(self, wire: Wire, body: bytes) -> Body:
        """Decode a body. If that may take long, it is checked in another process first."""
        most = self.limits.max_items
        if not is_costly(body):
            try:
                return read(wire, body, most, is_lenient=len(body) <= SMALL_BYTES)
            except NotStrictError:
                pass
        await self.body_checker.check(wire, body, most)
        return read(wire, body, most)

    async def idle(self, within_s: float) -> None:
        """Wait until no request is being answered, at most `within_s`."""
        deadline = time.monotonic() + within_s
        while self._serving and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    def _require_capacity(self) -> None:
        if self._serving >= self.limits.max_concurrency:
            raise WireError(
                f"{self._serving} answers are being made already (proxy.max_concurrency); try again"
                " shortly",
                status=429,
                code="rate_limit_exceeded",
            )

    def _refuse(self, client: Client, wire: Wire, error: WireError | UpstreamError) -> None:
        status = error.status
        self.metrics.refused(status)
        if client.started:
            # the connection is closed without the response's end, which shows the client that it is
            # incomplete
            return
        headers = JSON_HEADERS + ERROR_HEADERS.get(status, [])
        if isinstance(error, _LimitError):
            headers = [*JSON_HEADERS, (b"retry-after", b"%d" % error.wait_s)]
        if isinstance(error, _MethodError):
            headers.append((b"allow", error.allow))
        param = error.param if isinstance(error, WireError) else None
        body = wire_format(wire).error_body(status, str(error), error.code, param)
        client.respond(status, headers, body)


def _internal_error(message: str) -> WireError:
    return WireError(message, status=500, code="internal_error")


_NO_WEBSOCKET = (
    "MetaClaw does not speak WebSocket; send the request as HTTP POST and its answer is streamed as"
    " server-sent events"
)


def _asks_for_websocket(client: Client) -> bool:
    offered = client.headers["upgrade"].lower().split(",")
    return (
        client.is_modern
        and client.method == "GET"
        and "websocket" in [protocol.strip() for protocol in offered]
    )


def read_target(target: bytes) -> tuple[str, str | None, str]:
    """Split a request target into the decoded path without our key, the key, and the query."""
    return _read_known_target(target) if len(target) <= _MAX_KNOWN_BYTES else _read_target(target)


def _read_target(target: bytes) -> tuple[str, str | None, str]:
    try:
        url = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError as error:
        raise WireError("the request names no path", status=400) from error
    path, query = (url.path or b"/").decode("latin-1"), (url.query or b"").decode("latin-1")
    path, key = split_path_key(unquote(path) if "%" in path else path)
    if "key=" in query and (path.startswith(_GOOGLE) or read_path(path.removeprefix("/v1"))):
        # Google's key may be in the query, which is logged and passed on.
        fields = query.split("&")
        query = "&".join(field for field in fields if not field.startswith("key="))
        named = next((field[4:] for field in fields if field.startswith("key=")), None)
        key = key or (None if named is None else unquote(named))
    return path, key, query


_read_known_target = lru_cache(maxsize=1024)(_read_target)


def _inner_path(path: str) -> str | None:
    """The path below `/v1` or Google's `/v1beta`, also for clients that omit `/v1` or prefix it with
    `/api`; None for the program's own API and pages.
    """
    if path.startswith("/v1/"):
        return path[3:]
    if path.startswith("/api/v1/"):
        return path[7:]
    if path.startswith(_GOOGLE):
        return path[len(_GOOGLE) - 1 :]
    return path if path in _PATHS_WITHOUT_V1 else None


def _is_page(path: str) -> bool:
    """Whether a path belongs to the pages for a browser."""
    return path == "/" or path == "/ui" or path.startswith("/ui/")


def _tidy(path: str) -> str:
    """Remove doubled and trailing slashes. Raises WireError for `.` and `..`, which could leave the
    provider's base URL.
    """
    if path.startswith("/") and not path.endswith("/") and "//" not in path and "/." not in path:
        return path
    segments = [segment for segment in path.split("/") if segment]
    if "." in segments or ".." in segments:
        raise WireError("the path has . or .. in it", status=400)
    return "/" + "/".join(segments)


def _as_sent(target: bytes, inner: str) -> str:
    """The path below /v1 with the client's own escapes; the decoded path if the two do not
    match.
    """
    raw = (httptools.parse_url(target).path or b"").decode("latin-1")
    at = raw.find("/v1/")
    written = raw[at + 3 :] if at >= 0 else inner
    return written if _tidy(unquote(written)) == inner else inner


def wire_spoken(path: str, headers: Mapping[str, str]) -> Wire:
    """The wire in which a request expects errors, also for unknown routes."""
    for suffix, wire in _WIRES.items():
        if path.endswith(suffix):
            return wire
    if path.startswith(_GOOGLE) or read_path(path.removeprefix("/v1")) is not None:
        return Wire.GEMINI
    return Wire.MESSAGES if "/messages" in path else signed_wire(headers)

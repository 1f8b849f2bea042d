"""A provider over HTTP (ports.HttpProvider): requests, forwarded header fields, decompression, and
probing of its wires.
"""

import asyncio
import re
import time
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final, Literal, TypeAlias
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from metaclaw.config import WIRES_OF_KIND
from metaclaw.domain.chat import Json, Wire
from metaclaw.errors import ConfigError, UpstreamError, WireError
from metaclaw.ports import Call, Headers, HttpProvider, Reply
from metaclaw.upstream.connection import Timeouts
from metaclaw.upstream.pool import ConnectionPool, PoolLimits
from metaclaw.upstream.routing import is_missing_route
from metaclaw.upstream.transport import REDIRECTED, Address, ClosedEarlyError, failure, read_address
from metaclaw.wires import decode_object, parse_error, split_call, wire_format

CREDENTIALS = ("authorization", "x-api-key", "x-goog-api-key", "api-key", "cookie")
"""Header fields with credentials; forwarded only to providers with `api_key = "passthrough"`."""

_HOP_BY_HOP = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
    *("te", "trailer", "trailers", "transfer-encoding", "upgrade"),
}
_OURS = {
    "x-session-id",
    "x-turn-type",
    "x-session-done",
    "x-user-id",
    "x-workspace-id",
    "x-channel-id",
}
_OUR_PREFIX = "x-metaclaw-"
_NOT_SENT = (
    _HOP_BY_HOP | _OURS | set(CREDENTIALS) | {"host", "content-length", "accept-encoding", "expect"}
)
# alt-svc would let the client bypass the proxy; a cookie would be stored for the proxy's own host.
_NOT_RETURNED = _HOP_BY_HOP | {"alt-svc", "set-cookie", "set-cookie2"}


def request_headers(headers: Headers) -> list[tuple[str, str]]:
    """The client's header fields for the provider, unchanged and in order, without ours and the
    hop-by-hop ones.
    """
    sent = [pair for pair in headers if _is_sent(pair[0])]
    nominated = _nominated(headers)
    return [pair for pair in sent if pair[0].lower() not in nominated] if nominated else sent


def caller_credentials(caller: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The caller's own credentials, for a passthrough provider."""
    return ((name, caller[name]) for name in CREDENTIALS if name in caller)


def has_credentials(caller: Mapping[str, str]) -> bool:
    return any(name in caller for name in CREDENTIALS)


def reply_headers(headers: Headers) -> Headers:
    """The provider's header fields for the client, without the hop-by-hop ones, cookies and
    `x-metaclaw-*`.
    """
    returned = [pair for pair in headers if _is_returned(pair[0])]
    nominated = _nominated(headers)
    return (
        [pair for pair in returned if pair[0].lower() not in nominated] if nominated else returned
    )


# Cached: every request has the same few dozen names.


@lru_cache(maxsize=1024)
def _is_sent(name: str) -> bool:
    lower = name.lower()
    return lower not in _NOT_SENT and not lower.startswith(_OUR_PREFIX)


@lru_cache(maxsize=1024)
def _is_returned(name: str) -> bool:
    lower = name.lower()
    return lower not in _NOT_RETURNED and not lower.startswith(_OUR_PREFIX)


def _nominated(headers: Headers) -> frozenset[str]:
    """Fields that a Connection field declares hop-by-hop."""
    values = [value for name, value in headers if name.lower() == "connection"]
    if not values or values in (["keep-alive"], ["close"]):
        return frozenset()
    return frozenset(word.strip().lower() for value in values for word in value.split(","))


_PIECE_BYTES = 256 * 1024
_GZIP_MAGIC = b"\x1f\x8b"
_CODINGS = frozenset({"gzip", "x-gzip", "deflate"})


def decompressed(reply: Reply, peer: str) -> Reply:
    """The reply with plain bytes, decompressed if it is gzip or deflate, so that turns can be
    recorded.
    """
    for name, value in reply.headers:
        if name == "content-encoding":
            return _Decompressed(reply, peer) if value.strip().lower() in _CODINGS else reply
    return reply


class _Decompressed:
    """A reply whose body is decompressed in pieces, so that a small response cannot fill the
    memory.
    """

    def __init__(self, reply: Reply, peer: str) -> None:
        self._reply = reply
        self._peer = peer
        self._chunks = self._plain()
        self.status = reply.status
        self.headers: Headers = [
            (name, value)
            for name, value in reply.headers
            if name not in ("content-encoding", "content-length")
        ]

    def chunks(self) -> AsyncIterator[bytes]:
        return self._chunks

    async def aclose(self) -> None:
        await self._reply.aclose()

    async def _plain(self) -> AsyncIterator[bytes]:
        stream, pending, is_begun = None, b"", False
        async for chunk in self._reply.chunks():
            pending += chunk
            # Two bytes tell the form. What follows the last member of a gzip file is padding.
            while len(pending) > 1 or (pending and stream is not None):
                if stream is None:
                    if is_begun and pending[:2] != _GZIP_MAGIC:
                        pending = b""
                        break
                    stream, is_begun = zlib.decompressobj(_window_bits(*pending[:2])), True
                try:
                    piece = stream.decompress(pending, _PIECE_BYTES)
                    while piece:
                        yield piece
                        # After a full piece zlib may hold more, even if all input is used up.
                        piece = stream.decompress(stream.unconsumed_tail, _PIECE_BYTES)
                except zlib.error as cause:
                    await self._reply.aclose()
                    raise failure(self._peer, cause, head_seen=True) from cause
                pending = stream.unused_data
                if stream.eof:
                    stream = None
        if stream is not None or (pending and not is_begun):
            early = ClosedEarlyError("its compressed answer has no end")
            raise failure(self._peer, early, head_seen=True)


def _window_bits(first: int, second: int) -> int:
    """zlib's word for gzip, zlib or raw deflate."""
    if bytes((first, second)) == _GZIP_MAGIC:
        return zlib.MAX_WBITS | 16
    is_zlib = first & 0x0F == 8 and (first << 8 | second) % 31 == 0
    return zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS


Kind: TypeAlias = Literal["openai", "anthropic", "gemini"]

_KEPT_OPENINGS = 64
_REDIRECTS = frozenset({300, 301, 302, 303, 307, 308})
_KEY_FIELDS: dict[Kind, str] = {
    "openai": "authorization",
    "anthropic": "x-api-key",
    "gemini": "x-goog-api-key",
}
_ANTHROPIC_VERSION = "2023-06-01"
_BODILESS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE", "TRACE"})
_METHOD = re.compile(r"[A-Z]+")
_PLAIN_PATH = re.compile(r"(?:[A-Za-z0-9/._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*")
_PATH_SAFE = "/._~!$&'()*+,;=:@-%"
_PLAIN_QUERY = re.compile(r"[\x21\x22\x24-\x7e]*")
_SENDABLE = re.compile(r"[\x20-\x7e]+")


class PassthroughKey(Enum):
    """Used instead of a key: forward the caller's own credentials."""

    PASSTHROUGH = "passthrough"


PASSTHROUGH: Final = PassthroughKey.PASSTHROUGH
ApiKey: TypeAlias = str | PassthroughKey | None


class HttpEndpoint:
    """One configured provider. Its key never shows in messages."""

    def __init__(
        self,
        name: str,
        kind: Kind,
        base_url: str,
        *,
        api_key: ApiKey = None,
        models: Iterable[str] = (),
        wires: Iterable[Wire] | None = None,
        timeouts: Timeouts | None = None,
        limits: PoolLimits | None = None,
    ) -> None:
        self.name = name
        self.kind: Kind = kind
        self.models = tuple(models)
        self.wires = frozenset(WIRES_OF_KIND[kind] if wires is None else wires)
        self.is_passthrough = api_key is PASSTHROUGH
        address = read_address(base_url)
        self._base_url = base_url
        self._peer = f"provider {name} ({address.authority})"
        self._target, self._query = _target(kind, base_url, address)
        self._path = _path
        self._fixed = "".join(
            f"\r\n{field}: {value}" for field, value in _fixed_headers(name, kind, address, api_key)
        )
        self._fixed_breaks = self._fixed.count("\n")
        self._openings: dict[tuple[str, str, str, Headers], bytes] = {}
        self._pool = ConnectionPool(
            self._peer, address, timeouts or Timeouts(), limits or PoolLimits()
        )

    def __repr__(self) -> str:
        return f"HttpEndpoint({self.name!r}, {self.kind!r}, {self._peer})"

    def at_root(self) -> "HttpEndpoint":
        """The same server, with the same connections, for routes beside its API: paths are below
        its root instead of its `/v1`.
        """
        root = copy(self)
        root._target, root._path, root._openings = self._target.removesuffix("/v1"), _quoted, {}
        return root

    async def call(self, call: Call, caller: Mapping[str, str]) -> Reply:
        """Send a call; return once the response head has arrived.

        Raises UpstreamError if there is no response, or a redirect, which would send the
        credentials to another address. Raises WireError if the call cannot be sent."""
        answer = await self._pool.request(
            call.method, self._head(call, caller), call.body, call.session
        )
        if answer.status in _REDIRECTS:
            await answer.aclose()
            raise self._redirected(call, answer)
        return decompressed(answer, self._peer)

    async def aclose(self) -> None:
        await self._pool.aclose()

    async def reach(self, within_s: float) -> None:
        """Test whether the provider accepts connections, without a request. Raises
        UpstreamError.
        """
        await self._pool.reach(within_s)

    @property
    def open_connections(self) -> int:
        return self._pool.open_connections

    def _redirected(self, call: Call, answer: Reply) -> UpstreamError:
        location = next((value for name, value in answer.headers if name == "location"), "")
        words = f"{self._peer} answered {answer.status}, a redirect"
        parts = urlsplit(urljoin(f"{self._base_url}/", location))
        if location and parts.hostname:
            host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
            base = f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}".removesuffix(
                _path(call.path)
            )
            words += f" to {base.removesuffix('/v1') if self.kind == 'anthropic' else base}"
        remedy = (
            f"redirects are not followed; set base_url of provider {self.name} to the address that"
            " answers"
        )
        return UpstreamError(f"{words}; {remedy}", code=REDIRECTED)

    def _head(self, call: Call, caller: Mapping[str, str]) -> bytes:
        head = self._opening(call)
        if call.purpose is not None:
            head += _encode([f"x-metaclaw-purpose: {call.purpose}"])
        if self.is_passthrough:
            credentials = [f"{name}: {value}" for name, value in caller_credentials(caller)]
            if not credentials:
                raise self._nothing_to_pass()
            head += _encode(credentials)
        if call.body or call.method not in _BODILESS:
            return head + b"content-length: %d\r\n\r\n" % len(call.body)
        return head + b"\r\n"

    def _nothing_to_pass(self) -> WireError:
        url = "/k/<MetaClaw key>" + ("/v1" if self.kind == "openai" else "")
        return WireError(
            f'provider {self.name} has api_key = "passthrough" and this request has no credentials'
            " of its own to pass on: "
            f"end the client's base URL with {url} instead of sending the MetaClaw key as a"
            " credential, and let the client send "
            f"its own API key or login; or give provider {self.name} an api_key",
            status=401,
            code="no_credentials",
        )

    def _opening(self, call: Call) -> bytes:
        """The part of the head that is equal for all calls of a client, cached."""
        known = (call.method, call.path, call.query, tuple(call.headers))
        opening = self._openings.get(known)
        if opening is None:
            lines = [
                f"{_method(call.method)} {self._target}{self._path(call.path)}{self._query_of(call)}"
                f" HTTP/1.1{self._fixed}"
            ]
            lines += [f"{name}: {value}" for name, value in request_headers(call.headers)]
            if self.kind == "anthropic" and not any(
                name.lower() == "anthropic-version" for name, _ in call.headers
            ):
                lines.append(f"anthropic-version: {_ANTHROPIC_VERSION}")
            opening = _encode(lines, self._fixed_breaks)
            if len(self._openings) >= _KEPT_OPENINGS:
                self._openings.clear()
            self._openings[known] = opening
        return opening

    def _query_of(self, call: Call) -> str:
        if not (call.query or self._query):
            return ""
        if not _PLAIN_QUERY.fullmatch(call.query):
            raise WireError("the query string has characters that cannot be sent")
        both = [query for query in (self._query, call.query) if query]
        return "?" + "&".join(both)


class GeminiEndpoint(HttpEndpoint):
    """A provider of Google's API, whose paths name the model and whether to stream."""

    async def call(self, call: Call, caller: Mapping[str, str]) -> Reply:
        if call.path == wire_format(Wire.GEMINI).path:
            path, query, body = split_call(call.body)
            call = msgspec.structs.replace(call, path=path, query=query, body=body)
        elif call.path == "/models" and not call.query:
            call = msgspec.structs.replace(call, query="pageSize=1000")
        return await super().call(call, caller)


def _target(kind: Kind, base_url: str, address: Address) -> tuple[str, str]:
    """The prefix of every path (without /v1), and the query of every call.

    An OpenAI base URL ends in /v1 or another version; without any path, /v1 is added. An Anthropic
    base URL has no /v1; if it has, the result is the same. Google's has no version."""
    parts = urlsplit(base_url)
    path = parts.path.rstrip("/")
    if kind == "openai":
        path = path or "/v1"
    else:
        version = "/v1" if kind == "anthropic" else "/v1beta"
        path = path.removesuffix(version) + version
    prefix = f"http://{address.authority}" if address.is_absolute_form else ""
    return prefix + _quoted(path), parts.query


def _fixed_headers(
    name: str, kind: Kind, address: Address, api_key: ApiKey
) -> list[tuple[str, str]]:
    fields = [("host", address.authority), ("accept-encoding", "identity")]
    if address.is_absolute_form and address.proxy is not None and address.proxy.authorization:
        fields.append(("proxy-authorization", address.proxy.authorization))
    if isinstance(api_key, str):
        if not _SENDABLE.fullmatch(api_key):
            raise ConfigError(
                f"the api_key of provider {name} is empty or has characters that cannot be sent in"
                " a header"
            )
        scheme = "Bearer " if kind == "openai" else ""
        fields.append((_KEY_FIELDS[kind], scheme + api_key))
    return fields


def _method(method: str) -> str:
    if not _METHOD.fullmatch(method):
        raise WireError("the request method is not one we can send", status=405)
    return method


def _path(path: str) -> str:
    """The path below the target: without /v1, and with unsafe characters escaped."""
    if path == "/v1" or path.startswith("/v1/"):
        path = path[3:]
    return _quoted(path)


def _quoted(path: str) -> str:
    return path if _PLAIN_PATH.fullmatch(path) else quote(path, safe=_PATH_SAFE)


def _encode(lines: list[str], fixed_breaks: int = 0) -> bytes:
    """Encode lines of a head. Line breaks are counted, because one inside a field would inject
    another field.
    """
    head = "".join([f"{line}\r\n" for line in lines])
    breaks = len(lines) + fixed_breaks
    if head.count("\n") != breaks or head.count("\r") != breaks or "\0" in head:
        raise WireError("a header field has a line break in it")
    try:
        return head.encode("latin-1")
    except UnicodeEncodeError as cause:
        raise WireError("a header field has characters that cannot be sent") from cause


class ProviderReachability:
    """Tests whether a provider accepts connections, without a request, and caches the result."""

    def __init__(
        self,
        provider: HttpEndpoint,
        *,
        keep_s: float = 5.0,
        patience_s: float = 0.5,
        within_s: float = 5.0,
    ) -> None:
        """A result is valid for `keep_s`. A caller waits at most `patience_s` for a new result,
        which may take `within_s`.
        """
        self._provider = provider
        self._keep_s, self._patience_s, self._within_s = keep_s, patience_s, within_s
        self._trouble: str | None = None
        self._known_at: float | None = None
        self._trying: asyncio.Task[None] | None = None

    @property
    def is_known(self) -> bool:
        """Whether there is a recent result."""
        return (
            self._known_at is not None
            and time.monotonic() - self._known_at < self._keep_s + self._within_s
        )

    async def trouble(self) -> str | None:
        """Why the provider accepts no connection, as far as is known; None if it does."""
        if self._provider.open_connections:
            self._trouble, self._known_at = None, time.monotonic()
        elif self._known_at is None or time.monotonic() - self._known_at >= self._keep_s:
            if self._trying is None or self._trying.done():
                self._trying = asyncio.create_task(self._try())
            await asyncio.wait([self._trying], timeout=self._patience_s)
        return self._trouble

    async def _try(self) -> None:
        try:
            await self._provider.reach(self._within_s)
        except UpstreamError as error:
            self._trouble = str(error)
        else:
            self._trouble = None
        self._known_at = time.monotonic()


MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024
_WITHIN_S = 15.0
_KEY_REFUSED = (401, 402, 403)


async def gather_body(reply: Reply, provider: str, most_bytes: int = MAX_ANSWER_BYTES) -> bytes:
    """Read the whole body of a reply and close it. Raises UpstreamError beyond `most_bytes`."""
    pieces: list[bytes] = []
    size = 0
    try:
        async for chunk in reply.chunks():
            size += len(chunk)
            if size > most_bytes:
                raise UpstreamError(
                    f"provider {provider} sent more than {most_bytes} bytes in one answer"
                )
            pieces.append(chunk)
    finally:
        await reply.aclose()
    return b"".join(pieces)


@dataclass(frozen=True, slots=True)
class WireProbe:
    """The result of probing a provider: wires whose path is missing, and why it would not serve at
    all.
    """

    missing: frozenset[Wire]
    trouble: str | None


async def probe_wires(endpoint: HttpEndpoint, within_s: float = _WITHIN_S) -> WireProbe:
    """Send an empty request to the path of each wire of this kind. No model runs: existing paths
    refuse it with another error.
    """
    wires = WIRES_OF_KIND[endpoint.kind]
    try:
        async with asyncio.timeout(within_s):
            answers = {wire: await _ask_nothing(endpoint, wire) for wire in wires}
    except UpstreamError as error:
        return WireProbe(frozenset(), str(error))
    except TimeoutError:
        return WireProbe(
            frozenset(), f"provider {endpoint.name} did not answer within {within_s:g} s"
        )
    missing = frozenset(
        wire for wire, (status, body) in answers.items() if _is_no_route(status, body)
    )
    for status, body in answers.values():
        if status in _KEY_REFUSED:
            reason = parse_error(status, body)[0]
            return WireProbe(
                missing, f"provider {endpoint.name} refused the key ({status}): {reason}"
            )
    if missing == set(wires):
        paths = " and ".join(wire_format(wire).path for wire in wires)
        return WireProbe(
            missing, f"provider {endpoint.name} has neither {paths}: is its base_url right?"
        )
    return WireProbe(missing, None)


async def list_models(endpoint: HttpEndpoint, within_s: float = _WITHIN_S) -> list[str]:
    """The ids of the models that the provider lists; empty if it lists none or the request
    fails. An Anthropic provider's entries say that they are models: a server of several wires may
    list those of another one.
    """
    try:
        async with asyncio.timeout(within_s):
            listed = await listed_models(endpoint, {})
    except (UpstreamError, TimeoutError):
        return []
    is_anthropic = endpoint.kind == "anthropic"
    return [name for name, one in listed.items() if not is_anthropic or one.get("type") == "model"]


async def listed_models(
    provider: HttpProvider, caller: Mapping[str, str]
) -> dict[str, dict[str, Json]]:
    """The entries of the provider's list of models, by id. Raises UpstreamError."""
    reply = await provider.call(Call("GET", "/models", "", [], b""), caller)
    body = await gather_body(reply, provider.name)
    if reply.status != 200:
        raise UpstreamError(
            f"provider {provider.name} answered {reply.status} when asked for its models"
        )
    found = decode_object(body, "a list of models")
    key, data = "id", found.get("data")
    if data is None:
        key, data = "name", found.get("models")
    entries = data if isinstance(data, list) else []
    named = [entry for entry in entries if isinstance(entry, dict)]
    return {
        model.removeprefix("models/"): entry
        for entry in named
        if isinstance(model := entry.get(key), str)
    }


async def models_status(endpoint: HttpEndpoint) -> int:
    """The status with which the provider answers a request for its models; where callers' own
    credentials are passed on, to a request with wrong ones.
    """
    call = Call("GET", "/models", "", [], b"")
    reply = await endpoint.call(call, {"authorization": "Bearer none"})
    await gather_body(reply, endpoint.name)
    return reply.status


async def _ask_nothing(endpoint: HttpEndpoint, wire: Wire) -> tuple[int, bytes]:
    return await _read(
        endpoint,
        Call("POST", wire_format(wire).path, "", [("content-type", "application/json")], b"{}"),
    )


async def _read(endpoint: HttpEndpoint, call: Call) -> tuple[int, bytes]:
    reply = await endpoint.call(call, {})
    return reply.status, await gather_body(reply, endpoint.name)


def _is_no_route(status: int, body: bytes) -> bool:
    # Some servers answer 200 on every path, with an error in the body.
    return is_missing_route(status, body) or (
        status == 200 and b"nexpected endpoint" in body[:1000]
    )

"""A provider that is reached over HTTP (ports.HttpProvider)."""

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Final, Literal, TypeAlias
from urllib.parse import quote, urljoin, urlsplit

from metaclaw.domain.chat import Wire
from metaclaw.errors import ConfigError, UpstreamError, WireError
from metaclaw.ports import Call, Headers, Reply
from metaclaw.upstream.coding import readable
from metaclaw.upstream.connection import Timeouts
from metaclaw.upstream.dial import Address, read_address
from metaclaw.upstream.failures import REDIRECTED
from metaclaw.upstream.headers import caller_credentials, request_headers
from metaclaw.upstream.pool import Limits, Pool

Kind: TypeAlias = Literal["openai", "anthropic"]

_DEFAULT_WIRES: Mapping[Kind, frozenset[Wire]] = {
    "openai": frozenset({Wire.CHAT, Wire.RESPONSES}),
    "anthropic": frozenset({Wire.MESSAGES}),
}
_KEPT_OPENINGS = 64
_REDIRECTS = frozenset({300, 301, 302, 303, 307, 308})
_ANTHROPIC_VERSION = "2023-06-01"
_BODILESS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE", "TRACE"})
_METHOD = re.compile(r"[A-Z]+")
_PLAIN_PATH = re.compile(r"(?:[A-Za-z0-9/._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*")
_PATH_SAFE = "/._~!$&'()*+,;=:@-%"
_PLAIN_QUERY = re.compile(r"[\x21\x22\x24-\x7e]*")
_SENDABLE = re.compile(r"[\x20-\x7e]+")


class Passthrough(Enum):
    """Stands where a key would: the caller's own credentials are forwarded."""

    PASSTHROUGH = "passthrough"


PASSTHROUGH: Final = Passthrough.PASSTHROUGH
ApiKey: TypeAlias = str | Passthrough | None


class HttpEndpoint:
    """One configured provider. Its key is held here and shows nowhere."""

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
        limits: Limits | None = None,
    ) -> None:
        self.name = name
        self.kind: Kind = kind
        self.models = tuple(models)
        self.wires = _DEFAULT_WIRES[kind] if wires is None else frozenset(wires)
        self.is_passthrough = api_key is PASSTHROUGH
        address = read_address(base_url)
        self._base_url = base_url
        self._peer = f"provider {name} ({address.authority})"
        self._target, self._query = _target(kind, base_url, address)
        self._fixed = "".join(f"\r\n{field}: {value}" for field, value in _fixed_headers(name, kind, address, api_key))
        self._fixed_breaks = self._fixed.count("\n")
        self._openings: dict[tuple[str, str, str, Headers], bytes] = {}
        self._pool = Pool(self._peer, address, timeouts or Timeouts(), limits or Limits())

    def __repr__(self) -> str:
        return f"HttpEndpoint({self.name!r}, {self.kind!r}, {self._peer})"

    async def call(self, call: Call, caller: Mapping[str, str]) -> Reply:
        """Send; return once the status line is here.

        Raises UpstreamError if nothing came back, or a redirect: followed, it would hand the credentials to another address.
        Raises WireError if the call cannot be sent.
        """
        answer = await self._pool.request(call.method, self._head(call, caller), call.body, call.session)
        if answer.status in _REDIRECTS:
            await answer.aclose()
            raise self._redirected(call, answer)
        return readable(answer, self._peer)

    async def aclose(self) -> None:
        """Close every connection, calls under way included."""
        await self._pool.aclose()

    async def reach(self, within_s: float) -> None:
        """Find out whether it accepts connections, without a request. Raises UpstreamError."""
        await self._pool.reach(within_s)

    @property
    def open_connections(self) -> int:
        """Connections now open to this provider."""
        return self._pool.open_connections

    def _redirected(self, call: Call, answer: Reply) -> UpstreamError:
        location = next((value for name, value in answer.headers if name == "location"), "")
        words = f"{self._peer} answered {answer.status}, a redirect"
        parts = urlsplit(urljoin(f"{self._base_url}/", location))
        if location and parts.hostname:
            host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
            base = f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}".removesuffix(_path(call.path))
            words += f" to {base.removesuffix('/v1') if self.kind == 'anthropic' else base}"
        remedy = f"redirects are not followed; set base_url of provider {self.name} to the address that answers"
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
        url = "/k/<MetaClaw key>" + ("" if self.kind == "anthropic" else "/v1")
        return WireError(
            f'provider {self.name} has api_key = "passthrough" and this request brings no credentials of its own to pass on: '
            f"end the client's base URL with {url} instead of sending the MetaClaw key as a credential, and let the client send "
            f"its own API key or login; or give provider {self.name} an api_key",
            status=401,
            code="no_credentials",
        )

    def _opening(self, call: Call) -> bytes:
        """The head as far as it is the same for every call of a client: most send the same fields with each."""
        known = (call.method, call.path, call.query, tuple(call.headers))
        opening = self._openings.get(known)
        if opening is None:
            lines = [f"{_method(call.method)} {self._target}{_path(call.path)}{self._query_of(call)} HTTP/1.1{self._fixed}"]
            lines += [f"{name}: {value}" for name, value in request_headers(call.headers)]
            if self.kind == "anthropic" and not any(name.lower() == "anthropic-version" for name, _ in call.headers):
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


def _target(kind: Kind, base_url: str, address: Address) -> tuple[str, str]:
    """What stands before a call's path without its /v1, and the query every call carries.

    An OpenAI base URL ends in /v1 or in whatever its owner calls its version; with no path at all, /v1 is meant.
    An Anthropic one stands without /v1; with it, the same is meant.
    """
    parts = urlsplit(base_url)
    path = parts.path.rstrip("/")
    path = path or "/v1" if kind == "openai" else path.removesuffix("/v1") + "/v1"
    prefix = f"http://{address.authority}" if address.is_absolute_form else ""
    return prefix + _quoted(path), parts.query


def _fixed_headers(name: str, kind: Kind, address: Address, api_key: ApiKey) -> list[tuple[str, str]]:
    fields = [("host", address.authority), ("accept-encoding", "identity")]
    if address.is_absolute_form and address.proxy is not None and address.proxy.authorization:
        fields.append(("proxy-authorization", address.proxy.authorization))
    if isinstance(api_key, str):
        if not _SENDABLE.fullmatch(api_key):
            raise ConfigError(f"the api_key of provider {name} is empty or has characters that cannot be sent in a header")
        fields.append(("authorization", f"Bearer {api_key}") if kind == "openai" else ("x-api-key", api_key))
    return fields


@lru_cache(maxsize=64)
def _method(method: str) -> str:
    if not _METHOD.fullmatch(method):
        raise WireError("the request method is not one we can send", status=405)
    return method


@lru_cache(maxsize=256)
def _path(path: str) -> str:
    """The path that follows the target: without its /v1, and with nothing in it that a request line cannot hold."""
    if path == "/v1" or path.startswith("/v1/"):
        path = path[3:]
    return _quoted(path)


def _quoted(path: str) -> str:
    return path if _PLAIN_PATH.fullmatch(path) else quote(path, safe=_PATH_SAFE)


def _encode(lines: list[str], fixed_breaks: int = 0) -> bytes:
    """Lines of a head as bytes. A line break inside a field would smuggle in another one, so breaks are counted."""
    head = "".join([f"{line}\r\n" for line in lines])
    breaks = len(lines) + fixed_breaks
    if head.count("\n") != breaks or head.count("\r") != breaks or "\0" in head:
        raise WireError("a header field has a line break in it")
    try:
        return head.encode("latin-1")
    except UnicodeEncodeError as cause:
        raise WireError("a header field has characters that cannot be sent") from cause

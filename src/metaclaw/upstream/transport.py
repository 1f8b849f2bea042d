"""Open connections to a provider, direct, with TLS or through an HTTP proxy; and translate their
errors.
"""

import asyncio
import base64
import errno
import importlib
import importlib.util
import ipaddress
import os
import socket
import ssl
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar, cast
from urllib.parse import unquote, urlsplit

import httptools

from metaclaw.errors import ConfigError, UpstreamError

UNREACHABLE = "upstream_unreachable"
TIMEOUT = "upstream_timeout"
BUSY = "upstream_busy"
BROKEN = "upstream_closed"
MALFORMED = "upstream_garbled"
REDIRECTED = "upstream_redirect"


class ClosedEarlyError(ConnectionError):
    """The provider closed the connection before the answer was complete."""


class MalformedAnswerError(ValueError):
    """The provider sent something that is not a valid HTTP response."""


def failure(peer: str, cause: BaseException, *, head_seen: bool) -> UpstreamError:
    """The UpstreamError for an error on an open connection. Retryable only before the first byte of
    the response.
    """
    retryable = not head_seen
    match cause:
        case UpstreamError():
            return cause
        case TimeoutError():
            return UpstreamError(
                f"{peer} {_words(cause)}", status=504, retryable=retryable, code=TIMEOUT
            )
        case httptools.HttpParserError() | MalformedAnswerError() | zlib.error():
            return UpstreamError(
                f"{peer} sent a malformed answer: {_words(cause)}", retryable=False, code=MALFORMED
            )
        case _:
            return UpstreamError(
                f"{peer} broke off: {_words(cause)}", retryable=retryable, code=BROKEN
            )


@contextmanager
def opening_errors(peer: str) -> Iterator[None]:
    """Translate the errors of opening a connection."""
    try:
        yield
    except TimeoutError as cause:
        raise UpstreamError(
            f"{peer} did not accept a connection in time",
            status=504,
            retryable=True,
            code=UNREACHABLE,
        ) from cause
    except ssl.SSLError as cause:
        raise UpstreamError(
            f"{peer} cannot be trusted or does not speak TLS: {_words(cause)}", code=UNREACHABLE
        ) from cause
    except (OSError, UnicodeError, MalformedAnswerError) as cause:
        raise UpstreamError(
            f"{peer} cannot be reached: {_words(cause)}", retryable=True, code=UNREACHABLE
        ) from cause


def _words(cause: BaseException) -> str:
    match cause:
        case socket.gaierror():
            return "its host name does not resolve"
        case ssl.SSLCertVerificationError():
            return f"certificate refused ({cause.verify_message})"
        case OSError(errno=int(number)) if number in errno.errorcode:
            return os.strerror(number).lower()
        case _:
            return str(cause) or type(cause).__name__


_MAX_TUNNEL_HEAD_BYTES = 16 * 1024
_DEFAULT_PORTS = {"http": 80, "https": 443}

P = TypeVar("P", bound=asyncio.Protocol)


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy. Its credentials never show in messages."""

    host: str
    port: int
    authorization: str | None = None

    def __repr__(self) -> str:
        return f"Proxy({self.host}:{self.port})"


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a provider, and the HTTP proxy to use."""

    scheme: str
    host: str
    port: int
    proxy: Proxy | None = None

    @property
    def authority(self) -> str:
        """Host and port for the Host header, without the scheme's default port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def is_absolute_form(self) -> bool:
        """Whether the request line has the whole URL, as plain HTTP through a proxy requires."""
        return self.proxy is not None and self.scheme == "http"


def read_address(url: str) -> Address:
    """Parse a base URL. Raises ConfigError with what to write instead."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as cause:
        raise ConfigError(f"{_shown(url)} is not a URL") from cause
    if parts.username is not None or parts.password is not None:
        raise ConfigError("base_url must not carry credentials: put the key into api_key")
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise ConfigError(f"{_shown(url)} must begin with http:// or https:// and name a host")
    return Address(
        parts.scheme,
        parts.hostname,
        port or _DEFAULT_PORTS[parts.scheme],
        _proxy_for(parts.scheme, parts.hostname),
    )


def tls_context() -> ssl.SSLContext:
    """A TLS context that trusts the system's certificates, and certifi's if it is installed.
    SSL_CERT_FILE and SSL_CERT_DIR, if set, replace both."""
    context = ssl.create_default_context()
    if not (
        os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
    ) and importlib.util.find_spec("certifi"):
        context.load_verify_locations(
            cafile=cast("str", importlib.import_module("certifi").where())
        )
    context.set_alpn_protocols(["http/1.1"])
    return context


async def dial(address: Address, tls: ssl.SSLContext | None, factory: Callable[[], P]) -> P:
    """Connect a protocol made by `factory`. Raises OSError and ssl.SSLError."""
    loop = asyncio.get_running_loop()
    context = tls if address.scheme == "https" else None
    proxy = address.proxy
    if proxy is None:
        server_hostname = address.host if context else None
        _, protocol = await loop.create_connection(
            factory, address.host, address.port, ssl=context, server_hostname=server_hostname
        )
        return protocol
    if context is None:
        _, protocol = await loop.create_connection(factory, proxy.host, proxy.port)
        return protocol
    return await _dial_through_tunnel(address, proxy, context, factory)


async def _dial_through_tunnel(
    address: Address, proxy: Proxy, context: ssl.SSLContext, factory: Callable[[], P]
) -> P:
    loop = asyncio.get_running_loop()
    transport, tunnel = await loop.create_connection(_Tunnel, proxy.host, proxy.port)
    try:
        await tunnel.open_to(address, proxy)
        protocol = factory()
        secured = await loop.start_tls(transport, protocol, context, server_hostname=address.host)
    except BaseException:
        transport.abort()
        raise
    if secured is None:
        raise ConnectionError("the tunnel closed while TLS was being set up")
    # start_tls replaces the protocol of an open transport and does not call this.
    protocol.connection_made(secured)
    return protocol


class _Tunnel(asyncio.Protocol):
    """Sends CONNECT to a proxy and waits for its reply."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._head = b""
        self._answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def open_to(self, address: Address, proxy: Proxy) -> None:
        host = f"[{address.host}]" if ":" in address.host else address.host
        lines = [f"CONNECT {host}:{address.port} HTTP/1.1", f"Host: {host}:{address.port}"]
        if proxy.authorization:
            lines.append(f"Proxy-Authorization: {proxy.authorization}")
        if self._transport is not None:
            self._transport.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        status_line = (await self._answered).split(b"\r\n", 1)[0]
        words = status_line.split(None, 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].startswith(b"2"):
            raise MalformedAnswerError(
                f"the proxy {proxy.host}:{proxy.port} refused the tunnel:"
                f" {status_line[:100].decode('latin-1')}"
            )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._head += data
        if self._answered.done():
            return
        if b"\r\n\r\n" in self._head:
            self._answered.set_result(self._head)
        elif len(self._head) > _MAX_TUNNEL_HEAD_BYTES:
            self._answered.set_exception(
                MalformedAnswerError("the proxy's answer to CONNECT has no end")
            )

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._answered.done():
            self._answered.set_exception(exc or ConnectionError("the proxy closed the connection"))


def _proxy_for(scheme: str, host: str) -> Proxy | None:
    """The proxy of HTTP_PROXY, HTTPS_PROXY or ALL_PROXY; None for hosts in NO_PROXY and loopback
    hosts.
    """
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    # Imported only if there is a proxy, because it loads many modules.
    from urllib.request import getproxies_environment, proxy_bypass

    proxies = getproxies_environment()
    url = proxies.get(scheme) or proxies.get("all")
    if not url or _is_loopback(host) or proxy_bypass(host):
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        raise ConfigError(
            f"the environment's proxy for {scheme} must be an http:// URL, not"
            f" {parts.scheme or 'nothing'}://"
        )
    authorization = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = "Basic " + base64.b64encode(pair.encode()).decode()
    return Proxy(parts.hostname, parts.port or 80, authorization)


def _shown(url: str) -> str:
    """An invalid base URL for messages; hidden if it may contain credentials."""
    return "base_url" if "@" in url else f"base_url {url!r}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")

"""One blocking HTTP request, for commands, child processes and threads. The proxy's own requests go
through `upstream`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from http.client import HTTPResponse
    from ssl import SSLContext


@contextmanager
def open_response(
    url: str,
    method: str = "GET",
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float,
    tls: "SSLContext | None" = None,
) -> "Iterator[HTTPResponse]":
    """The response to a request, to be read as it arrives; `timeout_s` limits each silence.
    Redirects are not followed, and proxies of the environment are not used. `tls` says
    which https servers to trust. Raises OSError, ValueError and http.client.HTTPException."""
    # A command that sends nothing does not wait for this import.
    from http.client import HTTPConnection, HTTPSConnection

    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = parts.hostname or ""
    connection: HTTPConnection
    if parts.scheme == "https":
        connection = HTTPSConnection(host, parts.port, timeout=timeout_s, context=tls)
    else:
        connection = HTTPConnection(host, parts.port, timeout=timeout_s)
    try:
        connection.request(method, path, body, dict(headers or {}))
        yield connection.getresponse()
    finally:
        connection.close()

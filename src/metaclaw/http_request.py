"""One blocking HTTP request, for commands, child processes and threads. The proxy's own requests go
through `upstream`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from http.client import HTTPResponse


@contextmanager
def open_response(
    url: str,
    method: str = "GET",
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float,
) -> "Iterator[HTTPResponse]":
    """The response to a request, to be read as it arrives; `timeout_s` limits each silence.
    Redirects are not followed, and proxies of the environment are not used. Raises OSError,
    ValueError and http.client.HTTPException."""
    # A command that sends nothing does not wait for this import.
    from http.client import HTTPConnection, HTTPSConnection

    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request(method, path, body, dict(headers or {}))
        yield connection.getresponse()
    finally:
        connection.close()

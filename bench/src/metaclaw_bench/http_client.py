"""HTTP requests from the standard library, in a thread of their own so that the event loop goes
on.
"""

import http.client
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from anyio.to_thread import run_sync

from metaclaw.plugin import MetaClawError

_MAX_BYTES: Final = 32 * 1024 * 1024
_RETRIED: Final = frozenset({408, 409, 425, 429})


class ModelError(MetaClawError):
    """A model did not answer, refused, or sent something that is no answer. `status` is 0 where
    there was no response.
    """

    def __init__(self, message: str, *, status: int = 0, after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.after_s = after_s

    @property
    def retryable(self) -> bool:
        """Whether asking again may help: no response, a status that official SDKs retry, or a
        server error.
        """
        return self.status == 0 or self.status in _RETRIED or self.status >= 500


@dataclass(frozen=True, slots=True)
class Response:
    """A whole response; header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


async def request(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes | None = None,
    *,
    timeout_s: float = 600.0,
) -> Response:
    """Send a request and return the whole response. Raises OSError when there is none. Cancellation
    closes the connection.
    """
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "127.0.0.1", parts.port, timeout=timeout_s)
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    try:
        return await run_sync(
            _exchange, connection, method, target, dict(headers), body, abandon_on_cancel=True
        )
    finally:
        if connection.sock is not None:
            with suppress(
                OSError
            ):  # wakes the thread, which would wait for the response until its timeout
                connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()


def _exchange(
    connection: http.client.HTTPConnection,
    method: str,
    target: str,
    headers: dict[str, str],
    body: bytes | None,
) -> Response:
    try:
        connection.request(method, target, body, headers)
        with connection.getresponse() as reply:
            content = reply.read(_MAX_BYTES + 1)
            if len(content) > _MAX_BYTES:
                raise OSError(f"the response is longer than {_MAX_BYTES} bytes")
            return Response(
                reply.status, {name.lower(): value for name, value in reply.getheaders()}, content
            )
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(str(error) or type(error).__name__) from error

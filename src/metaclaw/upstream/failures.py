"""Foreign exceptions become UpstreamError here, and only here: what happened, and to whom."""

import errno
import os
import socket
import ssl
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import httptools

from metaclaw.errors import UpstreamError

UNREACHABLE = "upstream_unreachable"
TIMEOUT = "upstream_timeout"
BUSY = "upstream_busy"
BROKEN = "upstream_closed"
GARBLED = "upstream_garbled"
REDIRECTED = "upstream_redirect"


class ClosedEarlyError(ConnectionError):
    """The provider closed the connection before the answer was whole."""


class GarbledError(ValueError):
    """The provider sent something that is not an HTTP answer we can relay."""


def failure(peer: str, cause: BaseException, *, head_seen: bool) -> UpstreamError:
    """The UpstreamError for a cause met on an open connection. Retryable only while nothing of the answer had come."""
    retryable = not head_seen
    match cause:
        case UpstreamError():
            return cause
        case TimeoutError():
            return UpstreamError(f"{peer} {_words(cause)}", status=504, retryable=retryable, code=TIMEOUT)
        case httptools.HttpParserError() | GarbledError() | zlib.error():
            return UpstreamError(f"{peer} sent a malformed answer: {_words(cause)}", retryable=False, code=GARBLED)
        case _:
            return UpstreamError(f"{peer} broke off: {_words(cause)}", retryable=retryable, code=BROKEN)


@contextmanager
def dialling(peer: str) -> Iterator[None]:
    """Translate whatever goes wrong while a connection is being opened."""
    try:
        yield
    except TimeoutError as cause:
        raise UpstreamError(f"{peer} did not accept a connection in time", status=504, retryable=True, code=UNREACHABLE) from cause
    except ssl.SSLError as cause:
        raise UpstreamError(f"{peer} cannot be trusted or does not speak TLS: {_words(cause)}", code=UNREACHABLE) from cause
    except (OSError, UnicodeError, GarbledError) as cause:
        raise UpstreamError(f"{peer} cannot be reached: {_words(cause)}", retryable=True, code=UNREACHABLE) from cause


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

"""Calendar queries: what the program asks the reader process, what it replies, and HTTP limited in size and redirects.

Credentials are only sent to the host they were given for.
"""

import base64
import http.client
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import urljoin, urlsplit

import msgspec

from metaclaw.errors import MetaClawError


class CalendarError(MetaClawError):
    """A calendar cannot be read; the owner must correct its address, password or file."""


@dataclass(frozen=True, slots=True)
class CalendarEvent:
    """A busy event. Free, cancelled and declined events are left out."""

    begins: datetime
    ends: datetime
    title: str


class GoogleEndpoints(msgspec.Struct, frozen=True):
    """Addresses of Google's services; tests use their own."""

    api: str = "https://www.googleapis.com/calendar/v3"
    token: str = "https://oauth2.googleapis.com/token"
    consent: str = "https://accounts.google.com/o/oauth2/v2/auth"


class CalendarQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What to read. Passed through a pipe, since it contains secrets."""

    kind: str
    begins: datetime
    ends: datetime
    zone: str | None
    url: str = ""
    user: str | None = None
    password: str | None = None
    client_id: str = ""
    client_secret: str = ""
    calendar: str = "primary"
    token_file: str = ""
    google: GoogleEndpoints = GoogleEndpoints()
    needs_titles: bool = False
    timeout_s: float = 10.0


class CalendarReply(msgspec.Struct, frozen=True, kw_only=True):
    """The events, or an error."""

    events: list[CalendarEvent] = []
    trouble: str | None = None


MOST_BYTES: Final = 10 * 1024 * 1024
_MOST_REDIRECTS: Final = 5


@dataclass(frozen=True, slots=True)
class Fetched:
    """An answer."""

    status: int
    body: bytes


def fetch(
    url: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    user: str | None = None,
    password: str | None = None,
    timeout_s: float = 10.0,
) -> Fetched:
    """Ask, and follow redirects. Raises CalendarError, which never contains the address's secret parts."""
    origin = urlsplit(url).scheme, urlsplit(url).netloc
    for _ in range(_MOST_REDIRECTS):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CalendarError("its address is not an http:// or https:// one")
        own = dict(headers or {})
        if user is not None and (parts.scheme, parts.netloc) == origin:
            own["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password or ''}".encode()).decode()
        elif (parts.scheme, parts.netloc) != origin:
            own.pop("Authorization", None)
        answer, moved = _once(url, method, own, body, timeout_s)
        if moved is None:
            return answer
        url = urljoin(url, moved)
    raise CalendarError("its server redirects in a circle")


def _once(url: str, method: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float) -> tuple[Fetched, str | None]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        connection = (
            http.client.HTTPSConnection(host, parts.port, timeout=timeout_s, context=ssl.create_default_context())
            if parts.scheme == "https"
            else http.client.HTTPConnection(host, parts.port, timeout=timeout_s)
        )
        try:
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request(method, path, body, {"User-Agent": "metaclaw", "Accept-Encoding": "identity", **headers})
            reply = connection.getresponse()
            if reply.status in (301, 302, 303, 307, 308):
                return Fetched(reply.status, b""), reply.getheader("Location") or ""
            content = reply.read(MOST_BYTES + 1)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise CalendarError(f"{host} cannot be reached ({error or type(error).__name__})") from error
    if len(content) > MOST_BYTES:
        raise CalendarError(f"{host} sends more than {MOST_BYTES // 1024**2} MB; export a smaller calendar")
    return Fetched(reply.status, content), None


def expect(answer: Fetched, host: str) -> bytes:
    """The body of an answer that must have succeeded. Raises CalendarError."""
    if answer.status in (401, 403):
        raise CalendarError(f"{host} refuses the user or the password ({answer.status})")
    if answer.status >= 300:
        raise CalendarError(f"{host} answers with status {answer.status}")
    return answer.body

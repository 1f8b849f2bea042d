"""Reading calendars: the hook for distributions that read a kind of calendar, and a child process
that uses it.

An entry point of the group `metaclaw.calendars`, named as the kind, is a module with `read`, and
with `connect` if the owner must consent first (docs/plugins.md). A calendar may be huge or hostile,
so that a child process with limits on time and memory reads it, and HTTP responses are limited in
size. Credentials are only sent to the configured host."""

import base64
import http.client
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Final, Protocol, cast
from urllib.parse import urljoin, urlsplit
from zoneinfo import ZoneInfo

import anyio
import msgspec

from metaclaw.errors import MetaClawError
from metaclaw.hooks import CALENDARS, PluginError, load_plugin
from metaclaw.http_request import open_response
from metaclaw.schedule.clock import LocalZone


class CalendarError(MetaClawError):
    """A calendar cannot be read; the owner must correct its address, password or file."""


@dataclass(frozen=True, slots=True)
class CalendarEvent:
    """A busy event. Free, cancelled and declined events are left out."""

    begins: datetime
    ends: datetime
    title: str


class CalendarQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for the events between `begins` and `ends`, with the keys of
    `[[schedule.calendars]]`. `token_file` belongs to this calendar, for tokens that must be kept.
    It is passed through a pipe, because it contains secrets."""

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
    needs_titles: bool = False
    timeout_s: float = 10.0

    def local_zone(self) -> tzinfo:
        """The owner's time zone, in which days begin."""
        return LocalZone()() if self.zone is None else ZoneInfo(self.zone)


class CalendarPlugin(Protocol):
    """What an entry point names. `connect` is optional: it shows an address, and returns when the
    owner has consented there.
    """

    def read(self, query: CalendarQuery) -> Iterable[CalendarEvent]:
        """The busy events of the query's span. Raises CalendarError."""

    def connect(
        self, query: CalendarQuery, show: Callable[[str], None], timeout_s: float
    ) -> object:
        """Ask the owner for consent. Raises CalendarError without it."""


def find_plugin(kind: str) -> CalendarPlugin:
    """What reads this kind of calendar. Raises CalendarError with what to install."""
    try:
        return cast(CalendarPlugin, load_plugin(CALENDARS, kind, object))
    except PluginError as error:
        raise CalendarError(str(error)) from error


class CalendarReply(msgspec.Struct, frozen=True, kw_only=True):
    """The events, or an error."""

    events: list[CalendarEvent] = []
    trouble: str | None = None


MOST_BYTES: Final = 10 * 1024 * 1024
_MOST_REDIRECTS: Final = 5


@dataclass(frozen=True, slots=True)
class Fetched:
    """Status and body of an HTTP response."""

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
    """Send a request and follow redirects. Raises CalendarError, which never contains the secret
    parts of the address.
    """
    origin = urlsplit(url).scheme, urlsplit(url).netloc
    for _ in range(_MOST_REDIRECTS):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CalendarError("its address does not begin with http:// or https://")
        own = dict(headers or {})
        if user is not None and (parts.scheme, parts.netloc) == origin:
            own["Authorization"] = (
                "Basic " + base64.b64encode(f"{user}:{password or ''}".encode()).decode()
            )
        elif (parts.scheme, parts.netloc) != origin:
            own.pop("Authorization", None)
        answer, moved = _once(url, method, own, body, timeout_s)
        if moved is None:
            return answer
        url = urljoin(url, moved)
    raise CalendarError("its server redirects too often")


def _once(
    url: str, method: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float
) -> tuple[Fetched, str | None]:
    host = urlsplit(url).hostname or ""
    own = {"User-Agent": "metaclaw", "Accept-Encoding": "identity", **headers}
    try:
        with open_response(url, method, body=body, headers=own, timeout_s=timeout_s) as reply:
            if reply.status in (301, 302, 303, 307, 308):
                return Fetched(reply.status, b""), reply.getheader("Location") or ""
            content = reply.read(MOST_BYTES + 1)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise CalendarError(
            f"{host} cannot be reached ({error or type(error).__name__})"
        ) from error
    if len(content) > MOST_BYTES:
        raise CalendarError(
            f"{host} sends more than {MOST_BYTES // 1024**2} MB; export a smaller calendar"
        )
    return Fetched(reply.status, content), None


def expect(answer: Fetched, host: str) -> bytes:
    """The body of a successful response. Raises CalendarError for any other."""
    if answer.status in (401, 403):
        raise CalendarError(f"{host} refuses the user or the password ({answer.status})")
    if answer.status >= 300:
        raise CalendarError(f"{host} answers with status {answer.status}")
    return answer.body


_MEMORY_BYTES: Final = 1024**3
_STARTING_S: Final = 30.0


async def read_in_child(
    question: CalendarQuery, *, starting_s: float = _STARTING_S
) -> list[CalendarEvent]:
    """Read the events of a calendar in a child process; `starting_s` is how long it may take to
    start. Raises CalendarError.
    """
    command = [sys.executable, "-c", "from metaclaw.schedule.calendar_plugins import main; main()"]
    try:
        with anyio.fail_after(question.timeout_s + starting_s):
            done = await anyio.run_process(
                command, input=msgspec.json.encode(question), check=False, stderr=subprocess.PIPE
            )
    except TimeoutError:
        raise CalendarError(f"reading it takes longer than {question.timeout_s:g} s") from None
    except OSError as error:
        raise CalendarError(
            f"the process that reads it cannot be started ({error.strerror})"
        ) from error
    try:
        answer = msgspec.json.decode(done.stdout, type=CalendarReply)
    except msgspec.DecodeError:
        raise CalendarError(f"reading it failed (exit {done.returncode})") from None
    if answer.trouble is not None:
        raise CalendarError(answer.trouble)
    return answer.events


def answer_to(question: CalendarQuery) -> CalendarReply:
    """The reply to a query: events, or an error."""
    try:
        return CalendarReply(events=list(find_plugin(question.kind).read(question)))
    except CalendarError as error:
        return CalendarReply(trouble=str(error))
    except (MemoryError, RecursionError):
        return CalendarReply(trouble="it is too large to be read")


def main() -> None:
    """The child process: read one query from standard input and write one reply."""
    if sys.platform != "win32":
        import resource

        os.nice(10)
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    answer = answer_to(msgspec.json.decode(sys.stdin.buffer.read(), type=CalendarQuery))
    sys.stdout.buffer.write(msgspec.json.encode(answer))

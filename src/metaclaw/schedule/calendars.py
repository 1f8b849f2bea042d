"""Calendars as a signal of presence: busy means away, unless a rule about the title says otherwise.

A calendar may be huge or hostile, so that a child process with limits on time and memory reads it, and HTTP responses are limited
in size. Credentials are only sent to the configured host.
"""

import base64
import http.client
import logging
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Final, Literal
from urllib.parse import urljoin, urlsplit
from zoneinfo import ZoneInfo

import anyio
import msgspec

from metaclaw.config import RuleConfig
from metaclaw.errors import MetaClawError
from metaclaw.http_request import open_response
from metaclaw.schedule.clock import LocalZone
from metaclaw.schedule.presence import Presence, Reading

log = logging.getLogger(__name__)


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
    """A query for a calendar. It is passed through a pipe, because it contains secrets."""

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
    """Send a request and follow redirects. Raises CalendarError, which never contains the secret parts of the address."""
    origin = urlsplit(url).scheme, urlsplit(url).netloc
    for _ in range(_MOST_REDIRECTS):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CalendarError("its address does not begin with http:// or https://")
        own = dict(headers or {})
        if user is not None and (parts.scheme, parts.netloc) == origin:
            own["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password or ''}".encode()).decode()
        elif (parts.scheme, parts.netloc) != origin:
            own.pop("Authorization", None)
        answer, moved = _once(url, method, own, body, timeout_s)
        if moved is None:
            return answer
        url = urljoin(url, moved)
    raise CalendarError("its server redirects too often")


def _once(url: str, method: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float) -> tuple[Fetched, str | None]:
    host = urlsplit(url).hostname or ""
    own = {"User-Agent": "metaclaw", "Accept-Encoding": "identity", **headers}
    try:
        with open_response(url, method, body=body, headers=own, timeout_s=timeout_s) as reply:
            if reply.status in (301, 302, 303, 307, 308):
                return Fetched(reply.status, b""), reply.getheader("Location") or ""
            content = reply.read(MOST_BYTES + 1)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise CalendarError(f"{host} cannot be reached ({error or type(error).__name__})") from error
    if len(content) > MOST_BYTES:
        raise CalendarError(f"{host} sends more than {MOST_BYTES // 1024**2} MB; export a smaller calendar")
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


async def read_in_child(question: CalendarQuery, *, starting_s: float = _STARTING_S) -> list[CalendarEvent]:
    """Read the events of a calendar in a child process; `starting_s` is how long it may take to start. Raises CalendarError."""
    command = [sys.executable, "-c", "from metaclaw.schedule.calendars import main; main()"]
    try:
        with anyio.fail_after(question.timeout_s + starting_s):
            done = await anyio.run_process(command, input=msgspec.json.encode(question), check=False, stderr=subprocess.PIPE)
    except TimeoutError:
        raise CalendarError(f"reading it takes longer than {question.timeout_s:g} s") from None
    except OSError as error:
        raise CalendarError(f"the process that reads it cannot be started ({error.strerror})") from error
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
        return CalendarReply(events=_read(question))
    except CalendarError as error:
        return CalendarReply(trouble=str(error))
    except ImportError:
        return CalendarReply(trouble="it needs the calendar extra: pip install 'metaclaw-proxy[calendar]'")
    except (MemoryError, RecursionError):
        return CalendarReply(trouble="it is too large to be read")


def _read(question: CalendarQuery) -> list[CalendarEvent]:
    zone: tzinfo = LocalZone()() if question.zone is None else ZoneInfo(question.zone)
    if question.kind == "google":
        from metaclaw.schedule.google import read_google

        return read_google(question, zone)
    if question.kind == "caldav":
        from metaclaw.schedule.ics import read_caldav

        return read_caldav(question, zone)
    from metaclaw.schedule.ics import read_ics

    return read_ics(question, zone)


def main() -> None:
    """The child process: read one query from standard input and write one reply."""
    if sys.platform != "win32":
        import resource

        os.nice(10)
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    answer = answer_to(msgspec.json.decode(sys.stdin.buffer.read(), type=CalendarQuery))
    sys.stdout.buffer.write(msgspec.json.encode(answer))


Read = Callable[[datetime], Awaitable[Sequence[CalendarEvent]]]
_AFTER_TROUBLE_S: Final = 60.0
# The events are valid for this number of intervals after the last successful read: a few reads may fail.
_STALE_AFTER_LOOKS: Final = 3


@dataclass(frozen=True, slots=True)
class _BusyEvent:
    event: CalendarEvent
    means: Literal["away", "present"]


@dataclass(eq=False)
class Calendar:
    """A calendar: busy means away, unless a rule about the title says otherwise. `fetch_events` reads its events."""

    name: str
    fetch_events: Read
    _: KW_ONLY
    rules: Sequence[RuleConfig]
    every: timedelta
    now: Callable[[], datetime]
    hear: Callable[[], None] = lambda: None
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep

    def __post_init__(self) -> None:
        self._busy: tuple[_BusyEvent, ...] = ()
        self._read_at: datetime | None = None
        self._trouble: str | None = "not read yet"

    def read(self, now: datetime) -> Reading:
        """The reading by the current event."""
        if self._trouble is not None:
            return Reading(Presence.UNKNOWN, self._trouble, is_trouble=self._read_at is not None or self._trouble != "not read yet")
        if self._read_at is None or not timedelta(0) <= now - self._read_at <= self.every * _STALE_AFTER_LOOKS:
            return Reading(Presence.UNKNOWN, "it was not read for too long", is_trouble=True)
        running = [one for one in self._busy if one.event.begins <= now < one.event.ends]
        for one in running:
            if one.means == "present":
                return Reading(Presence.PRESENT, f"{_titled(one)} means present", one.event.ends)
        if running:
            return Reading(Presence.AWAY, _titled(running[0]), self._end(now))
        coming = min((one.event.begins for one in self._busy if one.event.begins > now and one.means == "away"), default=None)
        return Reading(Presence.UNKNOWN, "no event now", coming)

    async def follow(self) -> None:
        """Fetch it regularly, for ever."""
        while True:
            await self.look()
            wait_s = self.every.total_seconds() if self._trouble is None else min(_AFTER_TROUBLE_S, self.every.total_seconds())
            await self.sleep(wait_s)

    async def look(self) -> None:
        """Fetch it once; an error makes the reading unknown."""
        now = self.now()
        try:
            events = await self.fetch_events(now)
        except CalendarError as error:
            if self._trouble != str(error):
                log.warning("calendar_unreadable calendar=%s reason=%s", self.name, error)
            self._trouble = str(error)
        else:
            self._busy, self._read_at, self._trouble = tuple(self._meant(events)), now, None
        self.hear()

    def _meant(self, events: Sequence[CalendarEvent]) -> Iterator[_BusyEvent]:
        for event in sorted(events, key=lambda event: event.begins):
            title = event.title.casefold()
            rule = next((rule for rule in self.rules if rule.title.casefold() in title), None)
            if rule is None:
                yield _BusyEvent(event, "away")
            elif rule.means != "nothing":
                yield _BusyEvent(event, rule.means)

    def _end(self, now: datetime) -> datetime:
        """When the user is free again: adjacent meetings count as one."""
        end = now
        for one in self._busy:
            if one.means == "away" and one.event.begins <= end < one.event.ends:
                end = one.event.ends
        return end


def _titled(event: _BusyEvent) -> str:
    return f"busy: {event.event.title[:60]}" if event.event.title else "busy"

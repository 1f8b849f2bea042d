"""Google Calendar, the entry point `google` of `metaclaw.calendars`: free/busy times, or the events
if a rule needs titles.

Google does not allow calendars in the device flow, which would be easier on a server. So a person
consents in a browser, which is redirected to an address on this machine."""

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, tzinfo
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import msgspec

from metaclaw.durable_files import replace_file
from metaclaw.schedule import CalendarError, CalendarEvent, CalendarQuery, Fetched, fetch

__version__ = "0.1.0"

SCOPES: Final = (
    "https://www.googleapis.com/auth/calendar.freebusy",
    "https://www.googleapis.com/auth/calendar.events.readonly",
)
AGAIN: Final = "consent again with: metaclaw windows connect"
_EARLY_S: Final = 60.0
_MOST_PAGES: Final = 10
_NO_TIME: Final = ("workingLocation", "birthday")
_Shape = TypeVar("_Shape")


class GoogleEndpoints(msgspec.Struct, frozen=True):
    """Addresses of Google's services; tests use their own."""

    api: str = "https://www.googleapis.com/calendar/v3"
    token: str = "https://oauth2.googleapis.com/token"
    consent: str = "https://accounts.google.com/o/oauth2/v2/auth"


_GOOGLE: Final = GoogleEndpoints()


class Tokens(msgspec.Struct, frozen=True):
    """The tokens of a calendar, kept in a file that only its owner can read."""

    refresh_token: str
    access_token: str = ""
    expires_at: float = 0.0


class _Granted(msgspec.Struct, frozen=True):
    """Google's answer to a request for tokens."""

    access_token: str
    expires_in: float = 3600.0
    refresh_token: str | None = None


class _When(msgspec.Struct, frozen=True, rename="camel"):
    date_time: datetime | None = None
    date: str | None = None


class _Attendee(msgspec.Struct, frozen=True, rename="camel"):
    self: bool = False
    response_status: str = ""


class _Item(msgspec.Struct, frozen=True, rename="camel"):
    start: _When = _When()
    end: _When = _When()
    summary: str = ""
    status: str = "confirmed"
    transparency: str = "opaque"
    event_type: str = "default"
    attendees: list[_Attendee] = []


class _Page(msgspec.Struct, frozen=True, rename="camel"):
    items: list[_Item] = []
    next_page_token: str | None = None


class _Span(msgspec.Struct, frozen=True):
    start: datetime
    end: datetime


class _Busy(msgspec.Struct, frozen=True):
    busy: list[_Span] = []
    errors: list[dict[str, str]] = []


class _FreeBusy(msgspec.Struct, frozen=True):
    calendars: dict[str, _Busy]


def read(question: CalendarQuery, google: GoogleEndpoints = _GOOGLE) -> list[CalendarEvent]:
    """The events of one of the account's calendars. Raises CalendarError."""
    access = _access_token(question, google)
    return list(
        _events(question, access, google)
        if question.needs_titles
        else _free_busy(question, access, google)
    )


def exchange(
    question: CalendarQuery, form: Mapping[str, str], kept: str | None, google: GoogleEndpoints
) -> Tokens:
    """Request tokens and store them. Raises CalendarError."""
    secret = {"client_id": question.client_id, "client_secret": question.client_secret}
    answer = fetch(
        google.token,
        method="POST",
        headers={"Content-Type": "application/x-www-form-urlencoded"},
        body=urlencode({**secret, **form}).encode(),
        timeout_s=question.timeout_s,
    )
    if answer.status in (400, 401):
        raise CalendarError(
            f"Google does not accept our consent any more ({_error_in(answer)}); {AGAIN}"
        )
    granted = _decoded(answer, _Granted)
    refresh = granted.refresh_token or kept
    if refresh is None:
        raise CalendarError(f"Google gave no lasting consent; {AGAIN}")
    tokens = Tokens(refresh, granted.access_token, time.time() + granted.expires_in)
    path = Path(question.token_file)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, msgspec.json.encode(tokens))
    except OSError as error:
        raise CalendarError(f"{path} cannot be written ({error.strerror})") from error
    return tokens


def _access_token(question: CalendarQuery, google: GoogleEndpoints) -> str:
    try:
        tokens = msgspec.json.decode(Path(question.token_file).read_bytes(), type=Tokens)
    except FileNotFoundError:
        raise CalendarError(f"consent has not been given yet; {AGAIN}") from None
    except (OSError, msgspec.DecodeError) as error:
        raise CalendarError(f"{question.token_file} cannot be read; {AGAIN}") from error
    if tokens.access_token and time.time() < tokens.expires_at - _EARLY_S:
        return tokens.access_token
    form = {"grant_type": "refresh_token", "refresh_token": tokens.refresh_token}
    return exchange(question, form, tokens.refresh_token, google).access_token


def _free_busy(
    question: CalendarQuery, access: str, google: GoogleEndpoints
) -> Iterator[CalendarEvent]:
    body = {
        "timeMin": question.begins.isoformat(),
        "timeMax": question.ends.isoformat(),
        "items": [{"id": question.calendar}],
    }
    headers = {"Authorization": f"Bearer {access}", "Content-Type": "application/json"}
    url = f"{google.api}/freeBusy"
    answer = fetch(
        url,
        method="POST",
        headers=headers,
        body=json.dumps(body).encode(),
        timeout_s=question.timeout_s,
    )
    found = _decoded(answer, _FreeBusy).calendars.get(
        question.calendar, _Busy(errors=[{"reason": "notFound"}])
    )
    if found.errors:
        raise CalendarError(
            f"Google knows no calendar {question.calendar!r} of yours"
            f" ({found.errors[0].get('reason')})"
        )
    for span in found.busy:
        yield CalendarEvent(span.start, span.end, "")


def _events(
    question: CalendarQuery, access: str, google: GoogleEndpoints
) -> Iterator[CalendarEvent]:
    zone = question.local_zone()
    asked = {
        "singleEvents": "true",
        "maxResults": "2500",
        "timeMin": question.begins.isoformat(),
        "timeMax": question.ends.isoformat(),
    }
    page: str | None = ""
    for _ in range(_MOST_PAGES):
        query = urlencode({**asked, **({"pageToken": page} if page else {})})
        url = f"{google.api}/calendars/{quote(question.calendar, safe='')}/events?{query}"
        answer = _decoded(
            fetch(url, headers={"Authorization": f"Bearer {access}"}, timeout_s=question.timeout_s),
            _Page,
        )
        for item in answer.items:
            if _takes_time(item):
                begins, ends = _instant(item.start, zone), _instant(item.end, zone)
                if begins is not None and ends is not None and begins < ends:
                    yield CalendarEvent(begins, ends, item.summary)
        page = answer.next_page_token
        if page is None:
            return


def _takes_time(item: _Item) -> bool:
    is_declined = any(one.self and one.response_status == "declined" for one in item.attendees)
    return (
        item.status == "confirmed"
        and item.transparency != "transparent"
        and item.event_type not in _NO_TIME
        and not is_declined
    )


def _instant(when: _When, zone: tzinfo) -> datetime | None:
    if when.date_time is not None:
        return when.date_time.astimezone(UTC)
    return (
        None
        if when.date is None
        else datetime.fromisoformat(when.date).replace(tzinfo=zone).astimezone(UTC)
    )


def _decoded(answer: Fetched, kind: type[_Shape]) -> _Shape:
    if answer.status >= 300:
        remedy = f"; {AGAIN}" if answer.status in (401, 403) else ""
        raise CalendarError(f"Google refuses ({_error_in(answer)}){remedy}")
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except msgspec.DecodeError as error:
        raise CalendarError(f"Google's answer is not a calendar ({error})") from error


def _error_in(answer: Fetched) -> str:
    try:
        found = json.loads(answer.body)
    except ValueError:
        return f"status {answer.status}"
    error = found.get("error") if isinstance(found, dict) else None
    return str(
        error.get("message") if isinstance(error, dict) else error or f"status {answer.status}"
    )


_DONE: Final = b"<p>Thank you. MetaClaw can see when you are busy; you may close this page.</p>"
_NOT: Final = b"<p>This is not the link that MetaClaw showed you.</p>"


def connect(
    question: CalendarQuery,
    show: Callable[[str], None],
    timeout_s: float,
    google: GoogleEndpoints = _GOOGLE,
) -> Tokens:
    """Show the address to open, wait for the person, and store the tokens. Raises CalendarError.
    Blocks.
    """
    state, verifier = secrets.token_urlsafe(24), secrets.token_urlsafe(48)
    came: dict[str, str] = {}

    class Page(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            query = {
                name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()
            }
            is_ours = secrets.compare_digest(query.get("state", ""), state)
            if is_ours:
                came.update(query)
            self.send_response(200 if is_ours else 400)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(_DONE if is_ours else _NOT)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing, because the address contains a code."""

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        back = f"http://127.0.0.1:{server.server_port}"
        show(_address(question, google.consent, back, state, verifier))
        deadline = time.monotonic() + timeout_s
        while not came and (left_s := deadline - time.monotonic()) > 0:
            server.timeout = left_s
            server.handle_request()
    if "code" not in came:
        raise CalendarError(f"consent was not given ({came.get('error', 'no answer in time')})")
    form = {
        "grant_type": "authorization_code",
        "code": came["code"],
        "redirect_uri": back,
        "code_verifier": verifier,
    }
    return exchange(question, form, None, google)


def _address(question: CalendarQuery, consent: str, back: str, state: str, verifier: str) -> str:
    challenge = (
        base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
    )
    asked = {
        "client_id": question.client_id,
        "redirect_uri": back,
        "response_type": "code",
        "scope": " ".join(SCOPES),
        "access_type": "offline",
        "prompt": "consent",
        "state": state,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
    }
    return f"{consent}?{urlencode(asked)}"

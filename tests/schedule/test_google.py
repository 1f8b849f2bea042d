"""Google Calendar and feeds over HTTP, against a fake of Google's API and of bad servers."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import pytest

from metaclaw.schedule.calendars import CalendarError, CalendarQuery, GoogleEndpoints, answer_to
from metaclaw.schedule.google import ask_consent

BEGINS = datetime(2026, 3, 23, tzinfo=UTC)
HOUR = {"start": "2026-03-24T09:00:00Z", "end": "2026-03-24T10:00:00Z"}


def item(title: str, **facts: object) -> dict[str, object]:
    times = {"start": {"dateTime": "2026-03-24T10:00:00+01:00"}, "end": {"dateTime": "2026-03-24T11:00:00+01:00"}}
    return {"summary": title, "status": "confirmed", **times, **facts}


@dataclass(slots=True)
class FakeGoogle:
    """Knows one consent and one calendar; access tokens are numbered."""

    url: str = ""
    refresh_token: str = "refresh"
    access: int = 0
    challenge: str = ""
    seen: list[str] = field(default_factory=list)
    pages: list[list[dict[str, object]]] = field(default_factory=list)

    def answer(self, path: str, body: bytes, authorization: str) -> tuple[int, object]:
        self.seen.append(path)
        if path == "/token":
            return self._token({name: values[0] for name, values in parse_qs(body.decode()).items()})
        if authorization != f"Bearer access-{self.access}":
            return 401, {"error": {"code": 401, "message": "Invalid Credentials"}}
        if path == "/api/freeBusy":
            name = json.loads(body)["items"][0]["id"]
            known = name == "primary"
            return 200, {
                "calendars": {name: {"busy": [HOUR]} if known else {"errors": [{"domain": "global", "reason": "notFound"}]}}
            }
        page = int(parse_qs(urlsplit(path).query).get("pageToken", ["0"])[0])
        more = {"nextPageToken": str(page + 1)} if page + 1 < len(self.pages) else {}
        return 200, {"kind": "calendar#events", "items": self.pages[page], **more}

    def _token(self, form: dict[str, str]) -> tuple[int, object]:
        if (form["client_id"], form["client_secret"]) != ("id", "secret"):
            return 401, {"error": "invalid_client"}
        if form["grant_type"] == "refresh_token" and form["refresh_token"] != self.refresh_token:
            return 400, {"error": "invalid_grant", "error_description": "Token has been expired or revoked."}
        if form["grant_type"] == "authorization_code" and (form["code"] != "consented" or not form["code_verifier"]):
            return 400, {"error": "invalid_grant"}
        self.access += 1
        new = {"refresh_token": self.refresh_token} if form["grant_type"] == "authorization_code" else {}
        return 200, {"access_token": f"access-{self.access}", "expires_in": 3599, "token_type": "Bearer", **new}


@contextmanager
def serving(answer: Callable[[BaseHTTPRequestHandler, bytes], None]) -> Iterator[str]:
    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self, self.rfile.read(int(self.headers.get("Content-Length", 0))))

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def google() -> Iterator[FakeGoogle]:
    fake = FakeGoogle()

    def answer(request: BaseHTTPRequestHandler, body: bytes) -> None:
        status, facts = fake.answer(request.path, body, request.headers.get("Authorization", ""))
        request.send_response(status)
        request.end_headers()
        request.wfile.write(json.dumps(facts).encode())

    with serving(answer) as url:
        fake.url = url
        yield fake


def ask(
    google: FakeGoogle, folder: Path, *, titles: bool = False, calendar: str = "primary", secret: str = "secret"
) -> CalendarQuery:
    return CalendarQuery(
        kind="google",
        begins=BEGINS,
        ends=BEGINS + timedelta(days=9),
        zone="Europe/Vienna",
        client_id="id",
        client_secret=secret,
        calendar=calendar,
        needs_titles=titles,
        token_file=str(folder / "tokens" / "google-1.json"),
        google=GoogleEndpoints(f"{google.url}/api", f"{google.url}/token", f"{google.url}/consent"),
    )


def consent(google: FakeGoogle, question: CalendarQuery, **answer: str) -> None:
    """What a person's browser does."""

    def visit(address: str) -> None:
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        assert asked["code_challenge_method"] == "S256"
        query = "&".join(f"{name}={value}" for name, value in {"state": asked["state"], **answer}.items())
        threading.Thread(target=lambda: urlopen(f"{asked['redirect_uri']}/?{query}").close()).start()

    ask_consent(question, visit, timeout_s=60)


def test_a_person_consents_in_a_browser_and_busy_times_are_read(google: FakeGoogle, tmp_path: Path) -> None:
    question = ask(google, tmp_path)
    consent(google, question, code="consented")
    assert Path(question.token_file).stat().st_mode & 0o777 == 0o600
    (event,) = answer_to(question).events
    assert (event.begins, event.ends, event.title) == (BEGINS.replace(day=24, hour=9), BEGINS.replace(day=24, hour=10), "")
    assert google.seen == ["/token", "/api/freeBusy"]


def test_tokens_that_have_run_out_are_refreshed(google: FakeGoogle, tmp_path: Path) -> None:
    question = ask(google, tmp_path)
    consent(google, question, code="consented")
    kept = json.loads(Path(question.token_file).read_text())
    Path(question.token_file).write_text(json.dumps({**kept, "expires_at": 1.0}))
    assert answer_to(question).trouble is None
    assert google.access == 2
    assert json.loads(Path(question.token_file).read_text())["refresh_token"] == "refresh"


def test_consent_that_was_taken_back_is_said_with_what_to_do(google: FakeGoogle, tmp_path: Path) -> None:
    question = ask(google, tmp_path)
    assert answer_to(question).trouble == "consent has not been given yet; consent again with: metaclaw windows connect"
    consent(google, question, code="consented")
    Path(question.token_file).write_text('{"refresh_token": "revoked"}')
    trouble = answer_to(question).trouble or ""
    assert "invalid_grant" in trouble
    assert "metaclaw windows connect" in trouble
    Path(question.token_file).write_text("rubbish")
    assert "cannot be read" in (answer_to(question).trouble or "")


def test_a_person_who_says_no_gives_no_tokens(google: FakeGoogle, tmp_path: Path) -> None:
    question = ask(google, tmp_path)
    with pytest.raises(CalendarError, match="access_denied"):
        consent(google, question, error="access_denied")
    assert not Path(question.token_file).exists()


def test_a_wrong_calendar_is_said(google: FakeGoogle, tmp_path: Path) -> None:
    question = ask(google, tmp_path, calendar="team")
    consent(google, question, code="consented")
    assert "no calendar 'team' of yours (notFound)" in (answer_to(question).trouble or "")


def test_events_are_read_page_by_page_where_rules_need_titles(google: FakeGoogle, tmp_path: Path) -> None:
    google.pages = [
        [
            item("Review"),
            item("free", transparency="transparent"),
            item("maybe", status="tentative"),
            item("no", attendees=[{"self": True, "responseStatus": "declined"}]),
            item("at home", eventType="workingLocation"),
        ],
        [item("Holiday", start={"date": "2026-03-25"}, end={"date": "2026-03-26"}), item("odd", start={})],
    ]
    question = ask(google, tmp_path, titles=True)
    consent(google, question, code="consented")
    found = [(one.title, f"{one.begins:%d %H:%M}") for one in answer_to(question).events]
    assert found == [("Review", "24 09:00"), ("Holiday", "24 23:00")]


def feed(url: str, user: str | None = None) -> CalendarQuery:
    return CalendarQuery(
        kind="ics", url=url, user=user, password="p", begins=BEGINS, ends=BEGINS + timedelta(days=9), zone="UTC", timeout_s=2
    )


def test_a_feed_of_fifty_megabytes_is_cut_off() -> None:
    def answer(request: BaseHTTPRequestHandler, body: bytes) -> None:
        request.send_response(200)
        request.end_headers()
        try:
            for _ in range(50):
                request.wfile.write(b"x" * 1024**2)
        except OSError:
            return  # the reader has had enough

    with serving(answer) as url:
        assert "more than 10 MB" in (answer_to(feed(url)).trouble or "")


def test_credentials_do_not_follow_a_redirect_to_another_host() -> None:
    carried: list[str | None] = []

    def elsewhere(request: BaseHTTPRequestHandler, body: bytes) -> None:
        carried.append(request.headers.get("Authorization"))
        request.send_response(404)
        request.end_headers()

    with serving(elsewhere) as other:

        def answer(request: BaseHTTPRequestHandler, body: bytes) -> None:
            carried.append(request.headers.get("Authorization"))
            request.send_response(302)
            request.send_header("Location", f"{other}/feed")
            request.end_headers()

        with serving(answer) as url:
            assert answer_to(feed(url, "ada")).trouble == "127.0.0.1 answers with status 404"
    assert carried[0] is not None
    assert carried[1] is None


def test_a_circle_of_redirects_ends() -> None:
    def answer(request: BaseHTTPRequestHandler, body: bytes) -> None:
        request.send_response(301)
        request.send_header("Location", "/again")
        request.end_headers()

    with serving(answer) as url:
        assert "too often" in (answer_to(feed(url)).trouble or "")

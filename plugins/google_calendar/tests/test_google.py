"""Google Calendar against a fake of Google's API."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import pytest

from metaclaw.schedule import CalendarError, CalendarEvent, CalendarQuery
from metaclaw.schedule.calendar_plugins import answer_to
from metaclaw_google_calendar import GoogleEndpoints, connect, read
from tests.support.http_answers import serving

BEGINS = datetime(2026, 3, 23, tzinfo=UTC)
HOUR = {"start": "2026-03-24T09:00:00Z", "end": "2026-03-24T10:00:00Z"}


def item(title: str, **facts: object) -> dict[str, object]:
    times = {
        "start": {"dateTime": "2026-03-24T10:00:00+01:00"},
        "end": {"dateTime": "2026-03-24T11:00:00+01:00"},
    }
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

    @property
    def endpoints(self) -> GoogleEndpoints:
        return GoogleEndpoints(f"{self.url}/api", f"{self.url}/token", f"{self.url}/consent")

    def answer(self, path: str, body: bytes, authorization: str) -> tuple[int, object]:
        self.seen.append(path)
        if path == "/token":
            return self._token(
                {name: values[0] for name, values in parse_qs(body.decode()).items()}
            )
        if authorization != f"Bearer access-{self.access}":
            return 401, {"error": {"code": 401, "message": "Invalid Credentials"}}
        if path == "/api/freeBusy":
            name = json.loads(body)["items"][0]["id"]
            known = name == "primary"
            return 200, {
                "calendars": {
                    name: {"busy": [HOUR]}
                    if known
                    else {"errors": [{"domain": "global", "reason": "notFound"}]}
                }
            }
        page = int(parse_qs(urlsplit(path).query).get("pageToken", ["0"])[0])
        more = {"nextPageToken": str(page + 1)} if page + 1 < len(self.pages) else {}
        return 200, {"kind": "calendar#events", "items": self.pages[page], **more}

    def _token(self, form: dict[str, str]) -> tuple[int, object]:
        if (form["client_id"], form["client_secret"]) != ("id", "secret"):
            return 401, {"error": "invalid_client"}
        if form["grant_type"] == "refresh_token" and form["refresh_token"] != self.refresh_token:
            return 400, {
                "error": "invalid_grant",
                "error_description": "Token has been expired or revoked.",
            }
        if form["grant_type"] == "authorization_code" and (
            form["code"] != "consented" or not form["code_verifier"]
        ):
            return 400, {"error": "invalid_grant"}
        self.access += 1
        new = (
            {"refresh_token": self.refresh_token}
            if form["grant_type"] == "authorization_code"
            else {}
        )
        return 200, {
            "access_token": f"access-{self.access}",
            "expires_in": 3599,
            "token_type": "Bearer",
            **new,
        }


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
    folder: Path, *, titles: bool = False, calendar: str = "primary", secret: str = "secret"
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
    )


def consent(google: FakeGoogle, question: CalendarQuery, **answer: str) -> None:
    """What a person's browser does."""

    def visit(address: str) -> None:
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        assert asked["code_challenge_method"] == "S256"
        query = "&".join(
            f"{name}={value}" for name, value in {"state": asked["state"], **answer}.items()
        )
        threading.Thread(
            target=lambda: urlopen(f"{asked['redirect_uri']}/?{query}").close()
        ).start()

    connect(question, visit, 60, google.endpoints)


def events(google: FakeGoogle, question: CalendarQuery) -> list[CalendarEvent]:
    return read(question, google.endpoints)


def trouble_of(google: FakeGoogle, question: CalendarQuery) -> str:
    with pytest.raises(CalendarError) as caught:
        read(question, google.endpoints)
    return str(caught.value)


def test_a_person_consents_in_a_browser_and_busy_times_are_read(
    google: FakeGoogle, tmp_path: Path
) -> None:
    question = ask(tmp_path)
    consent(google, question, code="consented")
    assert Path(question.token_file).stat().st_mode & 0o777 == 0o600
    (event,) = events(google, question)
    assert (event.begins, event.ends, event.title) == (
        BEGINS.replace(day=24, hour=9),
        BEGINS.replace(day=24, hour=10),
        "",
    )
    assert google.seen == ["/token", "/api/freeBusy"]


def test_tokens_that_have_run_out_are_refreshed(google: FakeGoogle, tmp_path: Path) -> None:
    question = ask(tmp_path)
    consent(google, question, code="consented")
    kept = json.loads(Path(question.token_file).read_text())
    Path(question.token_file).write_text(json.dumps({**kept, "expires_at": 1.0}))
    events(google, question)
    assert google.access == 2
    assert json.loads(Path(question.token_file).read_text())["refresh_token"] == "refresh"


def test_consent_that_was_taken_back_is_said_with_what_to_do(
    google: FakeGoogle, tmp_path: Path
) -> None:
    question = ask(tmp_path)
    assert (
        answer_to(question).trouble
        == "consent has not been given yet; consent again with: metaclaw windows connect"
    )
    consent(google, question, code="consented")
    Path(question.token_file).write_text('{"refresh_token": "revoked"}')
    trouble = trouble_of(google, question)
    assert "invalid_grant" in trouble
    assert "metaclaw windows connect" in trouble
    Path(question.token_file).write_text("rubbish")
    assert "cannot be read" in trouble_of(google, question)


def test_a_person_who_says_no_gives_no_tokens(google: FakeGoogle, tmp_path: Path) -> None:
    question = ask(tmp_path)
    with pytest.raises(CalendarError, match="access_denied"):
        consent(google, question, error="access_denied")
    assert not Path(question.token_file).exists()


def test_a_wrong_calendar_is_said(google: FakeGoogle, tmp_path: Path) -> None:
    question = ask(tmp_path, calendar="team")
    consent(google, question, code="consented")
    assert "no calendar 'team' of yours (notFound)" in trouble_of(google, question)


def test_events_are_read_page_by_page_where_rules_need_titles(
    google: FakeGoogle, tmp_path: Path
) -> None:
    google.pages = [
        [
            item("Review"),
            item("free", transparency="transparent"),
            item("maybe", status="tentative"),
            item("no", attendees=[{"self": True, "responseStatus": "declined"}]),
            item("at home", eventType="workingLocation"),
        ],
        [
            item("Holiday", start={"date": "2026-03-25"}, end={"date": "2026-03-26"}),
            item("odd", start={}),
        ],
    ]
    question = ask(tmp_path, titles=True)
    consent(google, question, code="consented")
    found = [(one.title, f"{one.begins:%d %H:%M}") for one in events(google, question)]
    assert found == [("Review", "24 09:00"), ("Holiday", "24 23:00")]

"""iCalendar feeds over HTTP, from servers that misbehave."""

from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler

from metaclaw.schedule.calendar_plugins import CalendarQuery, answer_to
from tests.support.http_answers import serving

BEGINS = datetime(2026, 3, 23, tzinfo=UTC)


def feed(url: str, user: str | None = None) -> CalendarQuery:
    return CalendarQuery(
        kind="ics",
        url=url,
        user=user,
        password="p",
        begins=BEGINS,
        ends=BEGINS + timedelta(days=9),
        zone="UTC",
        timeout_s=2,
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

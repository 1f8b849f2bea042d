"""A person's consent to read their Google Calendar: a page in their browser, which comes back to an address on this machine."""

import base64
import hashlib
import secrets
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Final
from urllib.parse import parse_qs, urlencode, urlsplit

from metaclaw.schedule.calendars.event import CalendarError, Question
from metaclaw.schedule.calendars.google import SCOPES, Tokens, exchange

_DONE: Final = b"<p>Thank you. MetaClaw can see when you are busy; you may close this page.</p>"
_NOT: Final = b"<p>This is not the page you were sent to.</p>"


def ask_consent(question: Question, show: Callable[[str], None], timeout_s: float = 300.0) -> Tokens:
    """Show the address to open, wait for the person, and keep the tokens. Raises CalendarError. Blocks."""
    state, verifier = secrets.token_urlsafe(24), secrets.token_urlsafe(48)
    came: dict[str, str] = {}

    class Page(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
            is_ours = secrets.compare_digest(query.get("state", ""), state)
            if is_ours:
                came.update(query)
            self.send_response(200 if is_ours else 400)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(_DONE if is_ours else _NOT)

        def log_message(self, format: str, *args: object) -> None:
            """The address holds a code: it is written nowhere."""

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        back = f"http://127.0.0.1:{server.server_port}"
        show(_address(question, back, state, verifier))
        deadline = time.monotonic() + timeout_s
        while not came and (left_s := deadline - time.monotonic()) > 0:
            server.timeout = left_s
            server.handle_request()
    if "code" not in came:
        raise CalendarError(f"nobody consented ({came.get('error', 'no answer in time')})")
    form = {"grant_type": "authorization_code", "code": came["code"], "redirect_uri": back, "code_verifier": verifier}
    return exchange(question, form, None)


def _address(question: Question, back: str, state: str, verifier: str) -> str:
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
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
    return f"{question.google.consent}?{urlencode(asked)}"

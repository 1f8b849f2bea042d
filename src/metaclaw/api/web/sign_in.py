"""Sign in to the pages: one-time links, a signed session cookie, and checks against requests from
other sites.

The cookie is signed with a secret derived from the proxy's key: it stays valid after a restart, and
becomes invalid when the key changes or its session is ended; ended sessions are kept in a file
until their cookies expire. Links are kept in memory: each works once, for ten minutes, until the
program stops."""

import hmac
import ipaddress
import json
import logging
import secrets
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Final
from urllib.parse import urlsplit

from metaclaw.clock import utc_now
from metaclaw.durable_files import replace_file

log = logging.getLogger(__name__)

_LIFETIME_S: Final = 30 * 24 * 3600
_LINK_S: Final = 600
_MOST_LINKS: Final = 64
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
SIGN_IN: Final = "/ui/sign-in"
_PUBLIC: Final = (SIGN_IN, "/ui/style.css", "/ui/script.js", "/ui/icon.svg")


class SignIn:
    """Creates links and cookies, and checks which requests are signed in."""

    def __init__(
        self,
        key: str,
        ended: Path,
        *,
        is_loopback: bool = True,
        scheme: str = "http",
        clock: Callable[[], float] = lambda: utc_now().timestamp(),
    ) -> None:
        """`ended` is the file of ended sessions. `is_loopback`: the proxy listens only on this
        machine, so that no other host name may be used for it."""
        self._key = key.encode()
        self._secret = hmac.digest(self._key, b"MetaClaw page session", sha256)
        self._is_loopback = is_loopback
        self.scheme = scheme
        self._clock = clock
        self._links: dict[bytes, float] = {}
        self._ended_file = ended
        self._ended = _read_ended(ended)
        self._writing = Lock()

    def new_link(self, url: str) -> str:
        """Create an address that signs a browser in, once, within ten minutes. `url` is the proxy's
        URL.
        """
        token = secrets.token_urlsafe(24)
        while len(self._links) >= _MOST_LINKS:
            del self._links[next(iter(self._links))]
        self._links[_digest(token)] = self._clock() + _LINK_S
        return f"{url}{SIGN_IN}?token={token}"

    def take_link(self, token: str) -> bool:
        """Use a link up; return whether it was valid."""
        return self._links.pop(_digest(token), 0.0) > self._clock()

    def has_link(self, token: str) -> bool:
        """Whether a link is valid, without using it up."""
        return self._links.get(_digest(token), 0.0) > self._clock()

    def is_key(self, value: str) -> bool:
        """Whether this is the proxy's key, compared in constant time."""
        return hmac.compare_digest(value.strip().encode("utf-8", "replace"), self._key)

    def new_cookie(self) -> str:
        """The value of a new session's cookie."""
        payload = f"{int(self._clock()) + _LIFETIME_S}.{secrets.token_urlsafe(12)}"
        return f"{payload}.{self._signature('session', payload)}"

    def set_cookie(self, headers: Mapping[str, str], value: str) -> str:
        """The header field that sets the cookie, or deletes it if the value is empty."""
        age = _LIFETIME_S if value else 0
        fields = f"Path=/; Max-Age={age}; HttpOnly; SameSite=Strict"
        secure = "; Secure" if self.scheme == "https" else ""
        return f"{_cookie_name(headers)}={value}; {fields}{secure}"

    def session_of(self, headers: Mapping[str, str]) -> str | None:
        """The valid cookie of a request, or None."""
        for pair in headers.get("cookie", "").split(";"):
            name, _, value = pair.strip().partition("=")
            if name == _cookie_name(headers) and self.is_open(value):
                return value
        return None

    def end_session(self, session: str) -> None:
        """Make a valid cookie invalid, also after a restart. Blocks."""
        with self._writing:
            now = self._clock()
            kept = {digest: until for digest, until in self._ended.items() if until > now}
            self._ended = {**kept, _digest(session).hex(): int(session.partition(".")[0])}
            try:
                self._ended_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                replace_file(self._ended_file, json.dumps(self._ended).encode())
            except OSError as error:
                log.warning(
                    "signed_out.unwritten reason=%s; after a restart the session would be valid"
                    " again",
                    error,
                )

    def form_token(self, session: str) -> str:
        """The token in every form of a session's pages."""
        return self._signature("form", session)

    def is_form_token(self, session: str, token: str) -> bool:
        """Whether a form was made for this session."""
        return hmac.compare_digest(
            token.encode("utf-8", "replace"), self.form_token(session).encode()
        )

    def is_public(self, path: str) -> bool:
        """Whether a path is served without signing in: the sign-in page and its static files."""
        return path in _PUBLIC

    def fault(self, method: str, headers: Mapping[str, str]) -> str | None:
        """Why a browser's request must be refused even if it is signed in: it names another host,
        or another site sent it.
        """
        host = headers.get("host", "")
        if self._is_loopback and not _is_local(host):
            return (
                f"this proxy serves its own machine only, and {host!r} is another name; open it as"
                f" {self.scheme}://127.0.0.1"
            )
        if method in _SAFE_METHODS:
            return None
        origin = headers.get("origin")
        if origin is None:
            is_own = headers.get("sec-fetch-site") == "same-origin"
        else:
            is_own = (
                urlsplit(origin).scheme in ("http", "https") and urlsplit(origin).netloc == host
            )
        return (
            None if is_own else "another site sent this request; open the page itself and try again"
        )

    def is_open(self, value: str) -> bool:
        """Whether this is the cookie of a session that has neither expired nor been ended."""
        payload, _, signature = value.rpartition(".")
        until = payload.partition(".")[0]
        if not hmac.compare_digest(
            signature.encode("utf-8", "replace"), self._signature("session", payload).encode()
        ):
            return False
        is_running = until.isascii() and until.isdigit() and int(until) > self._clock()
        return is_running and _digest(value).hex() not in self._ended

    def _signature(self, purpose: str, value: str) -> str:
        return hmac.new(
            self._secret, f"{purpose}:{value}".encode("utf-8", "replace"), sha256
        ).hexdigest()


def _digest(value: str) -> bytes:
    return sha256(value.encode("utf-8", "replace")).digest()


def _read_ended(path: Path) -> dict[str, int]:
    """The digests of ended sessions, with the time at which their cookies expire."""
    try:
        found = json.loads(path.read_bytes())
        return {str(digest): int(until) for digest, until in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        log.warning(
            "signed_out.unread path=%s reason=%s; sessions that were ended are valid again",
            path,
            error,
        )
        return {}


def _cookie_name(headers: Mapping[str, str]) -> str:
    """The cookie's name, with the port: cookies ignore ports, so that two proxies on one machine
    need two names.
    """
    port = headers.get("host", "").rpartition(":")[2]
    return f"metaclaw_{port}" if port.isascii() and port.isdigit() else "metaclaw"


def _is_local(host: str) -> bool:
    """Whether a Host header is localhost or an IP address; any other name could be one that another
    site points here.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
    return True

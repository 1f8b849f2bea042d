"""Sign in to the pages: one-time links, a signed session cookie, and checks against requests from
other sites.

The cookie is signed with a secret derived from the proxy's key: it stays valid after a restart, and
becomes invalid when the key changes or its session is ended; ended sessions are kept in a file
until their cookies expire. A link is signed likewise and works once, for ten minutes; a used one is
kept in that file, so that every worker of the home knows it."""

import hmac
import ipaddress
import json
import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from metaclaw.clock import utc_now
from metaclaw.domain.person import HOME, Person
from metaclaw.durable_files import replace_file

if TYPE_CHECKING:
    from metaclaw.proxy import Keyring

log = logging.getLogger(__name__)

_LIFETIME_S: Final = 30 * 24 * 3600
_LINK_S: Final = 600
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
SIGN_IN: Final = "/ui/sign-in"
_PUBLIC: Final = (SIGN_IN, "/ui/style.css", "/ui/script.js", "/ui/icon.svg")


class SignIn:
    """Creates links and cookies, and checks which requests are signed in."""

    def __init__(
        self,
        key: str,
        ended: Path,
        keyring: "Keyring",
        *,
        is_loopback: bool = True,
        scheme: str = "http",
        clock: Callable[[], float] = lambda: utc_now().timestamp(),
    ) -> None:
        """`ended` is the file of ended sessions. `is_loopback`: the proxy listens only on this
        machine, so that no other host name may be used for it."""
        self._secret = secret_of(key)
        self.holder = keyring.holder
        self.marked = keyring.marked
        self._is_loopback = is_loopback
        self.scheme = scheme
        self._clock = clock
        self._ended_file = ended
        self._ended = _read_ended(ended)
        self._read_at = 0
        self._writing = Lock()

    def new_link(self, url: str, person: Person = HOME) -> str:
        """Create an address that signs a person's browser in, once, within ten minutes. `url` is
        the proxy's URL.
        """
        return new_link(self._secret, url, person, self._clock())

    def take_link(self, token: str) -> Person | None:
        """Use a link up; whom it signs in, None if it is not valid. Blocks for a moment."""
        if not self.has_link(token):
            return None
        self.end_session(token)
        return self.marked(_mark(token))

    def has_link(self, token: str) -> bool:
        """Whether a link is valid, without using it up."""
        return self._is_valid("link", token)

    def new_cookie(self, person: Person) -> str:
        """The value of a new session's cookie. It is valid while the person's key is."""
        return _signed(self._secret, "session", person, int(self._clock()) + _LIFETIME_S)

    def person_of(self, headers: Mapping[str, str]) -> Person | None:
        """Who is signed in by the cookie of a request; None if nobody is."""
        session = self.session_of(headers)
        return None if session is None else self.marked(_mark(session))

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
        """Make a valid cookie or link invalid, also at other workers and after a restart. Blocks."""
        with self._writing:
            now = self._clock()
            self._read_again()
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

    def _read_again(self) -> None:
        """Take over what another worker of this home has ended."""
        with suppress(OSError):
            changed = self._ended_file.stat().st_mtime_ns
            if changed != self._read_at:
                self._read_at = changed
                self._ended |= _read_ended(self._ended_file)

    def form_token(self, session: str) -> str:
        """The token in every form of a session's pages."""
        return _signature(self._secret, "form", session)

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
        return self._is_valid("session", value)

    def _is_valid(self, purpose: str, value: str) -> bool:
        payload, _, signature = value.rpartition(".")
        until = payload.partition(".")[0]
        if not hmac.compare_digest(
            signature.encode("utf-8", "replace"),
            _signature(self._secret, purpose, payload).encode(),
        ):
            return False
        self._read_again()
        is_running = until.isascii() and until.isdigit() and int(until) > self._clock()
        return (
            is_running
            and self.marked(_mark(value)) is not None
            and _digest(value).hex() not in self._ended
        )


def secret_of(key: str) -> bytes:
    """What links and cookies of a home with this key are signed with."""
    return hmac.digest(key.encode(), b"MetaClaw page session", sha256)


def new_link(secret: bytes, url: str, person: Person, now: float) -> str:
    """An address that signs a person's browser in."""
    return f"{url}{SIGN_IN}?token={_signed(secret, 'link', person, int(now) + _LINK_S)}"


def _signed(secret: bytes, purpose: str, person: Person, until: int) -> str:
    payload = f"{until}.{secrets.token_urlsafe(24)}"
    if person.mark:
        payload += f".{person.mark}"
    return f"{payload}.{_signature(secret, purpose, payload)}"


def _signature(secret: bytes, purpose: str, value: str) -> str:
    return hmac.new(secret, f"{purpose}:{value}".encode("utf-8", "replace"), sha256).hexdigest()


def _mark(session: str) -> str:
    """The mark of the key that a cookie or link was made for; empty for the home's."""
    return "".join(session.split(".")[2:-1])


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

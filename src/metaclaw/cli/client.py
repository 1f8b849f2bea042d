"""Requests to the API: over HTTP to the running proxy, or, if none runs, answered in this process
by the same routes.
"""

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote, urlencode

import click

from metaclaw.errors import MetaClawError
from metaclaw.http_request import open_response
from metaclaw.instance import Running, find

if TYPE_CHECKING:
    from http.client import HTTPResponse
    from ssl import SSLContext

Facts: TypeAlias = dict[str, Any]
"""A JSON object of the API."""
Fields: TypeAlias = Mapping[str, object]
_TIMEOUT_S = 10.0
_PATIENCE_S = 60.0
"""A proxy with many skills, or while it loads weights, takes a while."""
_MESSAGE_CHARS = 2000
_NO_ROUTE = "nothing is served at"
_NO_FIELD = "is not a field here"


class NotRunningError(MetaClawError):
    """A command needs a running proxy and there is none."""

    def __init__(self, home: Path) -> None:
        super().__init__(f"no proxy runs for {home}; start one with: metaclaw start --detach")


class NotListeningError(MetaClawError):
    """The proxy is starting and does not listen yet."""

    def __init__(self, home: Path, pid: int) -> None:
        super().__init__(
            f"the proxy of {home} (pid {pid}) is starting and does not listen yet; try again in a"
            " moment"
        )


class UnreachableError(MetaClawError):
    """The proxy does not accept connections, or a connection was lost."""


class NotFoundError(MetaClawError):
    """What a request names does not exist."""


class OtherVersionError(MetaClawError):
    """The running proxy does not know a route or a field that this command needs."""

    def __init__(self, version: object, what: str) -> None:
        super().__init__(
            f"the running proxy is version {version} and does not know {what}; restart it with:"
            " metaclaw restart"
        )


class ProxyObject(Facts):
    """A JSON object of the running proxy. A field that it lacks is one of another version."""

    def __init__(self, fields: Fields, api: "ApiClient") -> None:
        super().__init__(fields)
        self._api = api

    def __missing__(self, name: str) -> object:
        raise OtherVersionError(self._api.version(), f"the field {name}")


@dataclass(frozen=True, slots=True)
class ApiClient:
    """The HTTP client of one running proxy. Raises UnreachableError and OtherVersionError."""

    url: str
    key: str = field(repr=False)
    certificate: Path | None = None
    """The only one that the proxy may show, if it speaks HTTPS."""

    def version(self) -> object:
        """The version of the proxy."""
        with self.stream("GET", "/") as reply:
            return parsed(reply.read()).get("version")

    def call(
        self,
        method: str,
        path: str,
        fields: Fields | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> Facts:
        """The JSON object of a successful response. Raises MetaClawError for anything else."""
        return expect(*self.send(method, path, fields, timeout_s))

    def send(
        self,
        method: str,
        path: str,
        fields: Fields | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> tuple[int, Any]:
        """Status and body of any request."""
        with self.stream(method, path, fields, timeout_s=timeout_s) as reply:
            status, body = reply.status, parsed(reply.read(), self)
        message = message_in(body) if status >= 400 else ""
        if status == 405 or message.startswith(_NO_ROUTE) or _NO_FIELD in message:
            raise OtherVersionError(self.version(), f"this request ({method} {path}: {message})")
        return status, body

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        fields: Fields | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> "Iterator[HTTPResponse]":
        """The response, to be read as it arrives; `timeout_s` limits the silence."""
        body = b"" if fields is None else json.dumps(fields).encode()
        own = {
            "Authorization": f"Bearer {self.key}",
            "Content-Length": str(len(body)),
            "Content-Type": "application/json",
        }
        from http.client import HTTPException

        try:
            with open_response(
                f"{self.url}{path}",
                method,
                body=body,
                headers={**own, **(headers or {})},
                timeout_s=timeout_s,
                tls=self._tls(),
            ) as response:
                yield response
        except (OSError, HTTPException) as error:
            raise UnreachableError(
                f"the proxy at {self.url} does not answer ({error or type(error).__name__}); see"
                " its log"
            ) from error

    def _tls(self) -> "SSLContext | None":
        if self.certificate is None:
            return None
        from metaclaw.certificate import trusting

        return trusting(self.certificate)


def connect(home: Path) -> tuple[Running, ApiClient]:
    """The running proxy of this home and its client. Raises NotRunningError and
    NotListeningError.
    """
    running = find(home)
    if running is None:
        raise NotRunningError(home)
    if running.url is None:
        raise NotListeningError(home, running.pid)
    return running, ApiClient(running.url, own_key(home), running.certificate)


def own_key(home: Path) -> str:
    """The key of this home's proxy. The whole configuration is loaded only if the file does not
    simply contain the key: that takes longer than a request."""
    if (literal := _literal_key(home)) is not None:
        return literal
    from metaclaw.config import load

    secret = load(home).proxy.api_key
    return "" if secret is None else secret.resolve()


def _literal_key(home: Path) -> str | None:
    if any(name.upper().startswith("METACLAW__PROXY") for name in os.environ):
        return None
    try:
        proxy = tomllib.loads((home / "config.toml").read_text("utf-8")).get("proxy")
    except (OSError, ValueError):
        return None
    key = proxy.get("api_key") if isinstance(proxy, dict) else None
    return key if isinstance(key, str) and ":" not in key else None


def request(
    home: Path,
    method: str,
    path: str,
    fields: Fields | None = None,
    *,
    advice: str | None = None,
    timeout_s: float = _PATIENCE_S,
    query: Fields | None = None,
) -> Facts:
    """The answer of the API of this home, from its proxy if one runs. Raises MetaClawError with the
    API's message if it refuses; `advice` is added if something does not exist."""
    given = {name: value for name, value in (query or {}).items() if value is not None}
    target = f"{path}?{urlencode(given)}" if given else path
    try:
        _, api = connect(home)
    except NotRunningError:
        status, body = _answer_here(home, method, target, fields)
    else:
        status, body = api.send(method, target, fields, timeout_s)
    if status == 404:
        raise NotFoundError("; ".join(filter(None, (message_in(body), advice))))
    if status in (400, 409):
        raise MetaClawError(message_in(body))
    return expect(status, body)


def read(home: Path, path: str, *, advice: str | None = None, **query: str | int | None) -> Facts:
    """The answer to a GET."""
    return request(home, "GET", path, advice=advice, query=query)


def _answer_here(home: Path, method: str, target: str, fields: Fields | None) -> tuple[int, Any]:
    from metaclaw.app import answer_offline

    body = b"" if fields is None else json.dumps(fields).encode()
    status, answer = answer_offline(home, method, target, body)
    return status, parsed(answer)


def segment(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="")


def expect(status: int, body: Any) -> Facts:
    """The JSON object of a successful response. Raises MetaClawError for anything else."""
    if status == 401:
        raise MetaClawError(
            "the running proxy has another key than config.toml; give it as"
            " METACLAW__PROXY__API_KEY, or restart the proxy"
        )
    if status >= 400:
        raise MetaClawError(f"the proxy answered {status}: {message_in(body)}")
    if not isinstance(body, dict):
        raise MetaClawError(
            "the proxy's answer is not what this version of the program expects; restart the proxy"
        )
    return body


def message_in(body: object) -> str:
    """The message of an error response of any shape."""
    facts = body if isinstance(body, dict) else {}
    error = facts.get("error")
    inner = error.get("message") if isinstance(error, dict) else error
    found = (inner, facts.get("message"), facts.get("reason"), body)
    text = next((one for one in found if isinstance(one, str) and one.strip()), "no reason given")
    return text[:_MESSAGE_CHARS]


def parsed(body: bytes, api: ApiClient | None = None) -> Any:
    """Decode a JSON body; its text if it is not JSON. Objects of a proxy (`api`) name it if they
    lack a field."""
    make = None if api is None else lambda fields: ProxyObject(fields, api)
    try:
        return json.loads(body, object_hook=make) if body else None
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace")


WHERE_TURNS = (
    "metaclaw sessions show --last lists turns, and answers carry theirs as X-Metaclaw-Turn"
)
WHERE_SESSIONS = "metaclaw sessions list shows all"


def check_choice(named: str | None, last: bool, what: str) -> None:
    """Raise a usage error unless exactly one of a name and `--last` is given."""
    if (named is None) is not last:
        raise click.UsageError(f"name a {what} (the beginning of its id is enough), or use --last")


def last_turn(home: Path) -> Facts:
    """The newest main turn. Raises MetaClawError if there is none."""
    found: list[Facts] = read(home, "/api/turns")["turns"]
    if not found:
        raise MetaClawError(
            "no main turn is recorded yet; metaclaw sessions list --all lists all sessions"
        )
    return found[0]

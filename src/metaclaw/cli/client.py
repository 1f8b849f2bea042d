"""Send requests to the running proxy. If none runs, rules and skills are changed in the home
folder.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from metaclaw.domain.chat import Json
from metaclaw.errors import MetaClawError, SkillError
from metaclaw.http_request import open_response
from metaclaw.instance import Running, find

if TYPE_CHECKING:
    from http.client import HTTPResponse

    from metaclaw.skills import Rulebook, SkillLibrary

_TIMEOUT_S = 10.0
_MESSAGE_CHARS = 2000
_OPEN_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that mean "all interfaces", and the local address that reaches them."""


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


@dataclass(frozen=True, slots=True)
class ApiClient:
    """The HTTP client of one running proxy. Raises UnreachableError."""

    url: str
    key: str = field(repr=False)

    def get(self, path: str) -> tuple[int, Json]:
        """Status and body of a GET."""
        return self.send("GET", path)

    def post(
        self, path: str, fields: Mapping[str, Json] | None = None, *, timeout_s: float = _TIMEOUT_S
    ) -> tuple[int, Json]:
        """Status and body of a POST with `fields` as its JSON body."""
        return self.send("POST", path, fields, timeout_s)

    def facts(self, path: str) -> dict[str, Json]:
        """The body of a GET that must succeed."""
        return expect(*self.get(path))

    def send(
        self,
        method: str,
        path: str,
        fields: Mapping[str, Json] | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> tuple[int, Json]:
        """Status and body of any request."""
        with self.stream(method, path, fields, timeout_s=timeout_s) as reply:
            return reply.status, parsed(reply.read())

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        fields: Mapping[str, Json] | None = None,
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
            ) as response:
                yield response
        except (OSError, HTTPException) as error:
            raise UnreachableError(
                f"the proxy at {self.url} does not answer ({error or type(error).__name__}); see"
                " its log"
            ) from error


def reachable_url(host: str, port: int | str) -> str:
    """The URL of a proxy that listens at an address, which may mean "all interfaces"."""
    host = _OPEN_HOSTS.get(host.strip("[]"), host.strip("[]"))
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def connect(home: Path) -> tuple[Running, ApiClient]:
    """The running proxy of this home and its client. Raises NotRunningError and
    NotListeningError.
    """
    running = find(home)
    if running is None:
        raise NotRunningError(home)
    if running.url is None:
        raise NotListeningError(home, running.pid)
    parts = urlsplit(running.url)
    return running, ApiClient(reachable_url(parts.hostname or "", parts.port or 80), own_key(home))


def own_key(home: Path) -> str:
    """The key of this home's proxy."""
    from metaclaw.config import load

    secret = load(home).proxy.api_key
    return "" if secret is None else secret.resolve()


def expect(status: int, body: Json, *, advice: str | None = None) -> dict[str, Json]:
    """The JSON object of a successful response. Raises MetaClawError for anything else; `advice` is
    added to the message of a 404."""
    if status == 404 and advice is not None:
        raise MetaClawError(f"{message_in(body)}; {advice}")
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


def at(value: Json, *path: str) -> Json:
    """The value at a path inside a response, or None."""
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def rows(value: Json) -> list[Json]:
    """The value if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def message_in(body: Json) -> str:
    """The message of an error response of any shape."""
    error = at(body, "error")
    named = at(error, "message") or at(body, "message") or at(body, "reason")
    text = next(
        (text for text in (named, error, body) if isinstance(text, str) and text.strip()),
        "no reason given",
    )
    return text[:_MESSAGE_CHARS]


def parsed(body: bytes) -> Json:
    """Decode a JSON body; its text if it is not JSON."""
    try:
        value: Json = json.loads(body) if body else None
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace")
    return value


_PATIENCE_S = 60.0
"""A proxy with many skills, or while it loads weights, takes a while."""


def carry_out(
    home: Path,
    method: str,
    path: str,
    do: "Callable[[Rulebook], dict[str, Json]]",
    fields: "Mapping[str, Json] | None" = None,
) -> "dict[str, Json]":
    """Send the request to the running proxy; if none runs, call `do` here."""
    facts = ask_proxy(home, method, path, fields)
    return _do(home, do) if facts is None else facts


def ask_proxy(
    home: Path, method: str, path: str, fields: "Mapping[str, Json] | None" = None
) -> "dict[str, Json] | None":
    """The running proxy's response; None if no proxy runs. Raises MetaClawError with the proxy's
    message if it refuses.
    """
    try:
        _, api = connect(home)
    except NotRunningError:
        return None
    status, body = api.send(method, path, fields, _PATIENCE_S)
    if status in (400, 404, 409):
        raise MetaClawError(message_in(body))
    return expect(status, body)


def _do(home: Path, do: "Callable[[Rulebook], dict[str, Json]]") -> "dict[str, Json]":
    from metaclaw.config import load
    from metaclaw.instance import acquire
    from metaclaw.skills import Rulebook, SkillLibrary
    from metaclaw.store import SqlGenerations, open_database

    config = load(home)
    with acquire(home):
        database = open_database(config.store.url.resolve())
        try:
            generations = SqlGenerations(database)
            library = SkillLibrary(config.skills.dir, generations)
            library.sync()
            _refuse_trouble(library)
            facts = do(Rulebook(library, generations))
            library.sync()  # writes the files
            _refuse_trouble(library)
        finally:
            database.close()
    return facts


def _refuse_trouble(library: "SkillLibrary") -> None:
    if library.trouble is not None:
        raise SkillError(library.trouble)

"""Which identifier a client sends for its session, from the surest to the least sure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from metaclaw.domain.ids import SessionId
from metaclaw.domain.turn import Scope
from metaclaw.proxy.origin.clients import Client
from metaclaw.proxy.origin.clients.claude_code import session_in_user_id
from metaclaw.proxy.origin.request import Request

_MAX_CHARS: Final = 200
_SAFE_CHARS: Final = 96
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._:@+=-]")
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-")
_LONG_RUN: Final = re.compile(r"(?=[A-Za-z]*\d)[A-Za-z0-9]{16,}")
_OTHER_HEADERS: Final = frozenset(
    (
        "session-id",
        "session_id",
        "thread-id",
        "x-session-affinity",
        "x-conversation-id",
        "x-litellm-session-id",
        "helicone-session-id",
    )
)
_BODY_PATHS: Final = (
    ("client_metadata", "session_id"),
    ("session_id",),
    ("conversation",),
    ("conversation", "id"),
    ("conversation_id",),
)


@dataclass(frozen=True, slots=True)
class Key:
    """A session identifier as a client gave it.

    `named` means that it came in our own header, so the session is called by it. `shared` means that several conversations may
    well use the same value, so it only narrows the search. `parent` is the identifier of the session this one works for.
    """

    value: str
    named: bool = False
    shared: bool = False
    parent: str | None = None


_BODY_KEYS: Final = frozenset(("metadata", *(path[0] for path in _BODY_PATHS)))


def find_key(request: Request, client: Client) -> Key | None:
    """The session identifier of a request, or None where the client sends none."""
    key = _base_key(request, client)
    if key is None:
        return None
    helper = client.helper(request)
    if helper is not None:
        parent = f"{key.value}/{helper.of}" if helper.of else key.value
        return Key(_short(f"{key.value}/{helper.id}"), key.named, parent=_short(parent))
    parent = request.header("x-parent-session-id")
    return Key(key.value, key.named, key.shared, _short(parent)) if parent and parent != key.value else key


def _base_key(request: Request, client: Client) -> Key | None:
    headers = request.headers
    named = headers.get("x-session-id")
    if named and (named := named.strip()):
        return Key(_short(named), named=True)
    sent = client.key(request)
    if not sent and not _OTHER_HEADERS.isdisjoint(headers):
        sent = next((value for name in sorted(_OTHER_HEADERS) if (value := headers.get(name))), None)
    if sent:
        return Key(_short(sent))
    cache_key = request.body.get("prompt_cache_key")
    if isinstance(cache_key, str) and cache_key:
        # Programs may use one constant for all their conversations: only what looks unique names a session.
        return Key(_short(cache_key), shared=not looks_unique(cache_key))
    written = _in_body(request) or client.text_key(request)
    return Key(_short(written)) if written else None


def _in_body(request: Request) -> str | None:
    body = request.body
    if _BODY_KEYS.isdisjoint(body):
        return None
    if "metadata" in body:
        user_id = request.text("metadata", "user_id")
        session = (session_in_user_id(user_id) if user_id else None) or request.text("metadata", "session_id")
        if session:
            return session
    for path in _BODY_PATHS:
        if path[0] in body and (value := request.text(*path)):
            return value
    return None


def looks_unique(value: str) -> bool:
    """Whether an identifier can hardly be chosen twice: a UUID or a long run of letters and digits."""
    return _UUID.search(value) is not None or _LONG_RUN.search(value) is not None


def safe_id(value: str) -> SessionId:
    """A session id that is the given value wherever that can stand in a URL, a header and a file name."""
    safe = _UNSAFE.sub("_", value)
    if len(safe) <= _SAFE_CHARS:
        return SessionId(safe)
    return SessionId(f"{safe[: _SAFE_CHARS - 17]}.{sha256(value.encode('utf-8', 'replace')).hexdigest()[:16]}")


def derived_id(scope: Scope, value: str) -> SessionId:
    """A session id that is always the same for the same identifier, so that a forgotten session comes back as itself."""
    text = "\0".join((scope.user or "", scope.workspace or "", value))
    return SessionId(f"s_{sha256(text.encode('utf-8', 'replace')).hexdigest()[:26]}")


def session_id(scope: Scope, key: Key) -> SessionId:
    """The id of the session that a key names."""
    return safe_id(key.value) if key.named else derived_id(scope, key.value)


def scope_of(headers: Mapping[str, str]) -> Scope:
    """Whose request it is: only what the caller says, never a guess."""
    user, workspace = headers.get("x-user-id"), headers.get("x-workspace-id")
    if not user and not workspace:
        return _NOBODY
    return Scope(_said(user), _said(workspace))


def credential_of(headers: Mapping[str, str]) -> int | None:
    """A fingerprint of the caller's credential that means nothing outside this process, or None without one."""
    sent = headers.get("x-metaclaw-key"), headers.get("authorization"), headers.get("x-api-key")
    return hash(sent) if sent != _NOTHING_SENT else None


_NOTHING_SENT: Final = (None, None, None)
_NOBODY: Final = Scope()


def _said(value: str | None) -> str | None:
    return _short(value.strip()) or None if value else None


def _short(value: str) -> str:
    if len(value) <= _MAX_CHARS:
        return value
    return f"{value[: _MAX_CHARS - 17]}.{sha256(value.encode('utf-8', 'replace')).hexdigest()[:16]}"

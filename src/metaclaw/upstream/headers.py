"""Which header fields travel: from the client to the provider, and from the provider back to the client."""

from collections.abc import Iterator, Mapping
from functools import lru_cache

from metaclaw.ports import Headers

CREDENTIALS = ("authorization", "x-api-key", "api-key", "cookie")
"""The client's own; they go on only where the provider is configured to take them."""

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "trailers",
        "transfer-encoding",
        "upgrade",
    }
)
_OURS = frozenset({"x-session-id", "x-turn-type", "x-session-done", "x-user-id", "x-workspace-id"})
_OUR_PREFIX = "x-metaclaw-"
_NOT_SENT = _HOP_BY_HOP | _OURS | frozenset(CREDENTIALS) | {"host", "content-length", "accept-encoding", "expect"}
# alt-svc would invite the client to leave us for the provider's other doors.
_NOT_RETURNED = _HOP_BY_HOP | {"alt-svc"}
_OF_THE_BODY = frozenset({"content-length", "content-encoding", "content-type", "content-md5", "digest", "etag"})


def request_headers(headers: Headers) -> list[tuple[str, str]]:
    """What of the client's header fields goes to the provider: same spelling, same order, without what is ours or this hop's."""
    sent = [pair for pair in headers if _is_sent(pair[0])]
    nominated = _nominated(headers)
    return [pair for pair in sent if pair[0].lower() not in nominated] if nominated else sent


def caller_credentials(caller: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The caller's own credentials, for a provider that takes them."""
    return ((name, caller[name]) for name in CREDENTIALS if name in caller)


def has_credentials(caller: Mapping[str, str]) -> bool:
    """Whether the caller brings credentials of its own."""
    return any(name in caller for name in CREDENTIALS)


def reply_headers(headers: Headers, *, same_body: bool = True) -> Headers:
    """What of the provider's header fields goes back to the client.

    Everything but this hop's own and names that are ours to set. With `same_body` false, the body was rebuilt and the fields that
    describe the provider's bytes are left out too.
    """
    returned = [pair for pair in headers if _is_returned(pair[0])]
    nominated = _nominated(headers)
    if not same_body:
        nominated |= _OF_THE_BODY
    return [pair for pair in returned if pair[0].lower() not in nominated] if nominated else returned


# The same few dozen names come with every request, so what is known of a name is kept.


@lru_cache(maxsize=1024)
def _is_sent(name: str) -> bool:
    lower = name.lower()
    return lower not in _NOT_SENT and not lower.startswith(_OUR_PREFIX)


@lru_cache(maxsize=1024)
def _is_returned(name: str) -> bool:
    lower = name.lower()
    return lower not in _NOT_RETURNED and not lower.startswith(_OUR_PREFIX)


@lru_cache(maxsize=1024)
def _is_connection(name: str) -> bool:
    return name.lower() == "connection"


def _nominated(headers: Headers) -> frozenset[str]:
    """Fields that a Connection field declares to be this hop's own."""
    values = [value for name, value in headers if _is_connection(name)]
    if not values or values in (["keep-alive"], ["close"]):
        return frozenset()
    return frozenset(word.strip().lower() for value in values for word in value.split(","))

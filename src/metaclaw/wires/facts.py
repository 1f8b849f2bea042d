"""What a relayed answer says about itself, found in its bytes without reading all of them."""

from collections.abc import Iterator

import msgspec

from metaclaw.domain.chat import Finish, Json, Usage, Wire
from metaclaw.wires.errors import NO_REASON, error_of
from metaclaw.wires.fields import Object, object_of, text_of
from metaclaw.wires.format import wire_format

_LAST_EVENTS = 8
"""The reason to finish and the counts stand within the last few events of a stream."""


class Facts(msgspec.Struct, frozen=True, gc=False):
    """What the ledger wants to know of an answer; None where it does not say."""

    id: str | None = None
    model: str | None = None
    finish: Finish | None = None
    usage: Usage | None = None
    error: str | None = None


def whole_facts(wire: Wire, body: Object) -> Facts:
    """Facts from a whole answer. Never raises: what is not understood has no facts."""
    if body.get("error"):
        return Facts(error=_error(body))
    return wire_format(wire).whole_facts(body)


def facts_of(body: Object, finish: Finish | None, usage: Usage | None, error: str | None) -> Facts:
    """The facts of a whole answer. One that is an error did not finish, whatever it says."""
    identity, model = text_of(body.get("id")) or None, text_of(body.get("model")) or None
    return Facts(identity, model, None if error else finish, usage, error)


def missing(what: str, there: bool) -> str | None:
    """The error of an answer that lacks something."""
    return None if there else f"the provider's answer has no {what}"


def streamed_facts(wire: Wire, said: bytes) -> Facts:
    """Facts from a stream's bytes. Never raises: garbage has no facts."""
    last = [body for body in _last_events(said) if body]
    failure = next((_error(body) for body in last if _is_error(body)), None)
    return wire_format(wire).streamed_facts(said, last, failure)


def _is_error(body: Object) -> bool:
    return bool(body.get("error")) or body.get("type") == "error"


def _error(body: Object) -> str:
    return error_of(body)[0] or NO_REASON


def first_object(value: Json) -> Object:
    """The first object of a list, or an empty one."""
    return object_of(value[0]) if isinstance(value, list) and value else {}


def _object(data: bytes) -> Object:
    try:
        return object_of(msgspec.json.decode(data))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}


def first_event(said: bytes) -> Object:
    """The first event that has an id or a message: comments, pings and empty first chunks are passed over."""
    at = 0
    for _ in range(_LAST_EVENTS):
        start = 0 if at == 0 and said.startswith(b"data:") else said.find(b"\ndata:", at) + 1
        if start == 0 and not said.startswith(b"data:", at):
            return {}
        end = said.find(b"\n", start)
        body = _object(said[start + len(b"data:") : end if end >= 0 else len(said)])
        if body.get("id") or body.get("message"):
            return body
        if end < 0:
            return {}
        at = end
    return {}


def _last_events(said: bytes) -> Iterator[Object]:
    """The last events, newest first."""
    end = len(said)
    for _ in range(_LAST_EVENTS):
        start = said.rfind(b"data:", 0, end)
        while start > 0 and said[start - 1] not in b"\r\n":  # the word may stand inside a text
            start = said.rfind(b"data:", 0, start)
        if start < 0:
            return
        stop = said.find(b"\n", start, end)
        yield _object(said[start + len(b"data:") : stop if stop >= 0 else end])
        end = start

"""What a relayed answer says about itself, found in its bytes without reading all of them."""

from collections.abc import Iterator

import msgspec

from metaclaw.domain.chat import Finish, Json, Usage, Wire
from metaclaw.wires.chat import answer as chat
from metaclaw.wires.failure import error_of
from metaclaw.wires.fields import Object, object_of, text_of
from metaclaw.wires.messages import answer as messages
from metaclaw.wires.responses import answer as responses

_LAST_EVENTS = 8
"""The reason to finish and the counts stand within the last few events of a stream."""
_RESPONSE_ENDS = ("response.completed", "response.incomplete", "response.failed")


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
    return _WHOLE[wire](body)


def _facts(body: Object, finish: Finish | None, usage: Usage | None, error: str | None) -> Facts:
    """An answer that is an error did not finish, whatever it says."""
    identity, model = text_of(body.get("id")) or None, text_of(body.get("model")) or None
    return Facts(identity, model, None if error else finish, usage, error)


def _missing(what: str, there: bool) -> str | None:
    return None if there else f"the provider's answer has no {what}"


def _chat(body: Object) -> Facts:
    choice = _first(body.get("choices"))
    called = bool(object_of(choice.get("message")).get("tool_calls"))
    finish = chat.finish_of(choice.get("finish_reason"), called=called)
    return _facts(body, finish, chat.usage_of(body.get("usage")), _missing("choices", bool(choice)))


def _message(body: Object) -> Facts:
    finish, usage = messages.finish_of(body.get("stop_reason")), messages.usage_of(body.get("usage"))
    return _facts(body, finish, usage, _missing("content", isinstance(body.get("content"), list)))


def _whole_response(body: Object) -> Facts:
    return _response(body, _missing("output", isinstance(body.get("output"), list)))


def _response(body: Object, missing: str | None = None) -> Facts:
    output = body.get("output")
    kinds = {text_of(object_of(item).get("type")) for item in output} if isinstance(output, list) else set()
    called = bool(kinds & {"function_call", "custom_tool_call"})
    failure = responses.failure_of(body)
    finish, usage = responses.finish_of(body, called=called), responses.usage_of(body.get("usage"))
    return _facts(body, finish, usage, failure[0] if failure else missing)


_WHOLE = {Wire.CHAT: _chat, Wire.MESSAGES: _message, Wire.RESPONSES: _whole_response}


def streamed_facts(wire: Wire, said: bytes) -> Facts:
    """Facts from a stream's bytes. Never raises: garbage has no facts."""
    last = [body for body in _last_events(said) if body]
    failure = next((_error(body) for body in last if _is_error(body)), None)
    if wire is Wire.RESPONSES:
        return _streamed_response(last, failure)
    first = _first_event(said)
    return _streamed_chat(first, last, failure) if wire is Wire.CHAT else _streamed_message(first, last, failure)


def _streamed_chat(first: Object, last: list[Object], failure: str | None) -> Facts:
    usage = next((found for body in last if (found := chat.usage_of(body.get("usage"))) is not None), None)
    words = (_first(body.get("choices")).get("finish_reason") for body in last)
    finish = next((reason for word in words if (reason := chat.finish_of(word, called=False)) is not None), None)
    return Facts(text_of(first.get("id")) or None, text_of(first.get("model")) or None, finish, usage, failure)


def _streamed_message(first: Object, last: list[Object], failure: str | None) -> Facts:
    message = object_of(first.get("message"))
    final = next((body for body in last if body.get("type") == "message_delta"), {})
    counts = {name: value for name, value in object_of(final.get("usage")).items() if value is not None}
    usage = messages.usage_of({**object_of(message.get("usage")), **counts} or None)
    finish = messages.finish_of(object_of(final.get("delta")).get("stop_reason"))
    return Facts(text_of(message.get("id")) or None, text_of(message.get("model")) or None, finish, usage, failure)


def _streamed_response(last: list[Object], failure: str | None) -> Facts:
    final = next((body for body in last if body.get("type") in _RESPONSE_ENDS), None)
    if final is None:
        return Facts(error=failure)
    response = object_of(final.get("response"))
    facts = _response({**response, "status": "failed"} if final["type"] == "response.failed" else response)
    return facts if facts.error or not failure else msgspec.structs.replace(facts, error=failure)


def _is_error(body: Object) -> bool:
    return bool(body.get("error")) or body.get("type") == "error"


def _error(body: Object) -> str:
    return error_of(body)[0] or responses.NO_REASON


def _first(value: Json) -> Object:
    return object_of(value[0]) if isinstance(value, list) and value else {}


def _object(data: bytes) -> Object:
    try:
        return object_of(msgspec.json.decode(data))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}


def _first_event(said: bytes) -> Object:
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

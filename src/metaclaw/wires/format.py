"""Everything that is specific to one wire, as one value: `WireFormat`; and what relayed answers and errors say about themselves."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, Protocol

import msgspec

from metaclaw.domain.chat import ChatRequest, Completion, Delta, Finish, Json, Usage, Wire
from metaclaw.domain.turn import TrueAnswer
from metaclaw.wires.fields import Object, decode_or_text, object_of, text_of

if TYPE_CHECKING:  # these look formats up
    from metaclaw.wires.deltas import Reader
    from metaclaw.wires.relay import AttemptMessages, CallRules, FooterRules, HeldCall
    from metaclaw.wires.translation import Document, ToolOffer
from metaclaw.errors import UpstreamError
from metaclaw.wires.fields import encode


class StreamWriter(Protocol):
    """Deltas to the events of a client's stream."""

    def write(self, delta: Delta) -> bytes:
        """The bytes for one delta, possibly none; those for an End make the answer whole.

        Raises UpstreamError for a piece of a tool call that never began.
        """


class RequestEdit(Protocol):
    """Insertions into the bytes of a request; `proxy.splice` says what each method does."""

    parsed: Mapping[str, Json]

    @property
    def items(self) -> Sequence[Json] | None: ...
    def leading_system_items(self) -> int: ...
    def append_to_item(self, index: int, text: str) -> None: ...
    def append_to_field(self, key: str, text: str) -> None: ...
    def add_field(self, key: str, text: str) -> None: ...
    def insert_before_item(self, index: int, item: bytes) -> None: ...
    def insert_after_item(self, index: int, item: bytes) -> None: ...
    def fill_list(self, key: str, item: bytes) -> None: ...
    def wrap_field(self, key: str, before: bytes, after: bytes) -> None: ...
    def refuse(self, reason: str) -> NoReturn: ...


class Facts(msgspec.Struct, frozen=True, gc=False):
    """What the ledger wants to know of an answer; None where it does not say."""

    id: str | None = None
    model: str | None = None
    finish: Finish | None = None
    usage: Usage | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WireFormat:
    """A wire: its path, requests, answers, streams and errors, in terms of the domain's types."""

    wire: Wire
    path: str
    """Below `/v1`."""
    id_prefix: str
    """How the ids of answers begin."""
    sign: str = ""
    """A header that only clients of this wire send."""

    # Requests.
    list_key: str
    """The field that holds the messages."""
    previous_key: str = ""
    """The field by which a request refers to a history that the provider keeps."""
    kept_history_keys: tuple[str, ...] = ()
    """Fields by which a request refers to anything that the provider keeps."""
    unkept: Mapping[str, Json] = field(default_factory=dict)
    """Fields by which the provider keeps nothing of a request and its answer."""
    is_kept_by_provider: Callable[[Mapping[str, Json]], bool] = lambda body: False
    """Whether the provider keeps the conversation that a request goes on with, or answers it in the background."""
    required_key: str = ""
    """A field that every request for an answer must have, and one that only counts tokens need not."""
    parse_request: Callable[[dict[str, Json]], ChatRequest]
    """A client's body. Raises WireError with the name of the parameter that is wrong."""
    render_request: Callable[[ChatRequest], dict[str, Json]]
    """A provider's body. Raises WireError for what this wire cannot say and the request cannot do without."""
    indispensable: tuple[str, ...]
    """Fields without which a request means something else. Every other field that another wire does not know is dropped."""
    hosted_traces: tuple[str, ...] = ()
    """Types of parts that a provider's own tools left in the history. Their outcome is in the text that follows."""
    read_document: "Callable[[dict[str, Json]], Document | None]"
    """The document in a content part of this wire; None if it is something else or lies in the provider's own file store."""
    offered_tools: "Callable[[dict[str, Json], bool], Iterable[ToolOffer]]"
    """A tool that is no function, as functions. Raises WireError for one that cannot be offered so, unless the flag is set."""
    wants_json: Callable[[Mapping[str, Json]], bool]
    """Whether a request asks for an answer in JSON, which nothing may be added to."""
    system_texts: Callable[[Mapping[str, Json]], Json] = lambda body: None
    """The system text that stands outside the messages: a string or a list of parts, or None."""
    place_in_system: Callable[[RequestEdit, str], None]
    """Add text at the end of the system text."""
    has_system_field: bool = False
    """Whether the system text has a field of its own; it is the first message of a request that was read."""
    later_system: Mapping[str, Json] = field(default_factory=dict)
    """Further fields of a system message that is added behind others; without any, it is added before all messages."""
    text_part: str = "text"
    """The type of a text part in a message."""
    appends_parts: bool = False
    """Whether text is added to a message as a part of its own, also where its content is a string."""
    joins_results: bool = False
    """Whether the results of several calls stand in one message of the user."""
    continues_messages: bool = True
    """Whether an answer goes on with the last message of a request where that is the assistant's."""
    needs_signed_reasoning: bool = False
    """Whether reasoning is sent back only with its provider's signature."""
    caches_everything: Callable[[Mapping[str, Json]], bool] = lambda body: False
    """Whether a request has the provider cache its whole prompt."""

    # Answers.
    parse_answer: Callable[[bytes], Completion]
    """A provider's answer. Raises UpstreamError."""
    render_answer: Callable[[Completion, ChatRequest], bytes]
    """A client's answer to its request."""
    reader: "Callable[[], Reader]"
    """Reads one stream of a provider."""
    writer: Callable[[ChatRequest], StreamWriter]
    """Writes one stream to a client."""
    resumed_writer: Callable[[ChatRequest, bytes], StreamWriter]
    """Goes on with a stream of which a client has been sent these events; it is not given a Begin."""
    final_events: tuple[str, ...] = ()
    """Types of the event that ends a stream; where there are none, `[DONE]` does."""
    whole_facts: Callable[[Object], Facts]
    """What a whole answer says about itself."""
    streamed_facts: Callable[[bytes, list[Object], str | None], Facts]
    """What a stream says about itself, given its bytes, its last events (newest first) and the error among them."""
    footer: "FooterRules"
    """How a line is added to an answer."""

    # Tool calls that are held back.
    is_ordered: bool = True
    """Whether the order of text and calls in a stream matters, so that text behind a call waits with it."""
    calls: "CallRules"
    """How calls are found in answers."""
    read_attempt: "Callable[[bytes, bool], AttemptMessages]"
    """What a provider said, streamed or whole, as it is told of it again. Raises UpstreamError for a whole answer that is none."""
    call_results: "Callable[[Sequence[HeldCall], Sequence[str]], list[Json]]"
    """Messages with a text for each call in place of its tool's result."""
    own_words: Callable[[str], Json]
    """A message of the assistant with this text."""
    restore: Callable[[Sequence[Json], TrueAnswer, Sequence[Json]], list[Json] | None]
    """A request's messages with the true ones in place of what its client was shown; None where that is not among them."""

    # Errors.
    error_body: Callable[[int, str, str, str | None], bytes]
    """An error answer in the wire's own shape: status, message, code, parameter."""
    error_event: Callable[[str, str], bytes]
    """An error in the middle of a stream: message, code."""


_formats: dict[Wire, WireFormat] = {}


def register(format_: WireFormat) -> None:
    """Make a wire known. Providers that do not speak a client's wire are asked in the first registered one that they speak."""
    _formats[format_.wire] = format_


def wire_format(wire: Wire) -> WireFormat:
    return _formats[wire]


def signed_wire(headers: Mapping[str, str]) -> Wire:
    """The wire that a client's headers show; chat completions where they show none."""
    return next((format_.wire for format_ in _formats.values() if format_.sign and format_.sign in headers), Wire.CHAT)


def wire_formats() -> Iterable[WireFormat]:
    """All formats, in the order of registration."""
    return _formats.values()


_LAST_EVENTS = 8
"""The reason to finish and the counts stand within the last few events of a stream."""


def whole_facts(wire: Wire, body: Object) -> Facts:
    """Facts from a whole answer. Never raises: what is not understood has no facts."""
    if body.get("error"):
        return Facts(error=_error(body))
    return wire_format(wire).whole_facts(body)


def missing(what: str, there: bool) -> str | None:
    return None if there else f"the provider's answer has no {what}"


def facts_of(body: Object, finish: Finish | None, usage: Usage | None, error: str | None) -> Facts:
    """The facts of a whole answer. One that is an error did not finish, whatever it says."""
    return Facts(text_of(body.get("id")) or None, text_of(body.get("model")) or None, None if error else finish, usage, error)


def streamed_facts(wire: Wire, said: bytes) -> Facts:
    """Facts from a stream's bytes. Never raises: garbage has no facts."""
    last = [body for body in _last_events(said) if body]
    failure = next((_error(body) for body in last if body.get("error") or body.get("type") == "error"), None)
    return wire_format(wire).streamed_facts(said, last, failure)


def _error(body: Object) -> str:
    return error_of(body)[0] or NO_REASON


def first_object(value: Json) -> Object:
    """The first object of a list, or an empty one."""
    return object_of(value[0]) if isinstance(value, list) and value else {}


def first_event(said: bytes) -> Object:
    """The first event that has an id or a message: comments, pings and empty first chunks are passed over."""
    at = 0
    for _ in range(_LAST_EVENTS):
        start = 0 if at == 0 and said.startswith(b"data:") else said.find(b"\ndata:", at) + 1
        if start == 0 and not said.startswith(b"data:", at):
            return {}
        end = said.find(b"\n", start)
        body = object_of(decode_or_text(said[start + len(b"data:") : end if end >= 0 else len(said)]))
        if body.get("id") or body.get("message"):
            return body
        if end < 0:
            return {}
        at = end
    return {}


def _last_events(said: bytes) -> Iterator[Object]:
    end = len(said)
    for _ in range(_LAST_EVENTS):
        start = said.rfind(b"data:", 0, end)
        while start > 0 and said[start - 1] not in b"\r\n":  # the word may stand inside a text
            start = said.rfind(b"data:", 0, start)
        if start < 0:
            return
        stop = said.find(b"\n", start, end)
        yield object_of(decode_or_text(said[start + len(b"data:") : stop if stop >= 0 else end]))
        end = start


_OPENAI_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_STATUS_OF_TYPE: Mapping[str, int] = {
    **{kind: status for status, kind in _ANTHROPIC_TYPES.items()},
    "invalid_request_error": 400,
    "invalid_api_key": 401,
    "insufficient_quota": 429,
    "rate_limit_exceeded": 429,
}
_MAX_MESSAGE_CHARS = 2_000
NO_REASON = "the provider reported an error"


def openai_error(status: int, message: str, code: str, param: str | None = None) -> Object:
    kind = _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def openai_body(status: int, message: str, code: str, param: str | None) -> bytes:
    return encode(openai_error(status, message, code, param))


def anthropic_error(status: int, message: str) -> Object:
    """An error as Anthropic's wire writes it: its type follows from the status."""
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def parse_error(status: int, body: bytes) -> tuple[str, str]:
    """Message and code of a provider's error, whatever its shape; never raises."""
    message, code = error_of(decode_or_text(body))
    words = message[:_MAX_MESSAGE_CHARS] or f"the provider answered with status {status} and no word why"
    return words, code or f"upstream_{status}"


def error_of(value: Json) -> tuple[str, str]:
    """Message and code somewhere in an error value; empty where it has none."""
    match value:
        case str():
            return value, ""
        case [first, *_]:
            return error_of(first)
        case {"error": dict() | str() | list() as inner}:
            return error_of(inner)
        case {"detail": dict() | str() | list() as inner}:
            return error_of(inner)
        case {"response": {"error": dict() as inner}}:
            return error_of(inner)
        case dict():
            message = text_of(value.get("message")) or text_of(value.get("msg"))
            return message, text_of(value.get("code")) or text_of(value.get("type"))
        case _:
            return "", ""


def reported_error(value: Json) -> UpstreamError:
    """The error a provider reported under a status of success, with the status it names or implies; 502 where it does neither."""
    message, code = error_of(value)
    words = message[:_MAX_MESSAGE_CHARS] or "it reported an error and no reason"
    return UpstreamError(words, status=_status_of(value), code=code or "upstream_error")


def _status_of(value: Json) -> int:
    error = object_of(value)
    error = object_of(error.get("response")) or error
    error = object_of(error.get("error")) or error
    for name in ("status", "status_code", "code", "type"):
        said = error.get(name)
        status = int(said) if isinstance(said, int) or (isinstance(said, str) and said.isdecimal() and len(said) == 3) else 0
        status = status or _STATUS_OF_TYPE.get(text_of(said), 0)
        if 400 <= status < 600:
            return status
    return 502

"""`WireFormat`, which holds everything specific to one wire; and the reading of facts and errors
from relayed answers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, NoReturn, Protocol

import msgspec

from metaclaw.domain.chat import (
    ChatRequest,
    Completion,
    Delta,
    Finish,
    Json,
    Message,
    Tool,
    Usage,
    Wire,
)
from metaclaw.domain.turn import TrueAnswer
from metaclaw.errors import UpstreamError
from metaclaw.wires.fields import Object, decode_or_text, encode_json, object_of, text_of


class StreamReader(Protocol):
    """Turns the bytes of a provider's stream into deltas."""

    def feed(self, data: bytes) -> list[Delta]: ...
    def close(self) -> list[Delta]:
        """Return the last deltas, once the provider has closed the stream."""


class StreamWriter(Protocol):
    """Turns deltas into the events of a client's stream."""

    def write(self, delta: Delta) -> bytes:
        """Return the bytes for one delta, possibly none. The bytes for an End complete the answer.

        Raises UpstreamError for a piece of a tool call that never began.
        """


class RequestEdit(Protocol):
    """Inserts into the bytes of a request; see `proxy.splice` for the methods."""

    parsed: Mapping[str, Json]

    @property
    def items(self) -> Sequence[Json] | None: ...
    def leading_system_items(self) -> int: ...
    def append_to_item(self, index: int, text: str) -> None: ...
    def append_to_field(self, key: str, text: str) -> None: ...
    def append_to_parts(self, keys: Sequence[str], text: str) -> bool: ...
    def add_field(self, key: str, value: bytes) -> None: ...
    def insert_before_item(self, index: int, item: bytes) -> None: ...
    def insert_after_item(self, index: int, item: bytes) -> None: ...
    def fill_list(self, key: str, item: bytes) -> None: ...
    def wrap_field(self, key: str, before: bytes, after: bytes) -> None: ...
    def refuse(self, reason: str) -> NoReturn: ...


class Facts(msgspec.Struct, frozen=True, gc=False):
    """Facts of an answer for the ledger; None if the answer does not contain them."""

    id: str | None = None
    model: str | None = None
    finish: Finish | None = None
    usage: Usage | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """A file in a conversation: its bytes in base64 (`payload`), its URL, or its plain text."""

    name: str | None
    media_type: str = "application/pdf"
    payload: str | None = None
    url: str | None = None
    text: str | None = None


class Kind(StrEnum):
    """The kinds of tools that a client may offer."""

    FUNCTION = "function"
    CUSTOM = "custom"


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool as its client named it."""

    kind: Kind
    name: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """A tool as a function for other wires, and as its client named it."""

    tool: Tool
    client_tool: ClientTool


@dataclass(frozen=True, slots=True)
class HeldCall:
    """A tool call. `kind` is its type in the wire."""

    id: str
    name: str
    arguments: str
    kind: str = ""


class CallOutput(NamedTuple):
    """A text of ours in place of the result of a tool."""

    call: HeldCall
    text: str
    is_error: bool = True


@dataclass(frozen=True, slots=True)
class AttemptMessages:
    """One answer of a provider, as `messages` of a later request. `is_exact` is False if they
    cannot repeat the answer exactly, or its calls cannot be refused with a text: then the provider
    is not asked again."""

    id: str
    messages: tuple[Json, ...]
    calls: tuple[HeldCall, ...]
    is_exact: bool = True


class CallFormat(Protocol):
    """Finds tool calls in the answers of one wire."""

    marks: tuple[bytes, ...]
    """Every answer with calls, and the first event of every call, contains one of these."""
    words: tuple[bytes, ...]
    """Every event with text or reasoning contains one of these."""

    def whole(self, answer: Object) -> list[HeldCall]:
        """The calls of a whole answer that its client is to run."""

    def read(self, held: bytes) -> list[HeldCall]:
        """The calls in the events of a stream from its first call on; the last event may be
        incomplete.
        """

    def shown(self, sent: bytes) -> list[HeldCall]:
        """The calls in events that the client has been sent; the last ones may be incomplete."""

    def begun(self, body: Object) -> list[str]:
        """The names of the calls that an event begins, or continues without a name."""

    def passes(self, body: Object) -> bool:
        """Whether an event behind the first call may be sent at once."""

    def all_wait(self, chunk: bytes) -> bool:
        """Whether all of these complete events behind the first call wait, without parsing them;
        False if one might pass.
        """


_JSON_BEGINS: Final = ("{", "[", "```json")


class FooterPlace:
    """A line that is to be added to an answer, and what is known of that answer so far."""

    def __init__(self, line: str) -> None:
        self.line = line
        self._begins = ""
        self.parts = 0
        """The number of parts of the answer that have begun."""
        self.is_plain = True
        """Whether the answer so far is plain text."""
        self.is_added = False

    def note(self, text: str) -> None:
        """Record the beginning of the answer's text, to recognise JSON."""
        if len(self._begins) < 16:
            self._begins = (self._begins + text).lstrip()[:16]

    @property
    def may_add(self) -> bool:
        """Whether the answer so far has text, and that is plain text and not JSON."""
        return self.is_plain and bool(self._begins) and not self._begins.startswith(_JSON_BEGINS)


class FooterFormat(Protocol):
    """Adds a line to the answers of one wire."""

    def add_to_answer(self, place: FooterPlace, answer: Object) -> bool:
        """Add the line to a whole answer; False if it must not be changed."""

    def add_to_event(self, place: FooterPlace, raw: bytes, body: Object) -> bytes:
        """Return an event of a stream, with the line before or in it if this is the right
        position.
        """


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
    parts_key: str = ""
    """The field of a message that holds its parts, which have no type; if empty, it is `content`."""
    tool_keys: tuple[str, ...] = ()
    """The names of the list of functions in a tool; if empty, every tool is one function."""
    view: Callable[[Mapping[str, Json]], dict[str, Json]] | None = None
    """A body as one of the messages wire, for what only reads it. If None, it is read as it is."""
    view_item: Callable[[Json], Json] = lambda item: item
    """The same for one message."""
    previous_key: str = ""
    """The field by which a request refers to a history that the provider stores."""
    kept_history_keys: tuple[str, ...] = ()
    """Fields by which a request refers to anything that the provider stores."""
    unkept: Mapping[str, Json] = field(default_factory=dict)
    """Fields that tell the provider to store nothing of a request and its answer."""
    is_kept_by_provider: Callable[[Mapping[str, Json]], bool] = lambda body: False
    """Whether the provider stores the conversation of a request, or answers it in the
    background.
    """
    required_key: str = ""
    """A field that every request for an answer must have, but a request to count tokens need
    not.
    """
    parse_request: Callable[[dict[str, Json]], ChatRequest]
    """Parse a client's body. Raises WireError with the name of the wrong parameter."""
    parse_item: Callable[[Json, str], Message]
    """Parse one message, or one item of the input. Raises WireError with the given name."""
    render_request: Callable[[ChatRequest], dict[str, Json]]
    """Write a provider's body. Raises WireError for an indispensable part that this wire cannot
    express.
    """
    indispensable: tuple[str, ...]
    """Fields that change the meaning of a request. All other fields that another wire does not know
    are dropped.
    """
    hosted_traces: tuple[str, ...] = ()
    """Types of parts that a provider's own tools left in the history. They can be dropped: the text
    behind them has the outcome.
    """
    read_document: Callable[[dict[str, Json]], Document | None]
    """The document in a content part of this wire; None if it is something else or is in the
    provider's file store.
    """
    render_tool: Callable[[Tool], dict[str, Json]]
    """A function as a request offers it."""
    offered_tools: Callable[[dict[str, Json], bool], Iterable[ToolOffer]]
    """A tool that is not a function, as functions. Raises WireError if that is impossible, unless
    `lenient` is set.
    """
    wants_json: Callable[[Mapping[str, Json]], bool]
    """Whether a request asks for an answer in JSON, to which no text may be added."""
    system_texts: Callable[[Mapping[str, Json]], Json] = lambda body: None
    """The system text outside the messages: a string, a list of parts, or None."""
    place_in_system: Callable[[RequestEdit, str], None]
    """Add text at the end of the system text."""
    has_system_field: bool = False
    """Whether the system text has its own field. `parse_request` makes it the first message."""
    later_system: Mapping[str, Json] = field(default_factory=dict)
    """Further fields of a system message that is inserted behind other messages. If empty, it is
    inserted before all messages.
    """
    text_part: str = "text"
    """The type of a text part in a message."""
    appends_parts: bool = False
    """Whether text is added to a message as a separate part, also if its content is a string."""
    joins_results: bool = False
    """Whether the results of several calls are in one user message."""
    continues_messages: bool = True
    """Whether an answer continues the last message of a request if that is the assistant's."""
    needs_signed_reasoning: bool = False
    """Whether providers accept reasoning in a history only with their own signature."""
    caches_everything: Callable[[Mapping[str, Json]], bool] = lambda body: False
    """Whether a request tells the provider to cache its whole prompt."""

    # Answers.
    parse_answer: Callable[[bytes], Completion]
    """Parse a provider's answer. Raises UpstreamError."""
    render_answer: Callable[[Completion, ChatRequest], bytes]
    """Write an answer for the client that sent the request."""
    reader: Callable[[], StreamReader]
    """Reads one stream of a provider."""
    writer: Callable[[ChatRequest], StreamWriter]
    """Writes one stream to a client."""
    resumed_writer: Callable[[ChatRequest, bytes], StreamWriter]
    """Continues a stream after these events, which the client has been sent. Its `write` must not
    be given a Begin.
    """
    final_events: tuple[str, ...] = ()
    """Types of the event that ends a stream, or fields of its candidate; if empty, `[DONE]` ends
    it.
    """
    goes_on: bool = False
    """Whether events may follow the one that ends a stream, which then ends with its bytes."""
    whole_facts: Callable[[Object], Facts]
    """The facts of a whole answer."""
    streamed_facts: Callable[[bytes, list[Object], str | None], Facts]
    """The facts of a stream, given its bytes, its last events (newest first) and the error among
    them.
    """
    footer: FooterFormat
    """How a line is added to an answer."""

    # Tool calls that are held back.
    is_ordered: bool = True
    """Whether the order of text and calls in a stream matters, so that text behind a call waits
    with it.
    """
    calls: CallFormat
    """How calls are found in answers."""
    read_attempt: Callable[[bytes, bool], AttemptMessages]
    """A provider's answer (its bytes, and whether they are a stream) as messages of a later
    request. Raises UpstreamError.
    """
    call_results: Callable[[Sequence[CallOutput]], list[Json]]
    """Messages with our results of calls."""
    own_words: Callable[[str], Json]
    """A message of the assistant with this text."""
    restore: Callable[[Sequence[Json], TrueAnswer, Sequence[Json]], list[Json] | None]
    """A request's messages with the true ones in place of what its client was shown; None if that
    is not among them.
    """

    # Errors.
    error_body: Callable[[int, str, str, str | None], bytes]
    """An error answer in the wire's own shape: status, message, code, parameter."""
    error_event: Callable[[str, str], bytes]
    """An error in the middle of a stream: message, code."""


_formats: dict[Wire, WireFormat] = {}


def register(format_: WireFormat) -> None:
    """Register a wire. A provider that does not speak a client's wire is asked in the first
    registered wire that it speaks.
    """
    _formats[format_.wire] = format_


def wire_format(wire: Wire) -> WireFormat:
    return _formats[wire]


def signed_wire(headers: Mapping[str, str]) -> Wire:
    """The wire that a client's headers show, else chat."""
    return next(
        (format_.wire for format_ in _formats.values() if format_.sign and format_.sign in headers),
        Wire.CHAT,
    )


def wire_formats() -> Iterable[WireFormat]:
    """All formats, in the order of registration."""
    return _formats.values()


_LAST_EVENTS = 8
"""Finish reason and usage are within the last `_LAST_EVENTS` events of a stream."""


def whole_facts(wire: Wire, body: Object) -> Facts:
    """The facts of a whole answer. Never raises; unknown shapes give empty facts."""
    if body.get("error"):
        return Facts(error=_error(body))
    return wire_format(wire).whole_facts(body)


def missing(what: str, there: bool) -> str | None:
    return None if there else f"the provider's answer has no {what}"


def facts_of(body: Object, finish: Finish | None, usage: Usage | None, error: str | None) -> Facts:
    """Build the facts of a whole answer. With an error there is no finish reason."""
    return Facts(
        text_of(body.get("id")) or None,
        text_of(body.get("model")) or None,
        None if error else finish,
        usage,
        error,
    )


def streamed_facts(wire: Wire, stream: bytes) -> Facts:
    """The facts of a stream. Never raises; garbage gives empty facts."""
    last = [body for body in _last_events(stream) if body]
    failure = next(
        (_error(body) for body in last if body.get("error") or body.get("type") == "error"), None
    )
    return wire_format(wire).streamed_facts(stream, last, failure)


def _error(body: Object) -> str:
    return error_of(body)[0] or NO_REASON


def first_object(value: Json) -> Object:
    """The first object of a list, or an empty one."""
    return object_of(value[0]) if isinstance(value, list) and value else {}


def first_event(stream: bytes) -> Object:
    """The first event with an id or a message; comments, pings and empty first chunks are
    skipped.
    """
    at = 0
    for _ in range(_LAST_EVENTS):
        start = 0 if at == 0 and stream.startswith(b"data:") else stream.find(b"\ndata:", at) + 1
        if start == 0 and not stream.startswith(b"data:", at):
            return {}
        end = stream.find(b"\n", start)
        body = object_of(
            decode_or_text(stream[start + len(b"data:") : end if end >= 0 else len(stream)])
        )
        if body.get("id") or body.get("message"):
            return body
        if end < 0:
            return {}
        at = end
    return {}


def _last_events(stream: bytes) -> Iterator[Object]:
    end = len(stream)
    for _ in range(_LAST_EVENTS):
        start = stream.rfind(b"data:", 0, end)
        while start > 0 and stream[start - 1] not in b"\r\n":  # "data:" may be inside a text
            start = stream.rfind(b"data:", 0, start)
        if start < 0:
            return
        stop = stream.find(b"\n", start, end)
        yield object_of(decode_or_text(stream[start + len(b"data:") : stop if stop >= 0 else end]))
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
    return encode_json(openai_error(status, message, code, param))


def anthropic_error(status: int, message: str) -> Object:
    """An error in the messages wire; its type follows from the status."""
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def parse_error(status: int, body: bytes) -> tuple[str, str]:
    """Message and code of a provider's error in any shape. Never raises."""
    message, code = error_of(decode_or_text(body))
    words = (
        message[:_MAX_MESSAGE_CHARS]
        or f"the provider answered with status {status} and gave no reason"
    )
    return words, code or f"upstream_{status}"


def error_of(value: Json) -> tuple[str, str]:
    """Find message and code in an error value; empty strings if there are none."""
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
    """The error in a response with a success status. Its status is the one that the body names or
    implies, else 502.
    """
    message, code = error_of(value)
    words = message[:_MAX_MESSAGE_CHARS] or "it reported an error without a reason"
    return UpstreamError(words, status=_status_of(value), code=code or "upstream_error")


def _status_of(value: Json) -> int:
    error = object_of(value)
    error = object_of(error.get("response")) or error
    error = object_of(error.get("error")) or error
    for name in ("status", "status_code", "code", "type"):
        said = error.get(name)
        status = (
            int(said)
            if isinstance(said, int)
            or (isinstance(said, str) and said.isdecimal() and len(said) == 3)
            else 0
        )
        status = status or _STATUS_OF_TYPE.get(text_of(said), 0)
        if 400 <= status < 600:
            return status
    return 502

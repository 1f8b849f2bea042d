"""Everything that is specific to one wire, as one value: `WireFormat`.

A wire's package builds its format and registers it when it is imported; `metaclaw.wires` imports all of them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Protocol

from metaclaw.domain.chat import ChatRequest, Completion, Delta, Json, Wire
from metaclaw.domain.enforcement import TrueAnswer

if TYPE_CHECKING:  # these look formats up
    from metaclaw.wires.facts import Facts
    from metaclaw.wires.footer import FooterRules
    from metaclaw.wires.held_calls import Attempt, CallRules, HeldCall
    from metaclaw.wires.media import Document
    from metaclaw.wires.tools import ToolOffer


class StreamReader(Protocol):
    """Bytes of a provider's stream to deltas; any split of the bytes gives the same deltas."""

    def feed(self, data: bytes) -> list[Delta]:
        """The deltas these bytes complete. Garbage is a Failed, and after it or an End nothing more is said."""

    def close(self) -> list[Delta]:
        """The last deltas, once the provider has closed the stream: always an End or a Failed if there was none yet."""


class StreamWriter(Protocol):
    """Deltas to the events of a client's stream."""

    def write(self, delta: Delta) -> bytes:
        """The bytes for one delta, possibly none; those for an End make the answer whole.

        Raises UpstreamError for a piece of a tool call that never began.
        """


class RequestEdit(Protocol):
    """Insertions into the bytes of a request."""

    parsed: Mapping[str, Json]

    @property
    def items(self) -> Sequence[Json] | None:
        """The messages, where they are a list."""

    def leading_system_items(self) -> int:
        """How many of the first messages are system messages."""

    def append_to_item(self, index: int, text: str) -> None:
        """Add text to the content of a message."""

    def append_to_field(self, key: str, text: str) -> None:
        """Add text to a top-level field, a string or a list of parts."""

    def add_field(self, key: str, text: str) -> None:
        """Add a top-level field."""

    def insert_before_item(self, index: int, item: bytes) -> None:
        """Insert a message before another one."""

    def insert_after_item(self, index: int, item: bytes) -> None:
        """Insert a message behind another one."""

    def fill_list(self, key: str, item: bytes) -> None:
        """Insert an item into an empty list."""

    def wrap_field(self, key: str, before: bytes, after: bytes) -> None:
        """Insert bytes before and behind the value of a top-level field."""

    def refuse(self, reason: str) -> NoReturn:
        """Give up: nothing is inserted into this request."""


class AttemptReader(Protocol):
    """Reads what a provider said, as it has to be told of it again."""

    def __call__(self, said: bytes, *, stream: bool) -> "Attempt":
        """Raises UpstreamError for a whole answer that is none."""


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
    system_texts: Callable[[Mapping[str, Json]], Json]
    """The system text that stands outside the messages: a string or a list of parts, or None."""
    place_in_system: Callable[[RequestEdit, str], None]
    """Add text at the end of the system text."""
    text_part: str = "text"
    """The type of a text part in a message."""
    appends_parts: bool = False
    """Whether text is added to a message as a part of its own, also where its content is a string."""
    caches_everything: Callable[[Mapping[str, Json]], bool] = lambda body: False
    """Whether a request has the provider cache its whole prompt."""

    # Answers.
    parse_answer: Callable[[bytes], Completion]
    """A provider's answer. Raises UpstreamError."""
    render_answer: Callable[[Completion, ChatRequest], bytes]
    """A client's answer to its request."""
    reader: Callable[[], StreamReader]
    """For one stream of a provider."""
    writer: Callable[[ChatRequest], StreamWriter]
    """For one stream to a client."""
    resumed_writer: Callable[[ChatRequest, bytes], StreamWriter]
    """For a stream to a client that has been sent these events already; it is not given a Begin."""
    final_events: tuple[str, ...] = ()
    """Types of the event that ends a stream; where there are none, `[DONE]` does."""
    whole_facts: "Callable[[dict[str, Json]], Facts]"
    """What a whole answer says about itself."""
    streamed_facts: "Callable[[bytes, list[dict[str, Json]], str | None], Facts]"
    """What a stream says about itself, given its bytes, its last events (newest first) and the error among them."""
    footer: "FooterRules"
    """How a line is added to an answer."""

    # Tool calls that are held back.
    calls: "CallRules"
    """How calls are found in answers."""
    read_attempt: AttemptReader
    call_results: "Callable[[Sequence[HeldCall], Sequence[str]], list[Json]]"
    """Messages that tell of each call a text in place of its tool's result."""
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
    """The format of a wire."""
    return _formats[wire]


def signed_wire(headers: Mapping[str, str]) -> Wire:
    """The wire that a client's headers show; chat completions where they show none."""
    return next((format_.wire for format_ in _formats.values() if format_.sign and format_.sign in headers), Wire.CHAT)


def wire_formats() -> Iterable[WireFormat]:
    """All formats, in the order of registration."""
    return _formats.values()

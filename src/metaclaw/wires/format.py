"""The one interface of all wires."""

from collections.abc import Sequence
from typing import Protocol

from metaclaw.domain.chat import ChatRequest, Completion, Delta, Json, Wire
from metaclaw.domain.enforcement import TrueAnswer
from metaclaw.wires.attempt import Attempt, HeldCall
from metaclaw.wires.chat import ChatFormat
from metaclaw.wires.messages import MessagesFormat
from metaclaw.wires.responses import ResponsesFormat


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


class WireFormat(Protocol):
    """A wire: its requests, answers, streams and errors, in terms of the domain's types."""

    def parse_request(self, body: dict[str, Json]) -> ChatRequest:
        """A client's body. Raises WireError with the name of the parameter that is wrong."""

    def render_request(self, request: ChatRequest) -> dict[str, Json]:
        """A provider's body. Raises WireError for what this wire cannot say and the request cannot do without."""

    def parse_answer(self, body: bytes) -> Completion:
        """A provider's answer. Raises UpstreamError."""

    def render_answer(self, completion: Completion, request: ChatRequest) -> bytes:
        """A client's answer to its request."""

    def reader(self) -> StreamReader:
        """For one stream of a provider."""

    def writer(self, request: ChatRequest) -> StreamWriter:
        """For one stream to a client."""

    def resumed_writer(self, request: ChatRequest, passed: bytes) -> StreamWriter:
        """For a stream to a client that has been sent these events already; it is not given a Begin."""

    def read_attempt(self, said: bytes, *, stream: bool) -> Attempt:
        """What a provider said, as it has to be told of it again. Raises UpstreamError."""

    def call_results(self, calls: Sequence[HeldCall], texts: Sequence[str]) -> list[Json]:
        """Messages that tell of each call a text in place of its tool's result."""

    def own_words(self, text: str) -> Json:
        """A message of the assistant with this text."""

    def restore(self, items: Sequence[Json], answer: TrueAnswer, messages: Sequence[Json]) -> list[Json] | None:
        """A request's messages with the true ones in place of what its client was shown; None where that is not among them."""

    def error_body(self, status: int, message: str, code: str, param: str | None) -> bytes:
        """An error answer in the wire's own shape."""

    def parse_error(self, status: int, body: bytes) -> tuple[str, str]:
        """Message and code of a provider's error answer. Never raises."""

    def error_event(self, message: str, code: str) -> bytes:
        """An error in the middle of a stream."""


_FORMATS: dict[Wire, WireFormat] = {Wire.CHAT: ChatFormat(), Wire.RESPONSES: ResponsesFormat(), Wire.MESSAGES: MessagesFormat()}


def wire_format(wire: Wire) -> WireFormat:
    """The format of a wire."""
    return _FORMATS[wire]

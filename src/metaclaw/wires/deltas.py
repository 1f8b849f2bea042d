"""Turn the events of a provider's stream into deltas, and deltas into answers."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol

from metaclaw.domain.chat import (
    Begin,
    Completion,
    Delta,
    End,
    Failed,
    Finish,
    Opaque,
    OpaqueDelta,
    Part,
    Reasoning,
    ReasoningDelta,
    Text,
    TextDelta,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    Wire,
)
from metaclaw.errors import UpstreamError
from metaclaw.wires.fields import Object, decode_object, decode_or_text, provider_at_fault
from metaclaw.wires.format import wire_format
from metaclaw.wires.sse import Event, EventParser

TRUNCATED = Failed(
    "the provider's stream ended before the answer was complete", "upstream_truncated"
)


class EventReader(Protocol):
    """Turns the events of one wire into deltas. `close` is called at the end of the stream: it
    returns an End if the answer was complete, else a Failed."""

    def event(self, name: str | None, body: Object) -> list[Delta]: ...
    def done(self) -> list[Delta]: ...
    def close(self) -> list[Delta]: ...


class SseReader:
    """Turns the bytes of a provider's stream into deltas, independent of how the bytes are split.
    Garbage gives a Failed. After an End or a Failed there are no more deltas."""

    def __init__(self, reader: EventReader) -> None:
        self._events = EventParser()
        self._reader = reader
        self._begun = False
        self._over = False

    def feed(self, data: bytes) -> list[Delta]:
        if self._over:
            return []
        try:
            return self._in_order(self._read(self._events.feed(data)))
        except UpstreamError as error:
            return self._fail(error)

    def close(self) -> list[Delta]:
        """Return the last deltas, once the provider has closed the stream: an End or a Failed if
        there was none yet.
        """
        if self._over:
            return []
        try:
            deltas = [delta for event in self._events.close() for delta in self._understand(event)]
        except UpstreamError:
            deltas = []  # the stream was cut off in the middle of its last event
        if not deltas or not isinstance(deltas[-1], End | Failed):
            deltas += self._reader.close()
        self._over = True
        return self._in_order(deltas)

    def _in_order(self, deltas: list[Delta]) -> list[Delta]:
        """Ensure exactly one Begin, before all other deltas: some servers omit it or send it
        twice.
        """
        ordered: list[Delta] = []
        for delta in deltas:
            if isinstance(delta, Begin):
                if self._begun:
                    continue
                self._begun = True
            elif not self._begun and not isinstance(delta, Failed):
                self._begun = True
                ordered.append(Begin("", ""))
            ordered.append(delta)
        return ordered

    def _read(self, events: list[Event]) -> list[Delta]:
        deltas: list[Delta] = []
        for event in events:
            try:
                deltas += self._understand(event)
            except UpstreamError as error:
                deltas += self._fail(error)
            if self._over or (deltas and isinstance(deltas[-1], End | Failed)):
                self._over = True
                break
        return deltas

    def _understand(self, event: Event) -> list[Delta]:
        if event.data.startswith("[DONE]"):
            return self._reader.done()
        if not event.data:
            return []
        with provider_at_fault("an event"):
            return self._reader.event(event.name, decode_object(event.data, "an event"))

    def _fail(self, error: UpstreamError) -> list[Delta]:
        self._over = True
        return [Failed(str(error), error.code)]


def collect(deltas: Iterable[Delta]) -> Completion:
    """Join deltas into an answer. Raises UpstreamError for a Failed, or if the End is missing."""
    begin, gathered = Begin("", ""), _Gathered()
    for delta in deltas:
        match delta:
            case Begin():
                begin = delta
            case Failed():
                raise UpstreamError(delta.message, code=delta.code)
            case End():
                parts, logprobs = (
                    tuple(growing.whole() for growing in gathered.growing),
                    tuple(gathered.logprobs),
                )
                usage = delta.usage or begin.usage
                return Completion(
                    begin.id,
                    begin.model,
                    parts,
                    delta.finish,
                    usage,
                    delta.tokens,
                    delta.stop_sequence,
                    logprobs,
                )
            case _:
                gathered.add(delta)
    raise UpstreamError(TRUNCATED.message, code=TRUNCATED.code)


class _Gathered:
    """Parts in the order they began. Pieces are joined only at the end, so that long answers take
    linear time.
    """

    def __init__(self) -> None:
        self.logprobs: list[TokenLogprob] = []
        self.growing: list[_Growing] = []
        self._calls: dict[int, _Growing] = {}

    def add(self, delta: TextDelta | ReasoningDelta | ToolCallDelta | OpaqueDelta) -> None:
        match delta:
            case TextDelta():
                self.logprobs += delta.logprobs
                if delta.text:
                    self._last(Text("")).pieces.append(delta.text)
            case ReasoningDelta():
                self._think(delta)
            case ToolCallDelta():
                if delta.index not in self._calls:
                    self._calls[delta.index] = self._begin(
                        ToolCall(delta.id or "", delta.name or "", "")
                    )
                self._calls[delta.index].pieces.append(delta.arguments)
            case OpaqueDelta():
                self._begin(delta.part)

    def _think(self, delta: ReasoningDelta) -> None:
        if not delta.text and delta.signature is None:
            return
        growing = self._begin(Reasoning("")) if delta.redacted else self._last(Reasoning(""))
        growing.pieces.append(delta.text)
        if delta.signature is not None:
            growing.kind = Reasoning("", delta.signature, delta.redacted)

    def _begin(self, kind: Part) -> "_Growing":
        self.growing.append(_Growing(kind))
        return self.growing[-1]

    def _last(self, kind: Text | Reasoning) -> "_Growing":
        """The last part if it is of this kind and still open, else a new one. A signature closes
        reasoning.
        """
        last = self.growing[-1] if self.growing else None
        if (
            last is not None
            and type(last.kind) is type(kind)
            and getattr(last.kind, "signature", None) is None
        ):
            return last
        return self._begin(kind)


@dataclass(slots=True)
class _Growing:
    kind: Part
    pieces: list[str] = field(default_factory=list)

    def whole(self) -> Part:
        text = "".join(self.pieces)
        match self.kind:
            case Text():
                return Text(text)
            case Reasoning(signature=signature, redacted=redacted):
                return Reasoning(text, signature, redacted)
            case ToolCall(id=identity, name=name):
                return ToolCall(identity, name, text)
            case other:
                return other


def deltas_of(completion: Completion) -> Iterator[Delta]:
    """A whole answer as deltas, for a client that asked for a stream."""
    yield Begin(completion.id, completion.model)
    logprobs = completion.logprobs
    calls = 0
    for part in completion.parts:
        match part:
            case Text():
                yield TextDelta(part.text, logprobs)
                logprobs = ()
            case Reasoning():
                yield ReasoningDelta(part.text, part.signature, part.redacted)
            case ToolCall():
                yield ToolCallDelta(calls, part.id, part.name, part.arguments)
                calls += 1
            case Opaque():
                yield OpaqueDelta(part)
            case _:
                pass
    if completion.finish is None:
        yield TRUNCATED
    else:
        yield End(completion.finish, completion.usage, completion.stop_sequence, completion.tokens)


@dataclass(slots=True)
class PendingCall:
    """A tool call that is being received. `unsaid` are the arguments that have not been written
    yet.
    """

    index: int
    id: str
    name: str
    pieces: list[str] = field(default_factory=list)
    unsaid: str = ""

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


class CallQueue:
    """Lets one call be written at a time; the others wait until its arguments are complete."""

    def __init__(self) -> None:
        self._calls: list[PendingCall] = []
        self._closed: set[int] = set()

    @property
    def open(self) -> PendingCall | None:
        return self._calls[0] if self._calls else None

    def add(self, delta: ToolCallDelta) -> None:
        """Add a piece. Raises UpstreamError for a piece of a call that is closed or never began."""
        call = next((call for call in self._calls if call.index == delta.index), None)
        if call is None:
            if delta.index in self._closed and not delta.arguments.strip():
                return
            if delta.name is None or delta.index in self._closed:
                raise UpstreamError(
                    "the provider sent a piece of a tool call that is not being made",
                    code="upstream_garbage",
                )
            call = PendingCall(delta.index, delta.id or f"call_{delta.index}", delta.name)
            self._calls.append(call)
        call.pieces.append(delta.arguments)
        call.unsaid += delta.arguments

    def add_said(self, delta: ToolCallDelta) -> None:
        """Add the beginning of a call that the client has already."""
        self.add(delta)
        self._calls[-1].unsaid = ""

    def write(
        self,
        say: Callable[[PendingCall], bytes],
        finish: Callable[[PendingCall], bytes],
        *,
        is_end: bool = False,
    ) -> bytes:
        """The bytes of the open call, and of those that wait for it: the next one begins at the end,
        or once the open one is complete, which means that its arguments are a JSON object.
        """
        said = b""
        while self._calls:
            call = self._calls[0]
            said += say(call)
            is_over = len(self._calls) > 1 and isinstance(decode_or_text(call.arguments), dict)
            if not (is_end or is_over):
                break
            self._closed.add(self._calls.pop(0).index)
            said += finish(call)
        return said


def read_answer(wire: Wire, stream: bool, body: bytes) -> Completion:
    """Parse an answer. Raises UpstreamError if it cannot be parsed or reports a failure."""
    return collect(_deltas(wire, body)) if stream else wire_format(wire).parse_answer(body)


def said_parts(
    wire: Wire, stream: bool, shown: bytes, *, partial: bool = False
) -> tuple[Part, ...]:
    """The parts of an answer; empty if it cannot be parsed. With `partial`, also the parts of a
    stream that ended too early.
    """
    try:
        if stream and partial:
            return collect(
                [
                    *takewhile(lambda delta: not isinstance(delta, Failed), _deltas(wire, shown)),
                    End(Finish.OTHER),
                ]
            ).parts
        return read_answer(wire, stream, shown).parts
    except UpstreamError:
        return ()


def _deltas(wire: Wire, body: bytes) -> list[Delta]:
    reader = wire_format(wire).reader()
    return [*reader.feed(body), *reader.close()]

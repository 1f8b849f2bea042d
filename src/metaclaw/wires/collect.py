"""Deltas gathered into a whole answer, and a whole answer taken apart into deltas."""

from collections.abc import Iterable, Iterator

from metaclaw.domain.chat import (
    Begin,
    Completion,
    Delta,
    End,
    Failed,
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
)
from metaclaw.errors import UpstreamError
from metaclaw.wires.reader import TRUNCATED


def collect(deltas: Iterable[Delta]) -> Completion:
    """The answer that deltas make. Raises UpstreamError if one tells of a failure, or if the End is missing."""
    begin, gathered = Begin("", ""), _Gathered()
    for delta in deltas:
        match delta:
            case Begin():
                begin = delta
            case Failed():
                raise UpstreamError(delta.message, code=delta.code)
            case End():
                logprobs = tuple(gathered.logprobs)
                usage = delta.usage or begin.usage
                return Completion(
                    begin.id, begin.model, gathered.parts(), delta.finish, usage, delta.tokens, delta.stop_sequence, logprobs
                )
            case _:
                gathered.add(delta)
    raise UpstreamError(TRUNCATED.message, code=TRUNCATED.code)


class _Gathered:
    """Parts in the order they began; pieces are joined only at the end, so that long answers stay linear."""

    def __init__(self) -> None:
        self.logprobs: list[TokenLogprob] = []
        self._parts: list[_Growing] = []
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
                    self._calls[delta.index] = self._begin(ToolCall(delta.id or "", delta.name or "", ""))
                self._calls[delta.index].pieces.append(delta.arguments)
            case OpaqueDelta():
                self._begin(delta.part)

    def parts(self) -> tuple[Part, ...]:
        return tuple(growing.whole() for growing in self._parts)

    def _think(self, delta: ReasoningDelta) -> None:
        if not delta.text and delta.signature is None:
            return
        growing = self._begin(Reasoning("")) if delta.redacted else self._last(Reasoning(""))
        growing.pieces.append(delta.text)
        if delta.signature is not None:
            growing.kind = Reasoning("", delta.signature, delta.redacted)

    def _begin(self, kind: Part) -> "_Growing":
        self._parts.append(_Growing(kind))
        return self._parts[-1]

    def _last(self, kind: Text | Reasoning) -> "_Growing":
        """The last part if it is of this kind and still open; a signature shuts a thought."""
        last = self._parts[-1] if self._parts else None
        if last is not None and type(last.kind) is type(kind) and getattr(last.kind, "signature", None) is None:
            return last
        return self._begin(kind)


class _Growing:
    __slots__ = ("kind", "pieces")

    def __init__(self, kind: Part) -> None:
        self.kind = kind
        self.pieces: list[str] = []

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
    """A whole answer as deltas, for a client that wants a stream of what came in one piece."""
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

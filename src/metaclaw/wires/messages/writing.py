"""An Anthropic message as it is made: deltas become events for a client."""

from enum import StrEnum
from typing import assert_never

from metaclaw.domain.chat import (
    Begin,
    ChatRequest,
    Delta,
    End,
    Failed,
    Opaque,
    OpaqueDelta,
    Reasoning,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Wire,
)
from metaclaw.wires.calls import Call, CallQueue
from metaclaw.wires.failure import anthropic_error
from metaclaw.wires.fields import Object, object_of
from metaclaw.wires.messages.answer import envelope, finish_word, render_usage, thinking_block
from metaclaw.wires.proof import show
from metaclaw.wires.sse import event_bytes


class _Open(StrEnum):
    TEXT = "text"
    THINKING = "thinking"
    CALL = "call"


class MessagesWriter:
    """Deltas as events: one content block at a time, each opened, filled and shut."""

    def __init__(self, request: ChatRequest) -> None:
        self._model = request.model
        self._open: _Open | None = None
        self._index = 0
        self._calls = CallQueue()

    def resume(self, blocks: int) -> None:
        """Go on with a message of so many blocks, all of them shut; the Begin is not to be written."""
        self._index = blocks

    def write(self, delta: Delta) -> bytes:
        """The bytes for one delta; those of an End make the answer whole."""
        match delta:
            case Begin():
                message = envelope(delta.id, delta.model or self._model, delta.usage)
                return _event("message_start", {"message": message})
            case TextDelta():
                if not delta.text:
                    return b""
                return self._enter(_Open.TEXT) + self._piece({"type": "text_delta", "text": delta.text})
            case ReasoningDelta():
                return self._think(delta)
            case ToolCallDelta():
                return self._call(delta)
            case OpaqueDelta():
                return self._opaque(delta.part)
            case End():
                return self._end(delta)
            case Failed():
                return event_bytes(anthropic_error(502, delta.message), "error")
            case _:
                assert_never(delta)

    def _enter(self, kind: _Open) -> bytes:
        """Make sure that a block of text or thinking is open."""
        if self._open is kind:
            return b""
        said = self._leave()
        self._open = kind
        block: Object = (
            {"type": "text", "text": ""} if kind is _Open.TEXT else {"type": "thinking", "thinking": "", "signature": ""}
        )
        return said + self._start(block)

    def _leave(self) -> bytes:
        """Shut what is open, and say the calls that still wait."""
        if self._open is None:
            return b""
        if self._open is not _Open.CALL:
            return self._stop()
        said = b""
        while (call := self._calls.open) is not None:
            said += self._say_call(call)
            self._calls.shut()
            said += self._stop()
        return said

    def _think(self, delta: ReasoningDelta) -> bytes:
        said = b""
        if delta.redacted and delta.signature is not None:
            block = thinking_block(Reasoning("", delta.signature, redacted=True))
            return self._leave() + self._start(block) + self._stop()
        if delta.text:
            said = self._enter(_Open.THINKING) + self._piece({"type": "thinking_delta", "thinking": delta.text})
        if delta.signature is not None:
            said += self._enter(_Open.THINKING)
            said += self._piece({"type": "signature_delta", "signature": show(Wire.MESSAGES, delta.signature)})
            said += self._stop()
        return said

    def _call(self, delta: ToolCallDelta) -> bytes:
        said = b"" if self._open is _Open.CALL else self._leave()
        self._calls.add(delta)
        while (call := self._calls.open) is not None:
            said += self._say_call(call)
            if not self._calls.is_next_due():
                break
            self._calls.shut()
            said += self._stop()
        return said

    def _say_call(self, call: Call) -> bytes:
        """What is new about the open call."""
        said = b""
        if self._open is not _Open.CALL:
            self._open = _Open.CALL
            said = self._start({"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
        if call.unsaid:
            said += self._piece({"type": "input_json_delta", "partial_json": call.unsaid})
            call.unsaid = ""
        return said

    def _opaque(self, part: Opaque) -> bytes:
        if part.wire is not Wire.MESSAGES:
            return b""
        return self._leave() + self._start(object_of(part.value)) + self._stop()

    def _start(self, block: Object) -> bytes:
        return _event("content_block_start", {"index": self._index, "content_block": block})

    def _piece(self, delta: Object) -> bytes:
        return _event("content_block_delta", {"index": self._index, "delta": delta})

    def _stop(self) -> bytes:
        said = _event("content_block_stop", {"index": self._index})
        self._index += 1
        self._open = None
        return said

    def _end(self, delta: End) -> bytes:
        why: Object = {"stop_reason": finish_word(delta.finish, delta.stop_sequence), "stop_sequence": delta.stop_sequence}
        return (
            self._leave() + _event("message_delta", {"delta": why, "usage": render_usage(delta.usage)}) + _event("message_stop", {})
        )


def _event(name: str, body: Object) -> bytes:
    return event_bytes({"type": name, **body}, name)

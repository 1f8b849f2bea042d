"""An Anthropic message as a provider makes it: events become deltas."""

from dataclasses import dataclass, field

from metaclaw.domain.chat import (
    Begin,
    Delta,
    End,
    Failed,
    Json,
    Opaque,
    OpaqueDelta,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Wire,
)
from metaclaw.wires.failure import error_of
from metaclaw.wires.fields import Fields, Object, encode_text, object_of, text_of
from metaclaw.wires.messages.answer import finish_of, usage_of
from metaclaw.wires.messages.rendering import tool_input
from metaclaw.wires.proof import seal
from metaclaw.wires.reader import TRUNCATED


@dataclass(slots=True)
class _Block:
    """A content block that is still open."""

    value: Object
    call: int | None = None
    has_input: bool = False
    signature: str = ""
    written: list[str] = field(default_factory=list)


class MessagesMeaning:
    """What the events of a message mean."""

    def __init__(self) -> None:
        self._blocks: dict[Json, _Block] = {}
        self._call_count = 0
        self._stop_reason: Json = None
        self._stop_sequence: str | None = None
        self._usage: Object = {}

    def event(self, name: str | None, body: Object) -> list[Delta]:
        match text_of(body.get("type")) or name:
            case "message_start":
                return self._start(Fields(body.get("message"), "message"))
            case "content_block_start":
                return self._open(body.get("index"), Fields(body.get("content_block"), "content_block"))
            case "content_block_delta":
                return self._more(body.get("index"), Fields(body.get("delta"), "delta"))
            case "content_block_stop":
                return self._shut(body.get("index"))
            case "message_delta":
                self._count(body.get("usage"))
                delta = object_of(body.get("delta"))
                self._stop_reason = delta.get("stop_reason") or self._stop_reason
                self._stop_sequence = text_of(delta.get("stop_sequence")) or self._stop_sequence
                return []
            case "message_stop":
                self._stop_reason = self._stop_reason or "end_turn"
                return self.close()
            case "error":
                message, code = error_of(body)
                return [Failed(message or "the provider reported an error", code or "upstream_error")]
            case _:
                return []

    def done(self) -> list[Delta]:
        return self.close()

    def close(self) -> list[Delta]:
        finish = finish_of(self._stop_reason)
        return [TRUNCATED] if finish is None else [End(finish, usage_of(self._usage or None), self._stop_sequence)]

    def _start(self, message: Fields) -> list[Delta]:
        usage = message.pop("usage")
        self._count(usage)
        return [Begin(message.maybe_text("id") or "", message.maybe_text("model") or "", usage_of(usage))]

    def _count(self, usage: Json) -> None:
        """Counts are cumulative, and the last event may leave out what the first one told."""
        self._usage |= {name: value for name, value in object_of(usage).items() if value is not None}

    def _open(self, index: Json, block: Fields) -> list[Delta]:
        kind = block.text("type")
        opened = self._blocks[index] = _Block({"type": kind, **block.rest()})
        match kind:
            case "text":
                text = text_of(block.pop("text"))
                return [TextDelta(text)] if text else []
            case "thinking":
                opened.signature = text_of(block.pop("signature"))
                text = text_of(block.pop("thinking"))
                return [ReasoningDelta(text)] if text else []
            case "redacted_thinking":
                signature, _ = seal(Wire.MESSAGES, block.text("data"))
                return [ReasoningDelta("", signature, redacted=True)]
            case "tool_use":
                return [self._call(opened, block)]
            case _:
                return []

    def _call(self, opened: _Block, block: Fields) -> ToolCallDelta:
        opened.call = self._call_count
        self._call_count += 1
        identity, name, given = block.text("id"), block.text("name"), block.maybe_object("input")
        opened.has_input = bool(given)
        return ToolCallDelta(opened.call, identity, name, encode_text(given) if given else "")

    def _more(self, index: Json, delta: Fields) -> list[Delta]:
        block = self._blocks.get(index)
        if block is None:
            return []
        match delta.text("type"):
            case "text_delta" if block.value.get("type") == "text":
                return [TextDelta(delta.text("text"))]
            case "thinking_delta":
                return [ReasoningDelta(delta.text("thinking"))]
            case "signature_delta":
                block.signature += delta.text("signature")
                return []
            case "input_json_delta":
                return self._arguments(block, delta.text("partial_json"))
            case _:
                return []

    def _arguments(self, block: _Block, text: str) -> list[Delta]:
        if block.call is None:
            block.written.append(text)
            return []
        block.has_input = block.has_input or bool(text)
        return [ToolCallDelta(block.call, None, None, text)] if text else []

    def _shut(self, index: Json) -> list[Delta]:
        block = self._blocks.pop(index, None)
        if block is None:
            return []
        match block.value.get("type"):
            case "text" | "redacted_thinking":
                return []
            case "thinking":
                signature, hidden = seal(Wire.MESSAGES, block.signature)
                return [ReasoningDelta("", signature, hidden)] if signature else []
            case "tool_use":
                return [] if block.has_input or block.call is None else [ToolCallDelta(block.call, None, None, "{}")]
            case _:
                return [OpaqueDelta(Opaque(Wire.MESSAGES, _whole(block)))]


def _whole(block: _Block) -> Object:
    """A block of a kind we only carry, with the input that came in pieces."""
    if not block.written:
        return block.value
    return {**block.value, "input": tool_input("".join(block.written))}

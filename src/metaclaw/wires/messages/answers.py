"""Anthropic messages answers, whole or streamed: parse a provider's, and write a client's."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import assert_never

from metaclaw.domain.chat import (
    Begin,
    ChatRequest,
    Completion,
    Delta,
    End,
    Failed,
    Finish,
    Json,
    Opaque,
    OpaqueDelta,
    Part,
    Reasoning,
    ReasoningDelta,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
    Wire,
)
from metaclaw.wires.deltas import TRUNCATED, CallQueue, PendingCall
from metaclaw.wires.fields import (
    Fields,
    Object,
    decode_object,
    encode_json,
    encode_text,
    object_of,
    provider_at_fault,
    text_of,
    whole,
)
from metaclaw.wires.format import (
    Facts,
    anthropic_error,
    error_of,
    facts_of,
    first_event,
    missing,
    reported_error,
)
from metaclaw.wires.messages.requests import thinking, tool_input, tool_use
from metaclaw.wires.sse import event_bytes
from metaclaw.wires.translation import (
    client_signature,
    prefixed_id,
    provider_signature,
    tagged_signature,
)

ID_PREFIX = "msg_"
_FINISHES = {
    "end_turn": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "max_tokens": Finish.LENGTH,
    "model_context_window_exceeded": Finish.LENGTH,
    "tool_use": Finish.TOOL_CALLS,
    "refusal": Finish.CONTENT_FILTER,
}
_WORDS = {
    Finish.LENGTH: "max_tokens",
    Finish.TOOL_CALLS: "tool_use",
    Finish.CONTENT_FILTER: "refusal",
}


def parse_answer(body: bytes) -> Completion:
    """Parse a provider's answer. Raises UpstreamError if it is not a message."""
    value = decode_object(body, "an answer")
    if value.get("type") == "error" or value.get("error"):
        raise reported_error(value)
    with provider_at_fault("an answer"):
        fields = Fields(value, "")
        return Completion(
            id=fields.maybe_text("id") or "",
            model=fields.maybe_text("model") or "",
            parts=tuple(parts_of(fields.list("content"))),
            finish=finish_of(fields.pop("stop_reason")),
            usage=usage_of(fields.pop("usage")),
            stop_sequence=fields.maybe_text("stop_sequence"),
        )


def parts_of(content: list[Json]) -> Iterable[Part]:
    """The parts of an answer with these blocks."""
    for number, block in enumerate(content):
        fields = Fields(block, f"content[{number}]")
        match fields.text("type"):
            case "text":
                if text := fields.text("text"):
                    yield Text(text)
            case "thinking" | "redacted_thinking" as kind:
                found = thinking(fields, redacted=kind == "redacted_thinking")
                yield Reasoning(found.text, found.signature, found.redacted)
            case "tool_use":
                call = tool_use(fields)
                yield ToolCall(call.id, call.name, call.arguments)
            case _:
                yield Opaque(Wire.MESSAGES, block)


def finish_of(word: Json) -> Finish | None:
    return _FINISHES.get(word, Finish.OTHER) if isinstance(word, str) else None


def finish_word(finish: Finish | None, stop_sequence: str | None) -> str:
    if finish is Finish.STOP and stop_sequence is not None:
        return "stop_sequence"
    return _WORDS.get(finish, "end_turn") if finish is not None else "end_turn"


def usage_of(value: Json) -> Usage | None:
    """Token counts. In this wire `input_tokens` does not include the cached tokens."""
    if not isinstance(value, dict):
        return None
    cached, written = (
        whole(value.get("cache_read_input_tokens")),
        whole(value.get("cache_creation_input_tokens")),
    )
    return Usage(
        input_tokens=whole(whole(value.get("input_tokens")) + cached + written),
        output_tokens=whole(value.get("output_tokens")),
        cached_tokens=cached,
        cache_write_tokens=written,
        reasoning_tokens=whole(
            object_of(value.get("output_tokens_details")).get("thinking_tokens")
        ),
    )


def render_usage(usage: Usage | None) -> Object:
    """Token counts for a client; zero if they are unknown, because the wire requires numbers."""
    counted = usage or Usage(0, 0)
    body: Object = {
        "input_tokens": max(
            0, counted.input_tokens - counted.cached_tokens - counted.cache_write_tokens
        ),
        "cache_creation_input_tokens": counted.cache_write_tokens,
        "cache_read_input_tokens": counted.cached_tokens,
        "output_tokens": counted.output_tokens,
    }
    if counted.reasoning_tokens:
        body["output_tokens_details"] = {"thinking_tokens": counted.reasoning_tokens}
    return body


def render_answer(completion: Completion, request: ChatRequest) -> bytes:
    body = envelope(completion.id, completion.model or request.model, completion.usage)
    body["content"] = [block for part in completion.parts if (block := _block(part)) is not None]
    body["stop_reason"] = finish_word(completion.finish, completion.stop_sequence)
    body["stop_sequence"] = completion.stop_sequence
    return encode_json(body)


def envelope(identity: str, model: str, usage: Usage | None) -> Object:
    """A message without content."""
    return {
        "id": prefixed_id(ID_PREFIX, identity),
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": render_usage(usage),
    }


def _block(part: Part) -> Object | None:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Reasoning():
            return thinking_block(part)
        case ToolCall():
            return {
                "type": "tool_use",
                "id": part.id,
                "name": part.name,
                "input": tool_input(part.arguments),
            }
        case Opaque() if part.wire is Wire.MESSAGES:
            return dict(object_of(part.value))
        case _:
            return None


def thinking_block(part: Reasoning) -> Object:
    """Reasoning for a client of this wire. The signature may be a tagged one of another wire."""
    if part.redacted and (data := provider_signature(Wire.MESSAGES, part.signature)) is not None:
        return {"type": "redacted_thinking", "data": data}
    signature = (
        ""
        if part.signature is None
        else client_signature(Wire.MESSAGES, part.signature, redacted=part.redacted)
    )
    return {"type": "thinking", "thinking": part.text, "signature": signature}


@dataclass(slots=True)
class _Block:
    """A content block that is still open."""

    value: Object
    call: int | None = None
    has_input: bool = False
    signature: str = ""
    written: list[str] = field(default_factory=list)


class MessagesEventReader:
    """Turns the events of a message into deltas."""

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
                return self._open_block(
                    body.get("index"), Fields(body.get("content_block"), "content_block")
                )
            case "content_block_delta":
                return self._more(body.get("index"), Fields(body.get("delta"), "delta"))
            case "content_block_stop":
                return self._close_block(body.get("index"))
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
                return [
                    Failed(message or "the provider reported an error", code or "upstream_error")
                ]
            case _:
                return []

    def done(self) -> list[Delta]:
        return self.close()

    def close(self) -> list[Delta]:
        finish = finish_of(self._stop_reason)
        return (
            [TRUNCATED]
            if finish is None
            else [End(finish, usage_of(self._usage or None), self._stop_sequence)]
        )

    def _start(self, message: Fields) -> list[Delta]:
        usage = message.pop("usage")
        self._count(usage)
        return [
            Begin(
                message.maybe_text("id") or "", message.maybe_text("model") or "", usage_of(usage)
            )
        ]

    def _count(self, usage: Json) -> None:
        """Merge token counts: they are cumulative, and the last event may omit counts of the
        first.
        """
        self._usage |= {
            name: value for name, value in object_of(usage).items() if value is not None
        }

    def _open_block(self, index: Json, block: Fields) -> list[Delta]:
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
                signature, _ = tagged_signature(Wire.MESSAGES, block.text("data"))
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

    def _close_block(self, index: Json) -> list[Delta]:
        block = self._blocks.pop(index, None)
        if block is None:
            return []
        match block.value.get("type"):
            case "text" | "redacted_thinking":
                return []
            case "thinking":
                signature, hidden = tagged_signature(Wire.MESSAGES, block.signature)
                return [ReasoningDelta("", signature, hidden)] if signature else []
            case "tool_use":
                return (
                    []
                    if block.has_input or block.call is None
                    else [ToolCallDelta(block.call, None, None, "{}")]
                )
            case _:
                given: Object = (
                    {"input": tool_input("".join(block.written))} if block.written else {}
                )
                return [OpaqueDelta(Opaque(Wire.MESSAGES, {**block.value, **given}))]


class MessagesWriter:
    """Writes deltas as events: one content block at a time, each started, filled and stopped."""

    def __init__(self, request: ChatRequest) -> None:
        self._model = request.model
        self._open = ""  # the type of the open block
        self._index = 0
        self._calls = CallQueue()

    def resume(self, blocks: int) -> None:
        """Continue a message that has this number of blocks, all of them stopped; `write` must not
        be given a Begin.
        """
        self._index = blocks

    def write(self, delta: Delta) -> bytes:
        """Return the bytes for one delta."""
        match delta:
            case Begin():
                message = envelope(delta.id, delta.model or self._model, delta.usage)
                return _event("message_start", {"message": message})
            case TextDelta():
                if not delta.text:
                    return b""
                return self._enter("text") + self._piece({"type": "text_delta", "text": delta.text})
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

    def write_whole(self, text: str) -> bytes:
        """Return the bytes for a block that has just this text."""
        return self.write(TextDelta(text)) + self._leave()

    def _enter(self, kind: str) -> bytes:
        """Make sure that a block of text or thinking is open."""
        if self._open == kind:
            return b""
        said = self._leave()
        self._open = kind
        block: Object = (
            {"type": "text", "text": ""}
            if kind == "text"
            else {"type": "thinking", "thinking": "", "signature": ""}
        )
        return said + self._start(block)

    def _leave(self) -> bytes:
        """Stop the open block, and write the waiting calls."""
        if not self._open:
            return b""
        if self._open != "tool_use":
            return self._stop()
        return self._calls.write(self._say_call, lambda call: self._stop(), is_end=True)

    def _think(self, delta: ReasoningDelta) -> bytes:
        said = b""
        if delta.redacted and delta.signature is not None:
            block = thinking_block(Reasoning("", delta.signature, redacted=True))
            return self._leave() + self._start(block) + self._stop()
        if delta.text:
            said = self._enter("thinking") + self._piece(
                {"type": "thinking_delta", "thinking": delta.text}
            )
        if delta.signature is not None:
            said += self._enter("thinking")
            said += self._piece(
                {
                    "type": "signature_delta",
                    "signature": client_signature(Wire.MESSAGES, delta.signature),
                }
            )
            said += self._stop()
        return said

    def _call(self, delta: ToolCallDelta) -> bytes:
        said = b"" if self._open == "tool_use" else self._leave()
        self._calls.add(delta)
        return said + self._calls.write(self._say_call, lambda call: self._stop())

    def _say_call(self, call: PendingCall) -> bytes:
        said = b""
        if self._open != "tool_use":
            self._open = "tool_use"
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
        self._open = ""
        return said

    def _end(self, delta: End) -> bytes:
        why: Object = {
            "stop_reason": finish_word(delta.finish, delta.stop_sequence),
            "stop_sequence": delta.stop_sequence,
        }
        return (
            self._leave()
            + _event("message_delta", {"delta": why, "usage": render_usage(delta.usage)})
            + _event("message_stop", {})
        )


def _event(name: str, body: Object) -> bytes:
    return event_bytes({"type": name, **body}, name)


def whole_facts(body: Object) -> Facts:
    finish, usage = finish_of(body.get("stop_reason")), usage_of(body.get("usage"))
    return facts_of(body, finish, usage, missing("content", isinstance(body.get("content"), list)))


def streamed_facts(stream: bytes, last: list[Object], failure: str | None) -> Facts:
    message = object_of(first_event(stream).get("message"))
    final = next((body for body in last if body.get("type") == "message_delta"), {})
    counts = {
        name: value for name, value in object_of(final.get("usage")).items() if value is not None
    }
    usage = usage_of({**object_of(message.get("usage")), **counts} or None)
    finish = finish_of(object_of(final.get("delta")).get("stop_reason"))
    return Facts(
        text_of(message.get("id")) or None,
        text_of(message.get("model")) or None,
        finish,
        usage,
        failure,
    )

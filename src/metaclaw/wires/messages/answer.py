"""A whole Anthropic message: parsed from a provider, rendered for a client."""

from collections.abc import Iterable

from metaclaw.domain.chat import ChatRequest, Completion, Finish, Json, Opaque, Part, Reasoning, Text, ToolCall, Usage, Wire
from metaclaw.domain.ids import new_id
from metaclaw.wires.failure import reported_error
from metaclaw.wires.fields import Fields, Object, decode_object, encode, object_of, provider_at_fault, whole
from metaclaw.wires.messages.parsing import thinking, tool_use
from metaclaw.wires.messages.rendering import tool_input
from metaclaw.wires.proof import show, unseal

_FINISHES = {
    "end_turn": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "max_tokens": Finish.LENGTH,
    "model_context_window_exceeded": Finish.LENGTH,
    "tool_use": Finish.TOOL_CALLS,
    "refusal": Finish.CONTENT_FILTER,
}
_WORDS = {Finish.LENGTH: "max_tokens", Finish.TOOL_CALLS: "tool_use", Finish.CONTENT_FILTER: "refusal"}


def parse_answer(body: bytes) -> Completion:
    """A provider's message. Raises UpstreamError if it is none."""
    value = decode_object(body, "an answer")
    if value.get("type") == "error" or value.get("error"):
        raise reported_error(value)
    with provider_at_fault("an answer"):
        fields = Fields(value, "")
        return Completion(
            id=fields.maybe_text("id") or "",
            model=fields.maybe_text("model") or "",
            parts=tuple(_parts(fields.list("content"))),
            finish=finish_of(fields.pop("stop_reason")),
            usage=usage_of(fields.pop("usage")),
            stop_sequence=fields.maybe_text("stop_sequence"),
        )


def _parts(content: list[Json]) -> Iterable[Part]:
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
    """Why an answer ended."""
    return _FINISHES.get(word, Finish.OTHER) if isinstance(word, str) else None


def finish_word(finish: Finish | None, stop_sequence: str | None) -> str:
    """The wire's word for why an answer ended."""
    if finish is Finish.STOP and stop_sequence is not None:
        return "stop_sequence"
    return _WORDS.get(finish, "end_turn") if finish is not None else "end_turn"


def usage_of(value: Json) -> Usage | None:
    """Token counts; on this wire the cached ones stand apart from the rest."""
    if not isinstance(value, dict):
        return None
    cached, written = whole(value.get("cache_read_input_tokens")), whole(value.get("cache_creation_input_tokens"))
    return Usage(
        input_tokens=whole(whole(value.get("input_tokens")) + cached + written),
        output_tokens=whole(value.get("output_tokens")),
        cached_tokens=cached,
        cache_write_tokens=written,
        reasoning_tokens=whole(object_of(value.get("output_tokens_details")).get("thinking_tokens")),
    )


def render_usage(usage: Usage | None) -> Object:
    """Token counts in the wire's words; where nobody counted they are zero, for the wire demands numbers."""
    counted = usage or Usage(0, 0)
    body: Object = {
        "input_tokens": max(0, counted.input_tokens - counted.cached_tokens - counted.cache_write_tokens),
        "cache_creation_input_tokens": counted.cache_write_tokens,
        "cache_read_input_tokens": counted.cached_tokens,
        "output_tokens": counted.output_tokens,
    }
    if counted.reasoning_tokens:
        body["output_tokens_details"] = {"thinking_tokens": counted.reasoning_tokens}
    return body


def render_answer(completion: Completion, request: ChatRequest) -> bytes:
    """The body a messages client gets."""
    body = envelope(completion.id, completion.model or request.model, completion.usage)
    body["content"] = [block for part in completion.parts if (block := _block(part)) is not None]
    body["stop_reason"] = finish_word(completion.finish, completion.stop_sequence)
    body["stop_sequence"] = completion.stop_sequence
    return encode(body)


def envelope(identity: str, model: str, usage: Usage | None) -> Object:
    """A message with nothing in it yet."""
    own = identity if identity.startswith("msg_") else f"msg_{identity}"
    return {
        "id": own if identity else new_id("msg_"),
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
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": tool_input(part.arguments)}
        case Opaque() if part.wire is Wire.MESSAGES:
            return dict(object_of(part.value))
        case _:
            return None


def thinking_block(part: Reasoning) -> Object:
    """Thinking as a client of this wire keeps it; proofs of other wires' providers travel in the signature."""
    if part.redacted and (data := unseal(Wire.MESSAGES, part.signature)) is not None:
        return {"type": "redacted_thinking", "data": data}
    signature = "" if part.signature is None else show(Wire.MESSAGES, part.signature, redacted=part.redacted)
    return {"type": "thinking", "thinking": part.text, "signature": signature}

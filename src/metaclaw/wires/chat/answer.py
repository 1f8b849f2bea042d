"""A whole chat completion: parsed from a provider, rendered for a client."""

import time
from collections.abc import Iterable, Sequence

from metaclaw.domain.chat import ChatRequest, Completion, Finish, Json, Part, Reasoning, Text, TokenLogprob, ToolCall, Usage
from metaclaw.domain.ids import new_id
from metaclaw.wires.chat.parsing import tool_call
from metaclaw.wires.failure import reported_error
from metaclaw.wires.fields import Fields, Object, decode_object, encode, object_of, provider_at_fault, text_of, whole
from metaclaw.wires.tools import ClientTools, Kind, custom_input

_FINISHES = {
    "stop": Finish.STOP,
    "length": Finish.LENGTH,
    "tool_calls": Finish.TOOL_CALLS,
    "function_call": Finish.TOOL_CALLS,
    "content_filter": Finish.CONTENT_FILTER,
}


def parse_answer(body: bytes) -> Completion:
    """A provider's chat completion. Raises UpstreamError if it is none."""
    value = decode_object(body, "an answer")
    if value.get("error") and not value.get("choices"):
        raise reported_error(value)
    with provider_at_fault("an answer"):
        fields = Fields(value, "")
        choices = fields.list("choices")
        choice = Fields(choices[0] if choices else None, "choices[0]")
        parts = tuple(_parts(Fields(choice.pop("message"), "choices[0].message")))
        return Completion(
            id=fields.maybe_text("id") or "",
            model=fields.maybe_text("model") or "",
            parts=parts,
            finish=finish_of(choice.pop("finish_reason"), called=any(isinstance(part, ToolCall) for part in parts)),
            usage=usage_of(fields.pop("usage")),
            stop_sequence=text_of(choice.pop("stop_reason")) or None,
            logprobs=logprobs_of(choice.pop("logprobs")),
        )


def _parts(message: Fields) -> Iterable[Part]:
    thought = message.pop("reasoning_content") or message.pop("reasoning")
    if isinstance(thought, str) and thought:
        yield Reasoning(thought)
    content = message.pop("content")
    if isinstance(content, list):
        content = "".join(text_of(object_of(part).get("text")) for part in content)
    for text in (content, message.pop("refusal")):
        if isinstance(text, str) and text:
            yield Text(text)
    for number, call in enumerate(message.maybe_list("tool_calls") or ()):
        found = tool_call(call, f"{message.path('tool_calls')}[{number}]")
        yield ToolCall(found.id, found.name, found.arguments)


def finish_of(word: Json, *, called: bool) -> Finish | None:
    """Why an answer ended; some servers say `stop` after tool calls."""
    if not isinstance(word, str) or not word:
        return None
    finish = _FINISHES.get(word) or Finish.OTHER
    return Finish.TOOL_CALLS if called and finish is Finish.STOP else finish


def finish_word(finish: Finish | None) -> str:
    """The wire's word for why an answer ended."""
    return Finish.STOP.value if finish in (None, Finish.OTHER) else finish.value


def usage_of(value: Json) -> Usage | None:
    """Token counts, as far as the provider gives them."""
    if not isinstance(value, dict):
        return None
    given, produced = whole(value.get("prompt_tokens")), whole(value.get("completion_tokens"))
    if "prompt_tokens_details" not in value and "completion_tokens_details" not in value:
        return Usage(given, produced)
    read, written = object_of(value.get("prompt_tokens_details")), object_of(value.get("completion_tokens_details"))
    return Usage(
        input_tokens=given,
        output_tokens=produced,
        cached_tokens=whole(read.get("cached_tokens")),
        cache_write_tokens=whole(read.get("cache_write_tokens")),
        reasoning_tokens=whole(written.get("reasoning_tokens")),
    )


def render_usage(usage: Usage) -> Object:
    """Token counts in the wire's words."""
    read: Object = {"cached_tokens": usage.cached_tokens}
    if usage.cache_write_tokens:
        read["cache_write_tokens"] = usage.cache_write_tokens
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": read,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def logprobs_of(value: Json) -> tuple[TokenLogprob, ...]:
    """The log-probabilities of a choice's content."""
    content = object_of(value).get("content")
    return tuple(map(token_logprob, content)) if isinstance(content, list) else ()


def token_logprob(value: Json) -> TokenLogprob:
    """One token's entry."""
    entry = object_of(value)
    top = entry.get("top_logprobs")
    others = [object_of(item) for item in top] if isinstance(top, list) else []
    return TokenLogprob(
        text_of(entry.get("token")),
        _probability(entry.get("logprob")),
        tuple((text_of(other.get("token")), _probability(other.get("logprob"))) for other in others),
    )


def _probability(value: Json) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def render_logprobs(logprobs: Sequence[TokenLogprob]) -> list[Json]:
    """Entries as both of OpenAI's wires write them."""
    return [
        {**_entry(item.token, item.logprob), "top_logprobs": [_entry(token, logprob) for token, logprob in item.top]}
        for item in logprobs
    ]


def _entry(token: str, logprob: float) -> Object:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode("utf-8", "replace"))}


def render_answer(completion: Completion, request: ChatRequest) -> bytes:
    """The body a chat client gets."""
    logprobs: Json = {"content": render_logprobs(completion.logprobs), "refusal": None} if completion.logprobs else None
    choice: Object = {
        "index": 0,
        "message": _message(completion, ClientTools(request)),
        "logprobs": logprobs,
        "finish_reason": finish_word(completion.finish),
    }
    body: Object = {
        "id": answer_id(completion.id),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": completion.model or request.model,
        "choices": [choice],
    }
    if completion.usage is not None:
        body["usage"] = render_usage(completion.usage)
    return encode(body)


def answer_id(identity: str) -> str:
    """An id that looks like this wire's."""
    if not identity:
        return new_id("chatcmpl-")
    return identity if identity.startswith("chatcmpl-") else f"chatcmpl-{identity}"


def _message(completion: Completion, tools: ClientTools) -> Object:
    parts = completion.parts
    calls = [part for part in parts if isinstance(part, ToolCall)]
    text = "\n\n".join(part.text for part in parts if isinstance(part, Text))
    message: Object = {"role": "assistant", "content": text or (None if calls else ""), "refusal": None}
    if thought := "\n\n".join(part.text for part in parts if isinstance(part, Reasoning) and part.text):
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [{"id": call.id, **render_call(call.name, call.arguments, tools)} for call in calls]
    return message


def render_call(name: str, arguments: str, tools: ClientTools) -> Object:
    """A call in the kind the client asked for."""
    spoken = tools.spoken(name)
    if spoken.kind is Kind.CUSTOM:
        return {"type": "custom", "custom": {"name": spoken.name, "input": custom_input(arguments)}}
    return {"type": "function", "function": {"name": spoken.name, "arguments": arguments}}

"""Chat completions answers, whole or streamed: parse a provider's, and write a client's."""

from collections.abc import Iterable, Sequence
from typing import assert_never

from metaclaw.clock import utc_now
from metaclaw.domain.chat import (
    Begin,
    ChatRequest,
    Completion,
    Delta,
    End,
    Failed,
    Finish,
    Json,
    OpaqueDelta,
    Part,
    Reasoning,
    ReasoningDelta,
    Text,
    TextDelta,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from metaclaw.wires.chat.requests import tool_call
from metaclaw.wires.deltas import TRUNCATED
from metaclaw.wires.fields import (
    Fields,
    Object,
    decode_object,
    encode_json,
    list_of,
    object_of,
    provider_at_fault,
    text_of,
    whole,
)
from metaclaw.wires.format import (
    Facts,
    Kind,
    error_of,
    facts_of,
    first_event,
    first_object,
    missing,
    openai_error,
    reported_error,
)
from metaclaw.wires.sse import event_bytes
from metaclaw.wires.translation import ClientTools, custom_input, prefixed_id

ID_PREFIX = "chatcmpl-"
_FINISHES = {
    "stop": Finish.STOP,
    "length": Finish.LENGTH,
    "tool_calls": Finish.TOOL_CALLS,
    "function_call": Finish.TOOL_CALLS,
    "content_filter": Finish.CONTENT_FILTER,
}


def parse_answer(body: bytes) -> Completion:
    """Parse a provider's answer. Raises UpstreamError if it is not a chat completion."""
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
            finish=finish_of(
                choice.pop("finish_reason"),
                called=any(isinstance(part, ToolCall) for part in parts),
            ),
            usage=usage_of(fields.pop("usage")),
            stop_sequence=text_of(choice.pop("stop_reason")) or None,
            logprobs=logprobs_of(choice.pop("logprobs")),
        )


def _parts(message: Fields) -> Iterable[Part]:
    thought = message.pop("reasoning_content") or message.pop("reasoning")
    if isinstance(thought, str) and thought:
        yield Reasoning(thought)
    for text in (_words(message.pop("content")), text_of(message.pop("refusal"))):
        if text:
            yield Text(text)
    for number, call in enumerate(message.maybe_list("tool_calls") or ()):
        known = (
            call
            if text_of(object_of(call).get("id"))
            else {**object_of(call), "id": f"call_{number}"}
        )
        found = tool_call(known, f"{message.path('tool_calls')}[{number}]")
        yield ToolCall(found.id, found.name, found.arguments)


def _words(content: Json) -> str:
    """The text of an answer, or of a piece of one. Some servers send it as a list of parts."""
    if isinstance(content, list):
        return "".join(text_of(object_of(part).get("text")) for part in content)
    return text_of(content)


def finish_of(word: Json, *, called: bool) -> Finish | None:
    """The finish reason. Some servers send `stop` after tool calls."""
    if not isinstance(word, str) or not word:
        return None
    finish = _FINISHES.get(word) or Finish.OTHER
    return Finish.TOOL_CALLS if called and finish is Finish.STOP else finish


def finish_word(finish: Finish | None) -> str:
    return Finish.STOP.value if finish in (None, Finish.OTHER) else finish.value


def usage_of(
    value: Json, given: str = "prompt_tokens", produced: str = "completion_tokens"
) -> Usage | None:
    """Token counts of OpenAI's wires; 0 for counts that the provider omits."""
    if not isinstance(value, dict):
        return None
    read, written = (
        object_of(value.get(f"{given}_details")),
        object_of(value.get(f"{produced}_details")),
    )
    return Usage(
        input_tokens=whole(value.get(given)),
        output_tokens=whole(value.get(produced)),
        cached_tokens=whole(read.get("cached_tokens")),
        cache_write_tokens=whole(read.get("cache_write_tokens")),
        reasoning_tokens=whole(written.get("reasoning_tokens")),
    )


def render_usage(usage: Usage) -> Object:
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
    return tuple(map(token_logprob, list_of(object_of(value).get("content"))))


def token_logprob(value: Json) -> TokenLogprob:
    entry = object_of(value)
    others = map(object_of, list_of(entry.get("top_logprobs")))
    top = tuple(
        (text_of(other.get("token")), _probability(other.get("logprob"))) for other in others
    )
    return TokenLogprob(text_of(entry.get("token")), _probability(entry.get("logprob")), top)


def _probability(value: Json) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def render_logprobs(logprobs: Sequence[TokenLogprob]) -> list[Json]:
    """Log-probabilities in the form of OpenAI's two wires."""
    return [
        {
            **_entry(item.token, item.logprob),
            "top_logprobs": [_entry(token, logprob) for token, logprob in item.top],
        }
        for item in logprobs
    ]


def _entry(token: str, logprob: float) -> Object:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode("utf-8", "replace"))}


def render_answer(completion: Completion, request: ChatRequest) -> bytes:
    logprobs: Json = (
        {"content": render_logprobs(completion.logprobs), "refusal": None}
        if completion.logprobs
        else None
    )
    choice: Object = {
        "index": 0,
        "message": _message(completion, ClientTools(request)),
        "logprobs": logprobs,
        "finish_reason": finish_word(completion.finish),
    }
    body: Object = {
        "id": prefixed_id(ID_PREFIX, completion.id),
        "object": "chat.completion",
        "created": int(utc_now().timestamp()),
        "model": completion.model or request.model,
        "choices": [choice],
    }
    if completion.usage is not None:
        body["usage"] = render_usage(completion.usage)
    return encode_json(body)


def _message(completion: Completion, tools: ClientTools) -> Object:
    parts = completion.parts
    calls = [part for part in parts if isinstance(part, ToolCall)]
    text = "\n\n".join(part.text for part in parts if isinstance(part, Text))
    message: Object = {
        "role": "assistant",
        "content": text or (None if calls else ""),
        "refusal": None,
    }
    if thought := "\n\n".join(
        part.text for part in parts if isinstance(part, Reasoning) and part.text
    ):
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [
            {"id": call.id, **render_call(call.name, call.arguments, tools)} for call in calls
        ]
    return message


def render_call(name: str, arguments: str, tools: ClientTools) -> Object:
    """A call of the kind that the client offered the tool as."""
    spoken = tools.client_tool(name)
    if spoken.kind is Kind.CUSTOM:
        return {"type": "custom", "custom": {"name": spoken.name, "input": custom_input(arguments)}}
    return {"type": "function", "function": {"name": spoken.name, "arguments": arguments}}


class ChatEventReader:
    """Turns chunks into deltas. The End waits for `[DONE]` or the close, because usage comes after
    the finish reason.
    """

    def __init__(self) -> None:
        self._id = ""
        self._model = ""
        self._begun = False
        self._finish_word: Json = None
        self._stop_sequence: str | None = None
        self._usage: Usage | None = None
        self._calls: dict[
            int, tuple[int, str]
        ] = {}  # the provider's index → ours, and the call's id
        self._call_count = 0

    def event(self, name: str | None, body: Object) -> list[Delta]:
        if body.get("error"):
            message, code = error_of(body)
            return [Failed(message or "the provider reported an error", code or "upstream_error")]
        self._id = text_of(body.get("id")) or self._id
        self._model = text_of(body.get("model")) or self._model
        self._usage = usage_of(body.get("usage")) or self._usage
        return [
            delta
            for choice in list_of(body.get("choices"))
            for delta in self._choice(Fields(choice, "choices[]"))
        ]

    def done(self) -> list[Delta]:
        self._finish_word = self._finish_word or Finish.STOP.value
        return self.close()

    def close(self) -> list[Delta]:
        finish = finish_of(self._finish_word, called=bool(self._calls))
        if finish is None:
            return [TRUNCATED]
        return [*self._begin(), End(finish, self._usage, self._stop_sequence)]

    def _begin(self) -> list[Delta]:
        if self._begun:
            return []
        self._begun = True
        return [Begin(self._id, self._model)]

    def _choice(self, choice: Fields) -> list[Delta]:
        if choice.pop("index") not in (0, None):
            return []
        deltas = self._begin()
        said = Fields(choice.maybe_object("delta") or {}, "choices[].delta")
        if thought := text_of(said.pop("reasoning_content")) or text_of(said.pop("reasoning")):
            deltas.append(ReasoningDelta(thought))
        logprobs = logprobs_of(choice.pop("logprobs"))
        text = _words(said.pop("content")) + text_of(said.pop("refusal"))
        if text or logprobs:
            deltas.append(TextDelta(text, logprobs))
        for number, call in enumerate(said.maybe_list("tool_calls") or ()):
            deltas.append(self._call(Fields(call, "choices[].delta.tool_calls[]"), number))
        self._finish_word = choice.pop("finish_reason") or self._finish_word
        self._stop_sequence = text_of(choice.pop("stop_reason")) or self._stop_sequence
        return deltas

    def _call(self, call: Fields, number: int) -> ToolCallDelta:
        """One piece of a call. Some servers repeat id and name in every chunk, and some give every
        parallel call the same index.
        """
        given = call.maybe_int("index")
        index = number if given is None else given
        identity = call.maybe_text("id") or ""
        function = Fields(
            call.maybe_object("function") or {}, "choices[].delta.tool_calls[].function"
        )
        name, arguments = function.maybe_text("name") or "", function.json_text("arguments")
        known = self._calls.get(index)
        if known is None or (identity and known[1] and identity != known[1]):
            ours = self._call_count
            self._call_count += 1
            self._calls[index] = (ours, identity)
            return ToolCallDelta(ours, identity or f"call_{self._id}_{ours}", name, arguments)
        return ToolCallDelta(known[0], None, None, arguments)


class ChatWriter:
    """Writes deltas as chunks for a client."""

    def __init__(self, request: ChatRequest) -> None:
        self._request = request
        self._tools = ClientTools(request)
        self._custom: dict[
            int, tuple[str, str, str]
        ] = {}  # custom calls, written at the end: their text is inside JSON until then
        self._head: Object = {
            "id": "",
            "object": "chat.completion.chunk",
            "created": int(utc_now().timestamp()),
            "model": request.model,
        }

    def resume(self, chunk: Object) -> None:
        """Continue the message that began with this chunk; `write` must not be given a Begin."""
        self._head |= {
            key: chunk[key]
            for key in ("id", "object", "created", "model", "system_fingerprint")
            if key in chunk
        }

    def write(self, delta: Delta) -> bytes:
        """Return the bytes for one delta."""
        match delta:
            case Begin():
                self._head |= {
                    "id": prefixed_id(ID_PREFIX, delta.id),
                    "model": delta.model or self._request.model,
                }
                return self._chunk({"role": "assistant", "content": "", "refusal": None})
            case TextDelta():
                return self._text(delta)
            case ReasoningDelta():
                return self._chunk({"reasoning_content": delta.text}) if delta.text else b""
            case ToolCallDelta():
                return self._call(delta)
            case OpaqueDelta():
                return b""
            case End():
                return self._end(delta)
            case Failed():
                return event_bytes(openai_error(502, delta.message, delta.code, None))
            case _:
                assert_never(delta)

    def _chunk(self, chunk: Object, *, logprobs: Json = None, finish: str | None = None) -> bytes:
        choice: Object = {"index": 0, "delta": chunk, "logprobs": logprobs, "finish_reason": finish}
        no_usage: Object = {"usage": None} if self._request.include_usage else {}
        return event_bytes({**self._head, "choices": [choice], **no_usage})

    def _text(self, delta: TextDelta) -> bytes:
        if not delta.text and not delta.logprobs:
            return b""
        logprobs: Json = (
            {"content": render_logprobs(delta.logprobs), "refusal": None}
            if delta.logprobs
            else None
        )
        return self._chunk({"content": delta.text}, logprobs=logprobs)

    def _call(self, delta: ToolCallDelta) -> bytes:
        if delta.index in self._custom:
            identity, name, arguments = self._custom[delta.index]
            self._custom[delta.index] = (identity, name, arguments + delta.arguments)
            return b""
        if delta.name is None:
            return self._chunk(
                {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.arguments}}]}
            )
        if self._tools.is_custom(delta.name):
            self._custom[delta.index] = (delta.id or "", delta.name, delta.arguments)
            return b""
        return self._chunk(
            {
                "tool_calls": [
                    self._whole_call(delta.index, delta.id or "", delta.name, delta.arguments)
                ]
            }
        )

    def _whole_call(self, index: int, identity: str, name: str, arguments: str) -> Object:
        return {"index": index, "id": identity, **render_call(name, arguments, self._tools)}

    def _end(self, delta: End) -> bytes:
        said = b"".join(
            self._chunk({"tool_calls": [self._whole_call(index, *call)]})
            for index, call in self._custom.items()
        )
        said += self._chunk({}, finish=finish_word(delta.finish))
        if self._request.include_usage and delta.usage is not None:
            said += event_bytes({**self._head, "choices": [], "usage": render_usage(delta.usage)})
        return said + b"data: [DONE]\n\n"


def whole_facts(body: Object) -> Facts:
    choice = first_object(body.get("choices"))
    called = bool(object_of(choice.get("message")).get("tool_calls"))
    finish = finish_of(choice.get("finish_reason"), called=called)
    return facts_of(body, finish, usage_of(body.get("usage")), missing("choices", bool(choice)))


def streamed_facts(stream: bytes, last: list[Object], failure: str | None) -> Facts:
    first = first_event(stream)
    usage = next(
        (found for body in last if (found := usage_of(body.get("usage"))) is not None), None
    )
    words = (first_object(body.get("choices")).get("finish_reason") for body in last)
    finish = next(
        (reason for word in words if (reason := finish_of(word, called=False)) is not None), None
    )
    return Facts(
        text_of(first.get("id")) or None,
        text_of(first.get("model")) or None,
        finish,
        usage,
        failure,
    )

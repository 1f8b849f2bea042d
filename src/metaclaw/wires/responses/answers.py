"""OpenAI responses answers: parse a provider's, whole or streamed, and write whole ones for a
client.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

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
    Opaque,
    OpaqueDelta,
    Part,
    Reasoning,
    ReasoningDelta,
    Role,
    Text,
    TextDelta,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    Usage,
    Wire,
)
from metaclaw.domain.ids import new_id
from metaclaw.errors import UpstreamError
from metaclaw.wires.chat.answers import render_logprobs, token_logprob, usage_of
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
)
from metaclaw.wires.format import (
    NO_REASON,
    Facts,
    Kind,
    error_of,
    facts_of,
    missing,
    reported_error,
)
from metaclaw.wires.responses.requests import (
    custom_call,
    function_call,
    reasoning,
    render_tool,
    text_format,
    tool_choice,
)
from metaclaw.wires.translation import (
    ClientTools,
    call_name,
    client_signature,
    custom_input,
    flat_name,
    prefixed_id,
)

ID_PREFIX = "resp_"
_REASONS = {Finish.LENGTH: "max_output_tokens", Finish.CONTENT_FILTER: "content_filter"}
_FINISHES = {reason: finish for finish, reason in _REASONS.items()}
# Fields of the request that a response repeats.
_REPEATED = (
    *(
        "metadata",
        "previous_response_id",
        "prompt_cache_key",
        "safety_identifier",
        "service_tier",
        "truncation",
        "user",
    ),
    "max_tool_calls",
)


def parse_answer(body: bytes) -> Completion:
    """Parse a provider's answer. Raises UpstreamError if it is not a response or reports a
    failure.
    """
    value = decode_object(body, "an answer")
    if value.get("error"):
        raise reported_error(value)
    if failure := failure_of(value):
        message, code = failure
        raise UpstreamError(message, code=code)
    with provider_at_fault("an answer"):
        fields = Fields(value, "")
        output = fields.list("output")
        parts = tuple(
            part
            for number, item in enumerate(output)
            for part in item_parts(item, f"output[{number}]")
        )
        return Completion(
            id=fields.maybe_text("id") or "",
            model=fields.maybe_text("model") or "",
            parts=parts,
            finish=finish_of(value, called=any(isinstance(part, ToolCall) for part in parts)),
            usage=_usage_of(fields.pop("usage")),
            logprobs=tuple(_logprobs(output)),
        )


def item_parts(value: Json, at: str) -> Iterator[Part]:
    fields = Fields(value, at)
    match fields.text("type"):
        case "message":
            for part in map(object_of, fields.maybe_list("content") or ()):
                if text := text_of(part.get("text")) or text_of(part.get("refusal")):
                    yield Text(text)
        case "reasoning":
            found = reasoning(fields)
            if found.text or found.signature:
                yield Reasoning(found.text, found.signature, found.redacted)
        case "function_call" | "custom_tool_call" as kind:
            call = function_call(fields) if kind == "function_call" else custom_call(fields)
            yield ToolCall(call.id, call_name(call), call.arguments)
        case _:
            yield Opaque(Wire.RESPONSES, value)


def _logprobs(output: list[Json]) -> Iterator[TokenLogprob]:
    for item in map(object_of, output):
        for part in list_of(item.get("content")):
            yield from logprobs_of(object_of(part).get("logprobs"))


def logprobs_of(value: Json) -> tuple[TokenLogprob, ...]:
    return tuple(map(token_logprob, list_of(value)))


def finish_of(response: Object, *, called: bool) -> Finish | None:
    match response.get("status"):
        case "completed" | None:
            return Finish.TOOL_CALLS if called else Finish.STOP
        case "incomplete":
            return _FINISHES.get(
                text_of(object_of(response.get("incomplete_details")).get("reason")), Finish.OTHER
            )
        case "in_progress" | "queued":
            return None
        case _:
            return Finish.OTHER


def failure_of(response: Object) -> tuple[str, str] | None:
    """Message and code of a failed response, also if it gives no reason; None if it did not
    fail.
    """
    status = response.get("status")
    failed = status in ("failed", "cancelled")
    if not failed and not response.get("error"):
        return None
    message, code = error_of(response)
    return message or (
        f"the provider reported status {status}" if failed else NO_REASON
    ), code or "upstream_error"


def _usage_of(value: Json) -> Usage | None:
    return usage_of(value, "input_tokens", "output_tokens")


def render_usage(usage: Usage) -> Object:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def render_answer(completion: Completion, request: ChatRequest) -> bytes:
    status = "incomplete" if completion.finish in _REASONS else "completed"
    output = list(_output(completion, ClientTools(request), status))
    head = Envelope(request, completion.id, completion.model)
    return encode_json(
        head.render(output, finish=completion.finish or Finish.STOP, usage=completion.usage)
    )


def _output(completion: Completion, tools: ClientTools, status: str) -> Iterable[Object]:
    logprobs: Sequence[TokenLogprob] = completion.logprobs
    for part in completion.parts:
        match part:
            case Text():
                yield message_item(new_id("msg_"), part.text, logprobs, status)
                logprobs = ()
            case Reasoning():
                yield reasoning_item(new_id("rs_"), part)
            case ToolCall():
                yield call_item(new_id("fc_"), part, tools, status)
            case Opaque() if part.wire is Wire.RESPONSES:
                yield dict(object_of(part.value))
            case _:
                pass


def message_item(
    identity: str, text: str | None, logprobs: Sequence[TokenLogprob], status: str
) -> Object:
    """A message with one text; without content if the text is None."""
    content: list[Json] = [] if text is None else [text_part(text, logprobs)]
    return {
        "id": identity,
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": content,
    }


def text_part(text: str, logprobs: Sequence[TokenLogprob]) -> Object:
    return {
        "type": "output_text",
        "text": text,
        "annotations": [],
        "logprobs": render_logprobs(logprobs),
    }


def reasoning_item(identity: str, part: Reasoning) -> Object:
    """Reasoning for a client of this wire. The encrypted content may be a tagged signature of
    another wire.
    """
    summary: list[Json] = [{"type": "summary_text", "text": part.text}] if part.text else []
    item: Object = {"id": identity, "type": "reasoning", "summary": summary}
    if part.signature is not None:
        item["encrypted_content"] = client_signature(
            Wire.RESPONSES, part.signature, redacted=part.redacted
        )
    return item


def call_item(identity: str, call: ToolCall, tools: ClientTools, status: str) -> Object:
    """A call with the kind and name that the client gave the tool."""
    spoken = tools.client_tool(call.name)
    space: Object = {"namespace": spoken.namespace} if spoken.namespace else {}
    if spoken.kind is Kind.CUSTOM:
        text = custom_input(call.arguments) if call.arguments else ""
        return {
            "id": identity,
            "type": "custom_tool_call",
            "call_id": call.id,
            "name": spoken.name,
            "input": text,
            **space,
        }
    head: Object = {"id": identity, "type": "function_call", "status": status}
    return {**head, "call_id": call.id, "name": spoken.name, "arguments": call.arguments, **space}


class Envelope:
    """The fields of a response around its output; they repeat the request's settings."""

    def __init__(self, request: ChatRequest, identity: str, model: str) -> None:
        sampling = request.sampling
        self._head: Object = {
            "id": prefixed_id(ID_PREFIX, identity),
            "object": "response",
            "created_at": int(utc_now().timestamp()),
            "background": False,
            "instructions": _instructions(request),
            "max_output_tokens": sampling.max_tokens,
            "model": model or request.model,
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "reasoning": {
                "effort": request.reasoning_effort,
                "summary": object_of(request.extra.get("reasoning")).get("summary"),
            },
            "store": bool(request.extra.get("store", False)),
            "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
            "text": {
                "format": {"type": "text"}
                if request.json_schema is None
                else text_format(dict(request.json_schema))
            },
            "tool_choice": tool_choice(request) or request.extra.get("tool_choice") or "auto",
            "tools": [render_tool(tool, own=True) for tool in request.tools],
            "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
            "metadata": {},
            "truncation": "disabled",
            **{
                name: request.extra[name]
                for name in _REPEATED
                if request.extra.get(name) is not None
            },
        }

    def repeat(self, response: Object) -> None:
        """Copy the fields that a provider has sent so far."""
        own_fields = ("status", "error", "incomplete_details", "output", "usage")
        self._head |= {key: value for key, value in response.items() if key not in own_fields}

    def begin(self) -> Object:
        """The response before any output."""
        return {
            **self._head,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
        }

    def render(self, output: Sequence[Json], *, finish: Finish, usage: Usage | None) -> Object:
        """The complete response."""
        reason = _REASONS.get(finish)
        return {
            **self._head,
            "status": "completed" if reason is None else "incomplete",
            "completed_at": int(utc_now().timestamp()),
            "error": None,
            "incomplete_details": None if reason is None else {"reason": reason},
            "output": list(output),
            "usage": None if usage is None else render_usage(usage),
        }

    def fail(self, output: Sequence[Json], message: str) -> Object:
        """The failed response."""
        error: Object = {"code": "server_error", "message": message}
        return {**self.begin(), "status": "failed", "error": error, "output": list(output)}


def _instructions(request: ChatRequest) -> str | None:
    first = request.messages[0] if request.messages else None
    if first is None or first.role is not Role.SYSTEM or first.extra:
        return None
    return "\n\n".join(part.text for part in first.parts if isinstance(part, Text)) or None


_ENDS = ("response.completed", "response.incomplete", "response.failed")


def whole_facts(body: Object) -> Facts:
    return _facts(body, missing("output", isinstance(body.get("output"), list)))


def streamed_facts(stream: bytes, last: list[Object], failure: str | None) -> Facts:
    """The facts of a stream, whose last event contains the whole answer."""
    final = next((body for body in last if body.get("type") in _ENDS), None)
    if final is None:
        return Facts(error=failure)
    response = object_of(final.get("response"))
    facts = _facts(
        {**response, "status": "failed"} if final["type"] == "response.failed" else response
    )
    return facts if facts.error or not failure else msgspec.structs.replace(facts, error=failure)


def _facts(body: Object, error: str | None = None) -> Facts:
    output = body.get("output")
    kinds = (
        {text_of(object_of(item).get("type")) for item in output}
        if isinstance(output, list)
        else set()
    )
    called = bool(kinds & {"function_call", "custom_tool_call"})
    failure = failure_of(body)
    return facts_of(
        body,
        finish_of(body, called=called),
        _usage_of(body.get("usage")),
        failure[0] if failure else error,
    )


_BREAK = "\n\n"


@dataclass(slots=True)
class _Item:
    """An output item that is being received."""

    call: int | None = None
    said: int = 0
    """The number of characters so far."""
    pieces: int = 0


class ResponsesEventReader:
    """Turns the events of a response into deltas. Items without deltas become deltas when they are
    done.
    """

    def __init__(self) -> None:
        self._items: dict[Json, _Item] = {}
        self._call_count = 0
        self._text_before = False

    def event(self, name: str | None, body: Object) -> list[Delta]:
        match text_of(body.get("type")) or name or "":
            case "response.created" | "response.in_progress" | "response.queued":
                return [_begin(object_of(body.get("response")))]
            case "response.output_item.added":
                return self._added(body.get("output_index"), Fields(body.get("item"), "item"))
            case "response.output_text.delta" | "response.refusal.delta":
                return self._text(body)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                return self._thought(body)
            case "response.reasoning_summary_part.added" if body.get("summary_index"):
                return self._thought({**body, "delta": _BREAK})
            case "response.function_call_arguments.delta":
                return self._arguments(body)
            case "response.output_item.done":
                return self._done_item(body.get("output_index"), body.get("item"))
            case "response.completed" | "response.incomplete":
                return self._end(object_of(body.get("response")))
            case "response.failed":
                return self._end({**object_of(body.get("response")), "status": "failed"})
            case "error":
                message, code = error_of(body)
                return [
                    Failed(
                        message or NO_REASON, "upstream_error" if code in ("", "error") else code
                    )
                ]
            case _:
                return []

    def close(self) -> list[Delta]:
        return [TRUNCATED]

    done = close

    def _item(self, index: Json) -> _Item:
        return self._items.setdefault(index, _Item())

    def _added(self, index: Json, item: Fields) -> list[Delta]:
        kind = item.text("type")
        follows_text, self._text_before = self._text_before, False
        if kind == "message" and follows_text:
            return [TextDelta(_BREAK)]
        if kind != "function_call":
            return []
        self._items[index] = _Item(self._call_count)
        self._call_count += 1
        name = flat_name(item.maybe_text("namespace"), item.text("name"))
        return [ToolCallDelta(self._call_count - 1, item.text("call_id"), name, "")]

    def _text(self, body: Object) -> list[Delta]:
        item = self._item(body.get("output_index"))
        text, logprobs = text_of(body.get("delta")), logprobs_of(body.get("logprobs"))
        item.said += len(text)
        item.pieces += 1
        self._text_before = True
        return [TextDelta(text, logprobs)] if text or logprobs else []

    def _thought(self, body: Object) -> list[Delta]:
        item, text = self._item(body.get("output_index")), text_of(body.get("delta"))
        item.said += len(text)
        return [ReasoningDelta(text)] if text else []

    def _arguments(self, body: Object) -> list[Delta]:
        item, text = self._item(body.get("output_index")), text_of(body.get("delta"))
        item.said += len(text)
        return [] if item.call is None or not text else [ToolCallDelta(item.call, None, None, text)]

    def _done_item(self, index: Json, value: Json) -> list[Delta]:
        item = self._item(index)
        deltas: list[Delta] = []
        for part in item_parts(value, "item"):
            match part:
                case Text() if not item.pieces:
                    self._text_before = True
                    deltas.append(TextDelta(part.text))
                case Reasoning():
                    deltas += self._signed(item, part)
                case ToolCall():
                    deltas += self._whole_call(item, part)
                case Opaque():
                    deltas.append(OpaqueDelta(part))
                case _:
                    pass
        return deltas

    def _signed(self, item: _Item, part: Reasoning) -> list[Delta]:
        text = "" if item.said else part.text
        return (
            [ReasoningDelta(text, part.signature, part.redacted)] if text or part.signature else []
        )

    def _whole_call(self, item: _Item, call: ToolCall) -> list[Delta]:
        if item.call is not None:
            missing = call.arguments[item.said :]
            return [ToolCallDelta(item.call, None, None, missing)] if missing else []
        item.call = self._call_count
        self._call_count += 1
        return [ToolCallDelta(item.call, call.id, call.name, call.arguments)]

    def _end(self, response: Object) -> list[Delta]:
        if failure := failure_of(response):
            return [Failed(*failure)]
        finish = finish_of(response, called=self._call_count > 0) or Finish.OTHER
        return [_begin(response), End(finish, _usage_of(response.get("usage")))]


def _begin(response: Object) -> Begin:
    """A Begin for every event with a response, because any may be the first; `SseReader` keeps
    only the first.
    """
    return Begin(text_of(response.get("id")), text_of(response.get("model")))

"""Gemini answers, whole or streamed: parse a provider's, and write a client's."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
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
)
from metaclaw.wires.deltas import TRUNCATED, CallQueue, PendingCall, deltas_of
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
from metaclaw.wires.format import Facts, error_of, first_object, missing, reported_error
from metaclaw.wires.gemini.requests import DERIVED_ID, as_blocks, joined_parts, render_parts
from metaclaw.wires.messages.answers import parts_of
from metaclaw.wires.sse import event_bytes
from metaclaw.wires.translation import prefixed_id

ID_PREFIX = ""
_FINISHES = {
    "STOP": Finish.STOP,
    "MAX_TOKENS": Finish.LENGTH,
    **dict.fromkeys(
        ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY"),
        Finish.CONTENT_FILTER,
    ),
}
_WORDS = {Finish.LENGTH: "MAX_TOKENS", Finish.CONTENT_FILTER: "SAFETY"}
_STATUSES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def google_error(status: int, message: str) -> Object:
    word = _STATUSES.get(status, "INVALID_ARGUMENT" if status < 500 else "INTERNAL")
    return {"error": {"code": status, "message": message, "status": word}}


def raw_parts(body: Object) -> list[Json]:
    """The parts of the first candidate of an answer or an event."""
    content = object_of(first_object(body.get("candidates")).get("content"))
    return list_of(content.get("parts"))


def call_id(call: Object, answer: str, number: int) -> str:
    """The id of a call: its own, or one made of the answer's id."""
    return text_of(call.get("id")) or f"{DERIVED_ID}{answer}_{number}"


def _parts(body: Object, calls: int = 0) -> list[Part]:
    """The parts of an answer or an event, behind this number of calls."""
    found: list[Part] = []
    blocks = [block for part in raw_parts(body) for block in as_blocks(part)]
    with provider_at_fault("an answer"):
        for part in parts_of(blocks):
            if isinstance(part, ToolCall):
                identity = call_id({"id": part.id}, text_of(body.get("responseId")), calls)
                part, calls = replace(part, id=identity), calls + 1
            if not isinstance(part, Opaque):
                found.append(part)
    return joined_parts(found)


def parse_answer(body: bytes) -> Completion:
    """Parse a provider's answer. Raises UpstreamError if it is none."""
    value = decode_object(body, "an answer")
    if value.get("error"):
        raise reported_error(value)
    with provider_at_fault("an answer"):
        if not value.get("promptFeedback"):
            Fields(value, "").list("candidates")
    parts = tuple(_parts(value))
    return Completion(
        id=text_of(value.get("responseId")),
        model=text_of(value.get("modelVersion")),
        parts=parts,
        finish=finish_of(value, called=any(isinstance(part, ToolCall) for part in parts)),
        usage=usage_of(value.get("usageMetadata")),
    )


def finish_of(body: Object, *, called: bool) -> Finish | None:
    """The finish reason of an answer or an event: a refused prompt has no candidate."""
    word = text_of(first_object(body.get("candidates")).get("finishReason"))
    if not word:
        refused = object_of(body.get("promptFeedback")).get("blockReason")
        return Finish.CONTENT_FILTER if refused else None
    finish = _FINISHES.get(word, Finish.OTHER)
    return Finish.TOOL_CALLS if called and finish is Finish.STOP else finish


def usage_of(value: Json) -> Usage | None:
    """Token counts. In this wire the answer's tokens do not include those of thoughts."""
    if not isinstance(value, dict):
        return None
    thought = whole(value.get("thoughtsTokenCount"))
    return Usage(
        whole(value.get("promptTokenCount")) + whole(value.get("toolUsePromptTokenCount")),
        whole(value.get("candidatesTokenCount")) + thought,
        whole(value.get("cachedContentTokenCount")),
        reasoning_tokens=thought,
    )


def _usage(usage: Usage) -> Object:
    thought = min(usage.reasoning_tokens, usage.output_tokens)
    body: Object = {
        "promptTokenCount": usage.input_tokens,
        "candidatesTokenCount": usage.output_tokens - thought,
        "totalTokenCount": usage.input_tokens + usage.output_tokens,
    }
    if thought:
        body["thoughtsTokenCount"] = thought
    if usage.cached_tokens:
        body["cachedContentTokenCount"] = usage.cached_tokens
    return body


def _answer(
    head: Object, parts: list[Json], finish: Finish | None = None, usage: Usage | None = None
) -> Object:
    candidate: Object = {"content": {"role": "model", "parts": parts}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = _WORDS.get(finish, "STOP")
    counts: Object = {} if usage is None else {"usageMetadata": _usage(usage)}
    return {"candidates": [candidate], **counts, **head}


def _head(identity: str, model: str) -> Object:
    return {"modelVersion": model, "responseId": prefixed_id(ID_PREFIX, identity)}


def render_answer(completion: Completion, request: ChatRequest) -> bytes:
    known = [part for part in completion.parts if not isinstance(part, Opaque)]
    head = _head(completion.id, completion.model or request.model)
    parts = render_parts(known, {})
    return encode_json(_answer(head, parts, completion.finish or Finish.STOP, completion.usage))


class GeminiEventReader:
    """Turns the events of an answer into deltas. The End waits for the close, because events may
    follow the one with the finish reason.
    """

    def __init__(self) -> None:
        self._calls = 0
        self._finish: Finish | None = None
        self._usage: Usage | None = None

    def event(self, name: str | None, body: Object) -> list[Delta]:
        if body.get("error"):
            message, code = error_of(body)
            return [Failed(message or "the provider reported an error", code or "upstream_error")]
        parts = _parts(body, self._calls)
        self._usage = usage_of(body.get("usageMetadata")) or self._usage
        found: list[Delta] = [
            Begin(text_of(body.get("responseId")), text_of(body.get("modelVersion")))
        ]
        for delta in list(deltas_of(Completion("", "", tuple(parts), Finish.STOP)))[1:-1]:
            if isinstance(delta, ToolCallDelta):
                delta, self._calls = replace(delta, index=self._calls), self._calls + 1
            found.append(delta)
        self._finish = finish_of(body, called=bool(self._calls)) or self._finish
        return found

    def done(self) -> list[Delta]:
        return self.close()

    def close(self) -> list[Delta]:
        return [TRUNCATED] if self._finish is None else [End(self._finish, self._usage)]


class GeminiWriter:
    """Writes deltas as events for a client. A call is written when it is whole."""

    def __init__(self, request: ChatRequest) -> None:
        self._head = _head("", request.model)
        self._model = request.model
        self._calls = CallQueue()
        self._unsaid: list[Part] = []  # a signature that belongs to the part behind it

    def resume(self, event: Object) -> None:
        """Continue the answer of this event; `write` must not be given a Begin."""
        self._head |= {key: event[key] for key in self._head if key in event}

    def write(self, delta: Delta) -> bytes:
        """Return the bytes for one delta."""
        match delta:
            case Begin():
                self._head = _head(delta.id, delta.model or self._model)
                return b""
            case TextDelta():
                return self._flush() + self._say(Text(delta.text)) if delta.text else b""
            case ReasoningDelta():
                said = self._flush()
                if delta.text:
                    said += self._say(Reasoning(delta.text))
                if delta.signature is not None:
                    said += self._say()
                    self._unsaid = [Reasoning("", delta.signature, delta.redacted)]
                return said
            case ToolCallDelta():
                self._calls.add(delta)
                return self._calls.write(lambda call: b"", self._call)
            case OpaqueDelta():
                return b""
            case End():
                said = self._flush()
                last = render_parts(self._unsaid, {}) or [{"text": ""}]
                return said + event_bytes(_answer(self._head, last, delta.finish, delta.usage))
            case Failed():
                return event_bytes(google_error(502, delta.message))
            case _:
                assert_never(delta)

    def _flush(self) -> bytes:
        return self._calls.write(lambda call: b"", self._call, is_end=True)

    def _call(self, call: PendingCall) -> bytes:
        return self._say(ToolCall(call.id, call.name, call.arguments))

    def _say(self, *said: Part) -> bytes:
        parts = render_parts((*self._unsaid, *said), {})
        self._unsaid = []
        return event_bytes(_answer(self._head, parts)) if parts else b""


def whole_facts(body: Object) -> Facts:
    called = any(object_of(part).get("functionCall") for part in raw_parts(body))
    finish = finish_of(body, called=called)
    error = missing("candidates", finish is not None or bool(body.get("candidates")))
    return _facts(body, finish, [body], error)


def streamed_facts(stream: bytes, last: list[Object], failure: str | None) -> Facts:
    called = b'"functionCall"' in stream
    finishes = (finish_of(body, called=called) for body in last)
    return _facts(last[0] if last else {}, next(filter(None, finishes), None), last, failure)


def _facts(
    body: Object, finish: Finish | None, events: Sequence[Object], error: str | None
) -> Facts:
    counts: Iterable[Usage | None] = (usage_of(one.get("usageMetadata")) for one in events)
    return Facts(
        text_of(body.get("responseId")) or None,
        text_of(body.get("modelVersion")) or None,
        finish,
        next((usage for usage in counts if usage is not None), None),
        error,
    )

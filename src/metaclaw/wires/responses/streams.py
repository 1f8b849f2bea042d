"""A response as a provider makes it: events become deltas."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import assert_never

from metaclaw.domain.chat import (
    Begin,
    ChatRequest,
    Delta,
    End,
    Failed,
    Finish,
    Json,
    Opaque,
    OpaqueDelta,
    Reasoning,
    ReasoningDelta,
    Text,
    TextDelta,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    Wire,
)
from metaclaw.domain.ids import new_id
from metaclaw.wires.chat.answers import render_logprobs
from metaclaw.wires.deltas import TRUNCATED, CallQueue, PendingCall
from metaclaw.wires.errors import NO_REASON, error_of
from metaclaw.wires.fields import Fields, Object, object_of, text_of
from metaclaw.wires.responses.answers import (
    Envelope,
    call_item,
    failure_of,
    finish_of,
    item_parts,
    logprobs_of,
    message_item,
    reasoning_item,
    text_part,
    usage_of,
)
from metaclaw.wires.sse import event_bytes
from metaclaw.wires.translation import ClientTools, flat_name

_BREAK = "\n\n"


class _Item:
    """An output item that is still being made."""

    def __init__(self, call: int | None = None) -> None:
        self.call = call
        self.said = ""
        self.pieces = 0


class ResponsesMeaning:
    """What the events of a response mean. Items that arrive whole, without deltas, are said when they are done."""

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
                return [Failed(message or NO_REASON, "upstream_error" if code in ("", "error") else code)]
            case _:
                return []

    def done(self) -> list[Delta]:
        return self.close()

    def close(self) -> list[Delta]:
        return [TRUNCATED]

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
        item.said += text
        item.pieces += 1
        self._text_before = True
        return [TextDelta(text, logprobs)] if text or logprobs else []

    def _thought(self, body: Object) -> list[Delta]:
        item, text = self._item(body.get("output_index")), text_of(body.get("delta"))
        item.said += text
        return [ReasoningDelta(text)] if text else []

    def _arguments(self, body: Object) -> list[Delta]:
        item, text = self._item(body.get("output_index")), text_of(body.get("delta"))
        item.said += text
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
                    deltas += self._sealed(item, part)
                case ToolCall():
                    deltas += self._whole_call(item, part)
                case Opaque():
                    deltas.append(OpaqueDelta(part))
                case _:
                    pass
        return deltas

    def _sealed(self, item: _Item, part: Reasoning) -> list[Delta]:
        text = "" if item.said else part.text
        return [ReasoningDelta(text, part.signature, part.redacted)] if text or part.signature else []

    def _whole_call(self, item: _Item, call: ToolCall) -> list[Delta]:
        if item.call is not None:
            missing = call.arguments[len(item.said) :]
            return [ToolCallDelta(item.call, None, None, missing)] if missing else []
        item.call = self._call_count
        self._call_count += 1
        return [ToolCallDelta(item.call, call.id, call.name, call.arguments)]

    def _end(self, response: Object) -> list[Delta]:
        if failure := failure_of(response):
            return [Failed(*failure)]
        finish = finish_of(response, called=self._call_count > 0) or Finish.OTHER
        return [_begin(response), End(finish, usage_of(response.get("usage")))]


def _begin(response: Object) -> Begin:
    """Every event that shows the response may be the first; the reader lets only the first one count."""
    return Begin(text_of(response.get("id")), text_of(response.get("model")))


class _Kind(StrEnum):
    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


@dataclass(slots=True)
class _OpenItem:
    """The output item that is being written."""

    kind: _Kind
    id: str
    text: str = ""
    signature: str | None = None
    redacted: bool = False
    logprobs: list[TokenLogprob] = field(default_factory=list)


def error_event(message: str, code: str, number: int) -> Object:
    """An error inside a stream, as this wire writes it."""
    return {"type": "error", "sequence_number": number, "code": code, "message": message, "param": None}


class ResponsesWriter:
    """Deltas as numbered events: one output item at a time, each added, filled and done, and the whole response at the end."""

    def __init__(self, request: ChatRequest) -> None:
        self._request = request
        self._tools = ClientTools(request)
        self._envelope: Envelope | None = None
        self._number = 0
        self._output: list[Json] = []
        self._item: _OpenItem | None = None
        self._calls = CallQueue()
        self._status = "completed"

    def resume(self, number: int, response: Object, output: list[Json]) -> None:
        """Go on with a response of which these items are done; the Begin is not to be written."""
        self._number, self._output = number, output
        self._envelope = Envelope(self._request, text_of(response.get("id")), text_of(response.get("model")))
        self._envelope.repeat(response)

    def write(self, delta: Delta) -> bytes:
        """The bytes for one delta; those of an End make the answer whole."""
        match delta:
            case Begin():
                self._envelope = Envelope(self._request, delta.id, delta.model)
                begun = self._envelope.begin()
                return self._event("response.created", {"response": begun}) + self._event(
                    "response.in_progress", {"response": begun}
                )
            case TextDelta():
                return self._text(delta)
            case ReasoningDelta():
                return self._think(delta)
            case ToolCallDelta():
                return self._call(delta)
            case OpaqueDelta():
                return self._opaque(delta.part)
            case End():
                return self._end(delta)
            case Failed():
                return self._fail(delta)
            case _:
                assert_never(delta)

    def _event(self, name: str, body: Object) -> bytes:
        said = event_bytes({"type": name, "sequence_number": self._number, **body}, name)
        self._number += 1
        return said

    def _at(self, item: _OpenItem) -> Object:
        return {"item_id": item.id, "output_index": len(self._output)}

    def _added(self, item: _OpenItem, body: Object) -> bytes:
        self._item = item
        return self._event("response.output_item.added", {"output_index": len(self._output), "item": body})

    def _done(self, body: Object) -> bytes:
        said = self._event("response.output_item.done", {"output_index": len(self._output), "item": body})
        self._output.append(body)
        self._item = None
        return said

    def _leave(self) -> bytes:
        """Finish what is open, and say the calls that still wait."""
        item = self._item
        if item is None:
            return b""
        match item.kind:
            case _Kind.TEXT:
                return self._finish_text(item)
            case _Kind.REASONING:
                return self._finish_reasoning(item)
            case _Kind.CALL:
                return self._finish_calls()

    def _text(self, delta: TextDelta) -> bytes:
        if not delta.text and not delta.logprobs:
            return b""
        said, item = b"", self._item
        if item is None or item.kind is not _Kind.TEXT:
            said = self._leave()
            item = _OpenItem(_Kind.TEXT, new_id("msg_"))
            said += self._added(item, message_item(item.id, None, (), "in_progress"))
            said += self._event("response.content_part.added", {**self._at(item), "content_index": 0, "part": text_part("", ())})
        item.text += delta.text
        item.logprobs += delta.logprobs
        body: Object = {**self._at(item), "content_index": 0, "delta": delta.text, "logprobs": render_logprobs(delta.logprobs)}
        return said + self._event("response.output_text.delta", body)

    def _finish_text(self, item: _OpenItem) -> bytes:
        where: Object = {**self._at(item), "content_index": 0}
        logprobs = render_logprobs(item.logprobs)
        said = self._event("response.output_text.done", {**where, "text": item.text, "logprobs": logprobs})
        said += self._event("response.content_part.done", {**where, "part": text_part(item.text, item.logprobs)})
        return said + self._done(message_item(item.id, item.text, item.logprobs, self._status))

    def _think(self, delta: ReasoningDelta) -> bytes:
        said, item = b"", self._item
        if item is None or item.kind is not _Kind.REASONING or delta.redacted:
            if not delta.text and delta.signature is None:
                return b""
            said = self._leave()
            item = _OpenItem(_Kind.REASONING, new_id("rs_"))
            said += self._added(item, reasoning_item(item.id, Reasoning("")))
        if delta.text:
            if not item.text:
                part: Object = {"type": "summary_text", "text": ""}
                said += self._event("response.reasoning_summary_part.added", {**self._at(item), "summary_index": 0, "part": part})
            item.text += delta.text
            said += self._event(
                "response.reasoning_summary_text.delta", {**self._at(item), "summary_index": 0, "delta": delta.text}
            )
        if delta.signature is not None:
            item.signature, item.redacted = delta.signature, delta.redacted
            said += self._finish_reasoning(item)
        return said

    def _finish_reasoning(self, item: _OpenItem) -> bytes:
        said = b""
        if item.text:
            where: Object = {**self._at(item), "summary_index": 0}
            said = self._event("response.reasoning_summary_text.done", {**where, "text": item.text})
            part: Object = {"type": "summary_text", "text": item.text}
            said += self._event("response.reasoning_summary_part.done", {**where, "part": part})
        return said + self._done(reasoning_item(item.id, Reasoning(item.text, item.signature, item.redacted)))

    def _call(self, delta: ToolCallDelta) -> bytes:
        said = b"" if self._item is not None and self._item.kind is _Kind.CALL else self._leave()
        self._calls.add(delta)
        while (call := self._calls.open) is not None:
            said += self._say_call(call)
            if not self._calls.is_next_due():
                break
            said += self._finish_call(call)
        return said

    def _say_call(self, call: PendingCall) -> bytes:
        """What is new about the open call. A custom tool's text is known only when its arguments are whole."""
        said, item = b"", self._item
        if item is None:
            custom = self._tools.is_custom(call.name)
            item = _OpenItem(_Kind.CALL, new_id("ctc_" if custom else "fc_"))
            said = self._added(item, call_item(item.id, ToolCall(call.id, call.name, ""), self._tools, "in_progress"))
        if call.unsaid and not self._tools.is_custom(call.name):
            said += self._event("response.function_call_arguments.delta", {**self._at(item), "delta": call.unsaid})
            call.unsaid = ""
        return said

    def _finish_calls(self) -> bytes:
        said = b""
        while (call := self._calls.open) is not None:
            said += self._say_call(call) + self._finish_call(call)
        return said

    def _finish_call(self, call: PendingCall) -> bytes:
        item = self._item
        self._calls.shut()
        if item is None:
            return b""
        body = call_item(item.id, ToolCall(call.id, call.name, call.arguments), self._tools, self._status)
        if self._tools.is_custom(call.name):
            said = self._event("response.custom_tool_call_input.delta", {**self._at(item), "delta": body["input"]})
            said += self._event("response.custom_tool_call_input.done", {**self._at(item), "input": body["input"]})
        else:
            arguments: Object = {"name": body["name"], "arguments": call.arguments}
            said = self._event("response.function_call_arguments.done", {**self._at(item), **arguments})
        return said + self._done(body)

    def _opaque(self, part: Opaque) -> bytes:
        if part.wire is not Wire.RESPONSES:
            return b""
        body = dict(object_of(part.value))
        said = self._leave() + self._event("response.output_item.added", {"output_index": len(self._output), "item": body})
        return said + self._done(body)

    def _end(self, delta: End) -> bytes:
        if delta.finish in (Finish.LENGTH, Finish.CONTENT_FILTER):
            self._status = "incomplete"
        said = self._leave()
        envelope = self._envelope or Envelope(self._request, "", "")
        response = envelope.render(self._output, finish=delta.finish, usage=delta.usage)
        return said + self._event(f"response.{self._status}", {"response": response})

    def _fail(self, delta: Failed) -> bytes:
        """Both words for a failure that clients listen to: the error itself, and the response that failed."""
        said = event_bytes(error_event(delta.message, delta.code, self._number), "error")
        self._number += 1
        envelope = self._envelope or Envelope(self._request, "", "")
        return said + self._event("response.failed", {"response": envelope.fail(self._output, delta.message)})

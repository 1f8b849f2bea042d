"""A response as a provider makes it: events become deltas."""

from metaclaw.domain.chat import (
    Begin,
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
    ToolCall,
    ToolCallDelta,
)
from metaclaw.wires.failure import error_of
from metaclaw.wires.fields import Fields, Object, object_of, text_of
from metaclaw.wires.reader import TRUNCATED
from metaclaw.wires.responses.answer import NO_REASON, failure_of, finish_of, item_parts, logprobs_of, usage_of
from metaclaw.wires.tools import flat_name

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

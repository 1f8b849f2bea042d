"""Changes to relayed Gemini answers: find and hold tool calls, restore true answers, add a line."""

from collections.abc import Sequence

from metaclaw.domain.chat import ChatRequest, Json
from metaclaw.domain.turn import TrueAnswer
from metaclaw.wires.fields import Object, decode_object, encode_text, list_of, object_of, text_of
from metaclaw.wires.format import AttemptMessages, CallOutput, FooterPlace, HeldCall, first_object
from metaclaw.wires.gemini.answers import GeminiWriter, call_id, raw_parts
from metaclaw.wires.gemini.requests import DERIVED_ID, as_message, camel
from metaclaw.wires.messages.relay import is_shown_content
from metaclaw.wires.relay import events_of
from metaclaw.wires.sse import event_bytes


def _calls_in(bodies: Sequence[Object]) -> list[HeldCall]:
    found: list[HeldCall] = []
    for body in bodies:
        for part in map(object_of, raw_parts(body)):
            if isinstance(call := part.get("functionCall"), dict):
                identity = call_id(call, text_of(body.get("responseId")), len(found))
                arguments = encode_text(call.get("args") or {})
                found.append(HeldCall(identity, text_of(call.get("name")), arguments))
    return found


def read_attempt(answer: bytes, stream: bool) -> AttemptMessages:
    bodies = list(events_of(answer)) if stream else [decode_object(answer, "an answer")]
    identity = text_of(bodies[0].get("responseId")) if bodies else ""
    parts: list[Json] = []
    for part in (one for body in bodies for one in raw_parts(body)):
        if part != {"text": ""}:
            parts.append(part)
    calls = tuple(_calls_in(bodies))
    return AttemptMessages(identity, ({"role": "model", "parts": parts},), calls, bool(parts))


def call_results(results: Sequence[CallOutput]) -> list[Json]:
    parts: list[Json] = []
    for one in results:
        known: Object = {} if one.call.id.startswith(DERIVED_ID) else {"id": one.call.id}
        response: Json = {"error" if one.is_error else "output": one.text}
        parts.append({"functionResponse": {**known, "name": one.call.name, "response": response}})
    return [{"role": "user", "parts": parts}] if parts else []


def own_words(text: str) -> Json:
    return {"role": "model", "parts": [{"text": text}]}


def restore(
    items: Sequence[Json], answer: TrueAnswer, messages: Sequence[Json]
) -> list[Json] | None:
    restored: list[Json] = []
    ours: list[Json] = []  # results of ours, which must be in one message with the client's
    is_found = False
    for item in items:
        message = object_of(as_message(item))
        if message.get("role") == "assistant" and is_shown_content(message["content"], answer):
            restored += messages
            is_found = True
            if object_of(restored[-1]).get("role") == "user":
                ours = list_of(object_of(restored.pop()).get("parts"))
        elif ours and message.get("role") == "user":
            restored.append(
                {**object_of(item), "parts": [*ours, *list_of(camel(item).get("parts"))]}
            )
            ours = []
        else:
            restored.append(item)
    if ours:
        restored.append({"role": "user", "parts": ours})
    return restored if is_found else None


def resume(request: ChatRequest, passed: bytes) -> GeminiWriter:
    writer = GeminiWriter(request)
    writer.resume(next(events_of(passed), {}))
    return writer


class GeminiCalls:
    """Tool calls in Gemini answers: every call is whole, in one event."""

    marks: tuple[bytes, ...] = (b"functionCall",)
    words: tuple[bytes, ...] = (b'"text"',)

    def whole(self, answer: Object) -> list[HeldCall]:
        return _calls_in([answer])

    def read(self, held: bytes) -> list[HeldCall]:
        return _calls_in(list(events_of(held)))

    def shown(self, sent: bytes) -> list[HeldCall]:
        return self.read(sent)

    def begun(self, body: Object) -> list[str]:
        return [call.name for call in _calls_in([body])]

    def passes(self, body: Object) -> bool:
        return False

    def all_wait(self, chunk: bytes) -> bool:
        return True


class GeminiFooter:
    """Appends a line to an answer, as a part of its last event."""

    def add_to_answer(self, place: FooterPlace, answer: Object) -> bool:
        self._note(place, answer)
        if not place.is_plain or not place.may_add or not _is_complete(answer):
            return False
        raw_parts(answer).append({"text": place.line})
        return True

    def add_to_event(self, place: FooterPlace, raw: bytes, body: Object) -> bytes:
        self._note(place, body)
        if not place.is_plain or not place.may_add or not _is_complete(body):
            return raw
        place.is_added = True
        candidate = first_object(body.get("candidates"))
        parts: list[Json] = [*raw_parts(body), {"text": place.line}]
        candidate["content"] = {**object_of(candidate.get("content")), "parts": parts}
        return event_bytes(body)

    def _note(self, place: FooterPlace, body: Object) -> None:
        for part in map(object_of, raw_parts(body)):
            place.is_plain = place.is_plain and isinstance(part.get("text"), str)
            if not part.get("thought"):
                place.note(text_of(part.get("text")))


def _is_complete(body: Object) -> bool:
    return first_object(body.get("candidates")).get("finishReason") == "STOP"

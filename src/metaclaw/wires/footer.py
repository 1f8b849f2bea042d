"""One line of text behind an answer, in the client's own wire, whole or streamed.

Only behind an answer that ended by itself in plain words: never behind tool calls, JSON, or an answer that was cut off. Everything
the provider said is passed on as it came, except the one event or body that must tell of the added text.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from metaclaw.domain.chat import Json, Wire
from metaclaw.domain.ids import new_id
from metaclaw.wires.fields import Object, decode, encode, object_of, text_of
from metaclaw.wires.sse import event_bytes

_EVENT_END: Final = re.compile(rb"\r?\n\r?\n|\r\r")
_DATA: Final = re.compile(rb"(?m)^data:[ ]?(.*?)\r?$")
_JSON_BEGINS: Final = ("{", "[", "```json")
_MESSAGE_PARTS: Final = frozenset(("text", "thinking", "redacted_thinking"))
_RESPONSE_ITEMS: Final = frozenset(("message", "reasoning"))


def wants_json(wire: Wire, request: Mapping[str, Json]) -> bool:
    """Whether a request asks for an answer in JSON, which nothing may be added to."""
    if wire is Wire.CHAT:
        return object_of(request.get("response_format")).get("type") not in (None, "text")
    if wire is Wire.RESPONSES:
        return object_of(object_of(request.get("text")).get("format")).get("type") not in (None, "text")
    return bool(request.get("output_format") or object_of(request.get("output_config")).get("format"))


class Footer:
    """Puts a line behind one answer. `is_added` says whether it was possible."""

    def __init__(self, wire: Wire, line: str) -> None:
        self._line = line
        self._wire = wire
        self._buffer = b""
        self._begins = ""
        self._parts = 0
        self._is_plain = True
        self.is_added = False

    def whole(self, body: bytes) -> bytes:
        """A whole answer with the line behind it, or as it is."""
        try:
            answer = object_of(decode(body.decode("utf-8")))
        except (ValueError, RecursionError):
            return body
        add = {Wire.CHAT: self._whole_chat, Wire.MESSAGES: self._whole_message, Wire.RESPONSES: self._whole_response}[self._wire]
        self.is_added = add(answer)
        return encode(answer) if self.is_added else body

    def feed(self, chunk: bytes) -> bytes:
        """The bytes that the client is shown for these; an event that is not whole yet waits for its end."""
        self._buffer += chunk
        shown, at = [], 0
        for found in _EVENT_END.finditer(self._buffer):
            shown.append(self._event(self._buffer[at : found.end()]))
            at = found.end()
        self._buffer = self._buffer[at:]
        return b"".join(shown)

    def close(self) -> bytes:
        """What is left when the stream has ended."""
        rest, self._buffer = self._buffer, b""
        return self._event(rest) if rest else b""

    def _event(self, raw: bytes) -> bytes:
        if self.is_added or not self._is_plain:
            return raw
        found = _DATA.search(raw)
        try:
            body = object_of(decode(found[1].decode("utf-8"))) if found is not None and found[1].startswith(b"{") else {}
        except (ValueError, RecursionError):
            return raw
        if self._wire is Wire.CHAT:
            return self._chat_event(raw, body)
        return self._message_event(raw, body) if self._wire is Wire.MESSAGES else self._response_event(raw, body)

    def _hear(self, text: str) -> None:
        if len(self._begins) < 16:
            self._begins = (self._begins + text).lstrip()[:16]

    @property
    def _may_add(self) -> bool:
        return self._is_plain and bool(self._begins) and not self._begins.startswith(_JSON_BEGINS)

    def _chat_event(self, raw: bytes, body: Object) -> bytes:
        choices = body.get("choices")
        choice = object_of(choices[0]) if isinstance(choices, list) and choices else {}
        delta = object_of(choice.get("delta"))
        if delta.get("tool_calls") or delta.get("function_call") or choice.get("index") not in (0, None):
            self._is_plain = False
            return raw
        self._hear(text_of(delta.get("content")))
        if choice.get("finish_reason") != "stop" or not self._may_add:
            return raw
        self.is_added = True
        added: Json = {**choice, "delta": {"content": self._line}, "finish_reason": None, "logprobs": None}
        kept = {key: value for key, value in body.items() if key != "usage"}
        if not delta.get("content"):
            return event_bytes({**kept, "choices": [added]}) + raw
        last = event_bytes({**body, "choices": [{**choice, "delta": {}}]})
        return (
            event_bytes({**kept, "choices": [{**choice, "finish_reason": None}]}) + event_bytes({**kept, "choices": [added]}) + last
        )

    def _message_event(self, raw: bytes, body: Object) -> bytes:
        match body.get("type"):
            case "content_block_start":
                self._parts += 1
                self._is_plain = self._is_plain and text_of(object_of(body.get("content_block")).get("type")) in _MESSAGE_PARTS
            case "content_block_delta":
                self._hear(text_of(object_of(body.get("delta")).get("text")))
            case "message_delta" if object_of(body.get("delta")).get("stop_reason") == "end_turn" and self._may_add:
                self.is_added = True
                return b"".join(self._message_block()) + raw
        return raw

    def _message_block(self) -> Iterator[bytes]:
        events: dict[str, Object] = {
            "content_block_start": {"content_block": {"type": "text", "text": ""}},
            "content_block_delta": {"delta": {"type": "text_delta", "text": self._line}},
            "content_block_stop": {},
        }
        for name, fields in events.items():
            yield event_bytes({"type": name, "index": self._parts, **fields}, name)

    def _response_event(self, raw: bytes, body: Object) -> bytes:
        if body.get("type") == "response.output_text.delta":
            self._hear(text_of(body.get("delta")))
        if body.get("type") != "response.completed":
            return raw
        response = object_of(body.get("response"))
        output, item = response.get("output"), self._item()
        if not isinstance(output, list) or not self._has_only_words(output) or not self._may_add:
            return raw
        self.is_added = True
        number = body.get("sequence_number")
        number = number if isinstance(number, int) else 0
        said = []
        for place, (name, fields) in enumerate(self._item_events(item, len(output))):
            said.append(event_bytes({"type": name, "sequence_number": number + place, **fields}, name))
        whole = {**body, "sequence_number": number + len(said), "response": {**response, "output": [*output, item]}}
        return b"".join(said) + event_bytes(whole, "response.completed")

    def _item_events(self, item: Object, index: int) -> Iterator[tuple[str, Object]]:
        where: Object = {"item_id": item["id"], "output_index": index}
        inner: Object = {**where, "content_index": 0}
        begun: Object = {"type": "output_text", "text": "", "annotations": []}
        done: Object = {**begun, "text": self._line}
        yield "response.output_item.added", {"output_index": index, "item": {**item, "status": "in_progress", "content": []}}
        yield "response.content_part.added", {**inner, "part": begun}
        yield "response.output_text.delta", {**inner, "delta": self._line, "logprobs": []}
        yield "response.output_text.done", {**inner, "text": self._line, "logprobs": []}
        yield "response.content_part.done", {**inner, "part": done}
        yield "response.output_item.done", {"output_index": index, "item": item}

    def _item(self) -> Object:
        part: Object = {"type": "output_text", "text": self._line, "annotations": []}
        return {"type": "message", "id": new_id("msg_"), "role": "assistant", "status": "completed", "content": [part]}

    def _whole_chat(self, answer: Object) -> bool:
        choices = answer.get("choices")
        choice = object_of(choices[0]) if isinstance(choices, list) and len(choices) == 1 else {}
        message = object_of(choice.get("message"))
        content = message.get("content")
        if choice.get("finish_reason") != "stop" or message.get("tool_calls") or not isinstance(content, str):
            return False
        self._hear(content)
        message["content"] = content + self._line
        return self._may_add

    def _whole_message(self, answer: Object) -> bool:
        content = answer.get("content")
        if answer.get("stop_reason") != "end_turn" or not isinstance(content, list):
            return False
        if not all(text_of(object_of(part).get("type")) in _MESSAGE_PARTS for part in content):
            return False
        self._hear("".join(text_of(object_of(part).get("text")) for part in content))
        content.append({"type": "text", "text": self._line})
        return self._may_add

    def _whole_response(self, answer: Object) -> bool:
        output = answer.get("output")
        if answer.get("status") != "completed" or not isinstance(output, list) or not self._has_only_words(output):
            return False
        for item in output:
            parts = object_of(item).get("content")
            for part in parts if isinstance(parts, list) else ():
                self._hear(text_of(object_of(part).get("text")))
        output.append(self._item())
        return self._may_add

    def _has_only_words(self, output: list[Json]) -> bool:
        return all(text_of(object_of(item).get("type")) in _RESPONSE_ITEMS for item in output)

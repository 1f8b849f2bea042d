"""Holding back the tool calls of a relayed stream until all of them are known. Everything before them flows at once."""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from metaclaw.domain.chat import Json, Wire
from metaclaw.wires.attempt import HeldCall
from metaclaw.wires.chat.history import add_delta, calls_of
from metaclaw.wires.fields import Object, encode_text, object_of, text_of
from metaclaw.wires.responses.history import CALLS, held_call

_EVENT_END: Final = re.compile(rb"\r?\n\r?\n|\r\r")
_DATA: Final = re.compile(rb"(?m)^data:[ ]?(.*?)\r?$")
_MARKS: Final[Mapping[Wire, tuple[bytes, ...]]] = {
    Wire.CHAT: (b"tool_calls", b"function_call"),
    Wire.MESSAGES: (b"tool_use",),
    Wire.RESPONSES: (b'_call"',),
}
_WORDS: Final[Mapping[Wire, tuple[bytes, ...]]] = {
    Wire.CHAT: (b'"content":"', b'"content": "', b'"reasoning'),
    Wire.MESSAGES: (b"content_block_delta",),
    Wire.RESPONSES: (b".delta",),
}
_EMPTY: Final = (b'"content":""', b'"content": ""')
_WHOLE_ENDS: Final = (b"\n\n", b"\r\n\r\n")
MAX_HELD_BYTES: Final = 32 * 1024 * 1024
_decode = msgspec.json.Decoder().decode


def has_call_mark(wire: Wire, body: bytes) -> bool:
    """Whether an answer may hold tool calls; False is certain."""
    return any(mark in body for mark in _MARKS[wire])


def whole_calls(wire: Wire, body: bytes) -> list[HeldCall]:
    """The calls of a whole answer that its client is to run."""
    try:
        answer = object_of(_decode(body))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return []
    if wire is Wire.CHAT:
        choices = answer.get("choices")
        messages = [object_of(object_of(one).get("message")) for one in (choices if isinstance(choices, list) else ())]
        return [call for message in messages for call in calls_of(message)]
    if wire is Wire.RESPONSES:
        output = answer.get("output")
        items = output if isinstance(output, list) else []
        return [call for item in items if (call := held_call(object_of(item))) is not None]
    content = answer.get("content")
    blocks = [object_of(block) for block in content] if isinstance(content, list) else []
    return [
        HeldCall(text_of(block.get("id")), text_of(block.get("name")), encode_text(object_of(block.get("input"))), "tool_use")
        for block in blocks
        if block.get("type") == "tool_use"
    ]


class CallHold:
    """Splits a stream into what a client may see at once and what waits for a decision about its tool calls.

    From the first event of a call on everything waits, in its order, except pings, and, in chat completions, whose order does not
    matter, text. An event goes out when it is whole.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._marks, self._words = _MARKS[wire], _WORDS[wire]
        self._buffer = b""
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._messages: dict[int, Object] = {}
        self._blocks: dict[Json, list[str]] = {}
        self._items: dict[Json, HeldCall] = {}
        self.has_calls = False
        self.has_words = False
        """Whether text or reasoning has gone out."""

    @property
    def held(self) -> bytes:
        """What waits."""
        return b"".join(self._held)

    @property
    def calls(self) -> list[HeldCall]:
        """The calls that wait."""
        if self._wire is Wire.CHAT:
            return [call for place in sorted(self._messages) for call in calls_of(self._messages[place])]
        if self._wire is Wire.RESPONSES:
            return list(self._items.values())
        return [HeldCall(block[0], block[1], "".join(block[2:]) or "{}", "tool_use") for block in self._blocks.values()]

    def feed(self, chunk: bytes) -> bytes:
        """Take bytes as they came; return those that may be sent on at once."""
        if not self._buffer and not self.has_calls and chunk.endswith(_WHOLE_ENDS) and not _any(chunk, self._marks):
            if not self.has_words:
                self.has_words = _any(chunk, self._words) and not _any(chunk, _EMPTY)
            return chunk
        data = self._buffer + chunk if self._buffer else chunk
        passed, at = [], 0
        for found in _EVENT_END.finditer(data):
            event = data[at : found.end()]
            at = found.end()
            if self._passes(event):
                passed.append(event)
            else:
                self._held.append(event)
                self._held_bytes += len(event)
        self._buffer = data[at:]
        return b"".join(passed)

    def close(self) -> bytes:
        """What is left when the stream has ended."""
        rest, self._buffer = self._buffer, b""
        if not rest or self._passes(rest):
            return rest
        self._held.append(rest)
        return b""

    def _passes(self, event: bytes) -> bool:
        if not self.has_calls and not _any(event, self._marks):
            if not self.has_words:
                self.has_words = _any(event, self._words) and not _any(event, _EMPTY)
            return True
        found = _DATA.search(event)
        if found is None:
            return True  # a comment
        try:
            body = object_of(_decode(found[1])) if found[1].startswith(b"{") else {}
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            body = {}
        if self._wire is Wire.CHAT:
            return self._chat(body)
        return self._message(body) if self._wire is Wire.MESSAGES else self._response(body)

    def _chat(self, body: Object) -> bool:
        choices = body.get("choices")
        is_text = bool(choices) and not body.get("usage")
        for choice in map(object_of, choices if isinstance(choices, list) else ()):
            delta, place = object_of(choice.get("delta")), choice.get("index")
            calls = {key: delta[key] for key in ("tool_calls", "function_call") if delta.get(key)}
            if calls:
                self.has_calls = True
                add_delta(self._messages.setdefault(place if isinstance(place, int) else 0, {}), calls)
            is_text = is_text and not calls and not choice.get("finish_reason")
        return not self.has_calls or is_text

    def _message(self, body: Object) -> bool:
        block, delta = object_of(body.get("content_block")), object_of(body.get("delta"))
        match body.get("type"):
            case "content_block_start" if block.get("type") == "tool_use":
                self.has_calls = True
                given = object_of(block.get("input"))
                pieces = [encode_text(given)] if given else []
                self._blocks[body.get("index")] = [text_of(block.get("id")), text_of(block.get("name")), *pieces]
            case "content_block_delta" if body.get("index") in self._blocks:
                self._blocks[body.get("index")].append(text_of(delta.get("partial_json")))
            case "ping":
                return True
            case _:
                pass
        return not self.has_calls

    def _response(self, body: Object) -> bool:
        kind, item = body.get("type"), object_of(body.get("item"))
        if kind == "response.output_item.added" and item.get("type") in CALLS:
            self.has_calls = True
        elif kind == "response.output_item.done" and (call := held_call(item)) is not None:
            self.has_calls = True
            self._items[body.get("output_index")] = call
        elif kind in ("response.completed", "response.incomplete") and not self._items:
            output = object_of(body.get("response")).get("output")
            for place, one in enumerate(output if isinstance(output, list) else ()):
                if (call := held_call(object_of(one))) is not None:
                    self.has_calls = True
                    self._items[place] = call
        return not self.has_calls


def _any(data: bytes, marks: tuple[bytes, ...]) -> bool:
    for mark in marks:  # noqa: SIM110 - any() with a generator takes longer than the search, and every chunk comes by here
        if mark in data:
            return True
    return False

"""Holding back the tool calls of a relayed stream until all of them are known. Everything before them flows at once."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from metaclaw.domain.chat import Json, Wire
from metaclaw.wires.attempt import HeldCall
from metaclaw.wires.chat.history import add_delta, calls_of
from metaclaw.wires.fields import Object, encode_text, object_of, text_of
from metaclaw.wires.responses.history import CALLS, held_call

_EVENT_END: Final = re.compile(rb"\r?\n\r?\n|\r\r")
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
_TELLING: Final[Mapping[Wire, tuple[bytes, ...]]] = {
    Wire.CHAT: _MARKS[Wire.CHAT],
    Wire.MESSAGES: (b"tool_use", b"partial_json"),
    Wire.RESPONSES: (b"output_item.done", b"response.completed", b"response.incomplete"),
}
"""What stands in every event from which calls are read."""
_BEGINNINGS: Final = (b"data:", b"event:")
_HEADS: Final = re.compile(rb"\n\nevent:[^\r\n]*\ndata:")
"""How the next event begins, where it has one line of data."""
_ENDING: Final[Mapping[Wire, tuple[bytes, ...]]] = {
    Wire.MESSAGES: (b"ping", b"message_", b"\n:"),
    Wire.RESPONSES: (b"response.completed", b"response.failed", b"response.incomplete", b"\n:"),
}
"""What events behind a call hold that pass, or that end the answer."""
_EMPTY: Final = (b'"content":""', b'"content": ""')
_CHAT_CALL: Final = (b'"tool_calls":[{', b'"tool_calls": [{')
_WHOLE_ENDS: Final = (b"\n\n", b"\r\n\r\n")
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
    matter, text. An event goes out when it is whole. Events that wait are read once, when the calls are asked for.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._marks, self._words = _MARKS[wire], _WORDS[wire]
        self._buffer = b""
        self._held: list[bytes] = []
        self.has_calls = False
        self.has_words = False
        """Whether text or reasoning has gone out."""

    @property
    def held(self) -> bytes:
        """What waits."""
        return b"".join(self._held)

    @property
    def unfinished(self) -> bytes:
        """The beginning of an event whose end has not come."""
        return self._buffer

    @property
    def calls(self) -> list[HeldCall]:
        """The calls that wait."""
        if self._wire is not Wire.RESPONSES and (found := self._plainly_told()) is not None:
            return found
        whole, rest = _split(self.held)
        events = [event for event in (*whole, rest) if _any(event, _TELLING[self._wire])]
        if self._wire is Wire.CHAT:
            return _chat_calls(map(_body, events))
        if self._wire is Wire.MESSAGES:
            return _message_calls([_block_event(event) for event in events])
        return _response_calls(events)

    def _plainly_told(self) -> list[HeldCall] | None:
        """The calls from events that are written as nearly all are, decoded in one go; None where one is not."""
        if self._wire is Wire.CHAT:
            data = b"".join([piece for piece in self._held if b'"tool_calls":' in piece]).replace(b"\n\ndata:", b",")
            is_plain = data.startswith(b"data:") and b"function_call" not in data
        else:
            data = _HEADS.sub(b",", b"".join([piece for piece in self._held if b"content_block" in piece]))
            is_plain = data.startswith(b"event:")
        if not is_plain:
            return None
        body = b"[" + data[data.index(b"data:") + 5 :] + b"]"
        try:
            return _plain_calls(_decode_chunks(body)) if self._wire is Wire.CHAT else _message_calls(_decode_block_events(body))
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return None

    def keep(self, chunk: bytes) -> bool:
        """Take whole events behind the first call that all wait and do not end the answer, told by a few words in them. False where
        a closer look is needed: nothing has been taken then."""
        if not self.has_calls or self._buffer or not chunk.endswith(b"\n\n"):
            return False
        if self._wire is Wire.CHAT:
            if b'"tool_calls":[{' not in chunk and b'"tool_calls": [{' not in chunk:
                return False
            if not chunk.startswith(b"data:") or chunk.count(b"data:") != 1:
                return False
        elif chunk.startswith(b":") or _any(chunk, _ENDING[self._wire]):
            return False
        self._held.append(chunk)
        return True

    def feed(self, chunk: bytes) -> bytes:
        """Take bytes as they came; return those that may be sent on at once."""
        if not self._buffer and chunk.endswith(_WHOLE_ENDS):
            if self.has_calls:
                if self._all_waits(chunk):
                    self._held.append(chunk)
                    return b""
            elif not _any(chunk, self._marks):
                self._look_for_words(chunk)
                return chunk
        events, self._buffer = _split(self._buffer + chunk if self._buffer else chunk)
        if self.has_calls and self._all_waits(whole := b"".join(events)):
            self._held.append(whole)
            return b""
        passed: list[bytes] = []
        for place, event in enumerate(events):
            had_calls = self.has_calls
            (passed if self._passes(event) else self._held).append(event)
            if self.has_calls and not had_calls and self._all_waits(rest := b"".join(events[place + 1 :])):
                self._held.append(rest)
                break
        return b"".join(passed)

    def close(self) -> bytes:
        """What is left when the stream has ended."""
        rest, self._buffer = self._buffer, b""
        if not rest or self._passes(rest):
            return rest
        self._held.append(rest)
        return b""

    def _all_waits(self, chunk: bytes) -> bool:
        """Whether whole events behind the first call all wait, told without reading them; False where some may pass."""
        if chunk.startswith(b":") or b"\n:" in chunk:
            return False
        if self._wire is Wire.CHAT:
            return sum(map(chunk.count, _CHAT_CALL)) == chunk.count(b"data:")
        return self._wire is Wire.RESPONSES or b"ping" not in chunk

    def _waits_for_sure(self, event: bytes) -> bool:
        """Whether an event with data behind the first call waits, told without reading it."""
        match self._wire:
            case Wire.CHAT:
                return _any(event, _CHAT_CALL)
            case Wire.MESSAGES:
                return b"ping" not in event
            case Wire.RESPONSES:
                return True

    def _look_for_words(self, data: bytes) -> None:
        if not self.has_words:
            self.has_words = _any(data, self._words) and not _any(data, _EMPTY)

    def _passes(self, event: bytes) -> bool:
        if not self.has_calls and not _any(event, self._marks):
            self._look_for_words(event)
            return True
        if self.has_calls and event.startswith(_BEGINNINGS) and self._waits_for_sure(event):
            return False
        body = _body(event)
        if body is None:
            return True  # a comment
        if self._wire is Wire.CHAT:
            return self._chat_passes(body)
        self.has_calls = self.has_calls or (_begins_block(body) if self._wire is Wire.MESSAGES else _begins_item(body))
        return not self.has_calls or (self._wire is Wire.MESSAGES and body.get("type") == "ping")

    def _chat_passes(self, body: Object) -> bool:
        choices = _choices(body)
        is_text = bool(choices) and not body.get("usage")
        for choice in choices:
            has_calls = bool(_call_delta(choice))
            self.has_calls = self.has_calls or has_calls
            is_text = is_text and not has_calls and not choice.get("finish_reason")
        return not self.has_calls or is_text


def _split(data: bytes) -> tuple[list[bytes], bytes]:
    """Whole events with the blank lines that end them, and what is left behind the last."""
    if b"\r" not in data:
        *events, rest = data.split(b"\n\n")
        return [event + b"\n\n" for event in events], rest
    events, at = [], 0
    for found in _EVENT_END.finditer(data):
        events.append(data[at : found.end()])
        at = found.end()
    return events, data[at:]


def _body(event: bytes) -> Object | None:
    """The data of an event; None where it has none, and empty where that is no JSON object."""
    lines = [line[5:] for line in event.splitlines() if line.startswith(b"data:")]
    if not lines:
        return None
    try:
        return object_of(_decode(lines[0] if len(lines) == 1 else b"\n".join(lines)))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}


def _choices(body: Object) -> list[Object]:
    choices = body.get("choices")
    return [object_of(choice) for choice in choices] if isinstance(choices, list) else []


def _call_delta(choice: Object) -> Object:
    delta = object_of(choice.get("delta"))
    return {key: delta[key] for key in ("tool_calls", "function_call") if delta.get(key)}


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct, gc=False):
    index: int
    id: str | None = None
    function: _Function | None = None
    custom: msgspec.Raw | None = None


class _Delta(msgspec.Struct, gc=False):
    tool_calls: list[_Call] | None = None
    function_call: msgspec.Raw | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta
    index: int = 0


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice]


_decode_chunks = msgspec.json.Decoder(list[_Chunk]).decode


def _plain_calls(chunks: Iterable[_Chunk]) -> list[HeldCall] | None:
    """The calls in events that hold nothing but one choice's calls of functions; None for others."""
    known: dict[int, tuple[str, list[str], list[str]]] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            delta = choice.delta
            if choice.index or delta.function_call is not None:
                return None
            for call in delta.tool_calls or ():
                function = call.function
                if function is None or call.custom is not None:
                    return None
                found = known.setdefault(call.index, (call.id or "", [], []))
                if call.id and call.id != found[0]:
                    return None
                if function.name:
                    found[1][:] = [function.name]
                if function.arguments:
                    found[2].append(function.arguments)
    return [
        HeldCall(identity or f"call_{place}", "".join(name), "".join(arguments), "function")
        for place, (_, (identity, name, arguments)) in enumerate(sorted(known.items()))
    ]


def _chat_calls(bodies: Iterable[Object | None]) -> list[HeldCall]:
    messages: dict[int, Object] = {}
    for body in bodies:
        for choice in _choices(body or {}):
            if calls := _call_delta(choice):
                place = choice.get("index")
                add_delta(messages.setdefault(place if isinstance(place, int) else 0, {}), calls)
    return [call for place in sorted(messages) for call in calls_of(messages[place])]


def _begins_block(body: Object) -> bool:
    return body.get("type") == "content_block_start" and object_of(body.get("content_block")).get("type") == "tool_use"


class _JsonDelta(msgspec.Struct, gc=False):
    partial_json: str | None = None


class _Block(msgspec.Struct, gc=False):
    type: str
    id: str = ""
    name: str = ""
    input: dict[str, Any] | None = None


class _BlockEvent(msgspec.Struct, gc=False):
    type: str
    index: int | None = None
    delta: _JsonDelta | None = None
    content_block: _Block | None = None


_decode_block_events = msgspec.json.Decoder(list[_BlockEvent]).decode


def _message_calls(events: Iterable[_BlockEvent]) -> list[HeldCall]:
    blocks: dict[int | None, list[str]] = {}
    for one in events:
        block, delta = one.content_block, one.delta
        if one.type == "content_block_start" and block is not None and block.type == "tool_use":
            blocks[one.index] = [block.id, block.name, *([encode_text(block.input)] if block.input else [])]
        elif one.type == "content_block_delta" and delta is not None and delta.partial_json and one.index in blocks:
            blocks[one.index].append(delta.partial_json)
    return [HeldCall(block[0], block[1], "".join(block[2:]) or "{}", "tool_use") for block in blocks.values()]


def _block_event(event: bytes) -> _BlockEvent:
    """One event by itself, whatever is wrong with it."""
    body = _body(event) or {}
    block, index = object_of(body.get("content_block")), body.get("index")
    piece = text_of(object_of(body.get("delta")).get("partial_json"))
    begun = _Block(text_of(block.get("type")), text_of(block.get("id")), text_of(block.get("name")), object_of(block.get("input")))
    return _BlockEvent(text_of(body.get("type")), index if isinstance(index, int) else None, _JsonDelta(piece), begun)


def _begins_item(body: Object) -> bool:
    """Whether an event tells of a call for the first time: as it begins, is done, or only in the whole answer."""
    match body.get("type"):
        case "response.output_item.added":
            return object_of(body.get("item")).get("type") in CALLS
        case "response.output_item.done":
            return held_call(object_of(body.get("item"))) is not None
        case "response.completed" | "response.incomplete":
            return bool(_items_of(body))
        case _:
            return False


def _items_of(body: Object) -> dict[Json, HeldCall]:
    output = object_of(body.get("response")).get("output")
    items = enumerate(output if isinstance(output, list) else ())
    return {place: call for place, item in items if (call := held_call(object_of(item))) is not None}


def _response_calls(events: Sequence[bytes]) -> list[HeldCall]:
    items: dict[Json, HeldCall] = {}
    for event in events:
        if items and b"output_item.done" not in event:
            continue  # the whole answer says the same again
        body = _body(event) or {}
        match body.get("type"):
            case "response.output_item.done" if (call := held_call(object_of(body.get("item")))) is not None:
                items[body.get("output_index")] = call
            case "response.completed" | "response.incomplete" if not items:
                items = _items_of(body)
            case _:
                pass
    return list(items.values())


def _any(data: bytes, marks: tuple[bytes, ...]) -> bool:
    return any(mark in data for mark in marks)

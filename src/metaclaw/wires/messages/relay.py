"""Changes to relayed Anthropic messages: find and hold tool calls, restore true answers, add a
line.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from metaclaw.domain.chat import ChatRequest, Json, Wire
from metaclaw.domain.turn import TrueAnswer
from metaclaw.wires.fields import Object, decode_object, json_text, list_of, object_of, text_of
from metaclaw.wires.format import AttemptMessages, CallOutput, FooterPlace, HeldCall
from metaclaw.wires.messages.answers import MessagesWriter
from metaclaw.wires.relay import (
    events_of,
    has_mark,
    ids_of,
    is_shown,
    read_json,
    with_true_id,
    without_empty,
)

_PIECES = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
_UNCACHED = ("thinking", "redacted_thinking")


def read_attempt(answer: bytes, stream: bool) -> AttemptMessages:
    if stream:
        identity, blocks, is_exact = _streamed(answer)
    else:
        body = decode_object(answer, "an answer")
        identity, is_exact = text_of(body.get("id")), True
        blocks = [without_empty(block) for block in _blocks(body.get("content"))]
    # Some servers send empty texts, but none accepts them in a history.
    kept: list[Json] = [
        block for block in blocks if block.get("type") != "text" or block.get("text")
    ]
    calls = tuple(_calls_in(blocks))
    is_exact = is_exact and all(
        call.id and isinstance(read_json(call.arguments), dict) for call in calls
    )
    return AttemptMessages(identity, ({"role": "assistant", "content": kept},), calls, is_exact)


def _blocks(content: Json) -> list[Object]:
    return [object_of(block) for block in list_of(content)]


def _calls_in(blocks: Iterable[Object]) -> list[HeldCall]:
    return [
        HeldCall(
            text_of(block.get("id")),
            text_of(block.get("name")),
            json_text(block.get("input")) or "{}",
            "tool_use",
        )
        for block in blocks
        if block.get("type") == "tool_use"
    ]


def _streamed(answer: bytes) -> tuple[str, list[Object], bool]:
    identity, blocks, written = _gathered(answer)
    is_exact = True
    for place, text in written.items():
        given = read_json(text)
        is_exact = is_exact and isinstance(given, dict)
        blocks[place]["input"] = object_of(given)
    return identity, [blocks[place] for place in sorted(blocks)], is_exact


def _gathered(answer: bytes) -> tuple[str, dict[int, Object], dict[int, str]]:
    """The id, blocks and written inputs of a stream."""
    identity = ""
    blocks: dict[int, Object] = {}
    written: dict[int, str] = {}
    for body in events_of(answer):
        index = body.get("index")
        place = index if isinstance(index, int) else -1
        match body.get("type"):
            case "message_start":
                identity = text_of(object_of(body.get("message")).get("id"))
            case "content_block_start":
                blocks[place] = without_empty(object_of(body.get("content_block")), ("input",))
            case "content_block_delta" if place in blocks:
                _add(blocks[place], object_of(body.get("delta")), written, place)
            case _:
                pass
    return identity, blocks, written


def _add(block: Object, delta: Object, written: dict[int, str], place: int) -> None:
    kind = text_of(delta.get("type"))
    if kind == "input_json_delta":
        written[place] = written.get(place, "") + text_of(delta.get("partial_json"))
    elif kind == "citations_delta":
        citations = block.setdefault("citations", [])
        assert isinstance(citations, list)
        citations.append(delta.get("citation"))
    elif (key := _PIECES.get(kind)) is not None:
        block[key] = text_of(block.get(key)) + text_of(delta.get(key))


def call_results(results: Sequence[CallOutput]) -> list[Json]:
    blocks: list[Json] = []
    for one in results:
        block: Object = {"type": "tool_result", "tool_use_id": one.call.id, "content": one.text}
        blocks.append({**block, "is_error": True} if one.is_error else block)
    return [{"role": "user", "content": blocks}] if blocks else []


def own_words(text: str) -> Json:
    return {"role": "assistant", "content": [{"type": "text", "text": text}]}


def restore(
    items: Sequence[Json], answer: TrueAnswer, messages: Sequence[Json]
) -> list[Json] | None:
    restored: list[Json] = []
    is_found = False
    ours: list[Json] = []  # results of ours, which must be in one message with the client's
    for item in items:
        message = object_of(item)
        if message.get("role") == "assistant" and is_shown_content(message.get("content"), answer):
            restored += _cached(message.get("content"), messages)
            is_found = True
            if object_of(restored[-1]).get("role") == "user":
                ours = list_of(object_of(restored.pop()).get("content"))
            continue
        known = (_answered(message, answer) or item) if is_found else item
        restored.append(_joined(ours, object_of(known)) if ours else known)
        ours = []
    if ours:
        restored.append({"role": "user", "content": ours})
    return restored if is_found else None


def _joined(results: list[Json], message: Object) -> Object:
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list_of(content)
    return {**message, "content": [*results, *blocks]}


def is_shown_content(content: Json, answer: TrueAnswer) -> bool:
    """Whether a message with this content is what the client was shown."""
    calls = [
        (text_of(block.get("id")), block.get("input"))
        for block in _blocks(content)
        if block.get("type") == "tool_use"
    ]
    return is_shown(answer.calls, calls) if calls else has_mark(answer, content)


def _answered(message: Object, answer: TrueAnswer) -> Object | None:
    """The message with the provider's ids in its results, if a client has changed them; else
    None.
    """
    content, known = message.get("content"), ids_of(answer)
    if message.get("role") != "user" or not isinstance(content, list):
        return None
    changed = [with_true_id(block, "tool_use_id", known) for block in _blocks(content)]
    if not any(changed):
        return None
    blocks = [true or block for true, block in zip(changed, content, strict=True)]
    return {**message, "content": blocks}


def _cached(content: Json, messages: Sequence[Json]) -> list[Json]:
    """The true messages, with the client's last cache breakpoint if it set one in the message it
    was shown.
    """
    marks = [block["cache_control"] for block in _blocks(content) if block.get("cache_control")]
    last = object_of(messages[-1]) if messages else {}
    inner = last.get("content")
    if (
        not marks
        or not isinstance(inner, list)
        or not inner
        or object_of(inner[-1]).get("type") in _UNCACHED
    ):
        return list(messages)
    return [
        *messages[:-1],
        {**last, "content": [*inner[:-1], {**object_of(inner[-1]), "cache_control": marks[-1]}]},
    ]


def resume(request: ChatRequest, passed: bytes) -> MessagesWriter:
    begun = sum(body.get("type") == "content_block_start" for body in events_of(passed))
    writer = MessagesWriter(request)
    writer.resume(begun)
    return writer


_PLAIN_PARTS: Final = frozenset(("text", "thinking", "redacted_thinking"))


class MessagesCalls:
    """Tool calls in messages."""

    marks: tuple[bytes, ...] = (b"tool_use",)
    words: tuple[bytes, ...] = (b"content_block_delta",)

    def whole(self, answer: Object) -> list[HeldCall]:
        return _calls_in(_blocks(answer.get("content")))

    def read(self, held: bytes) -> list[HeldCall]:
        found = _plain_calls(held)
        if found is not None:
            return found
        # As the provider wrote them: damaged arguments are judged, too.
        _, blocks, written = _gathered(held)
        said = {place: {**blocks[place], "input": text} for place, text in written.items()}
        return _calls_in((blocks | said).values())

    def shown(self, sent: bytes) -> list[HeldCall]:
        return self.read(sent)

    def begun(self, body: Object) -> list[str]:
        block = object_of(body.get("content_block"))
        return [text_of(block.get("name"))] if block.get("type") == "tool_use" else []

    def passes(self, body: Object) -> bool:
        return body.get("type") == "ping"

    def all_wait(self, chunk: bytes) -> bool:
        return b"ping" not in chunk


class _Block(msgspec.Struct, gc=False):
    type: str
    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"{}")


class _Delta(msgspec.Struct, gc=False):
    partial_json: str = ""


class _Event(msgspec.Struct, gc=False):
    type: str
    index: int = -1
    delta: _Delta | None = None
    content_block: _Block | None = None


_decode_events = msgspec.json.Decoder(list[_Event]).decode
_NAMES: Final = (
    b"content_block_delta",
    b"content_block_start",
    b"content_block_stop",
    b"message_delta",
    b"message_stop",
)
_BETWEEN: Final = (*(b"\n\nevent: " + name + b"\ndata:" for name in _NAMES), b"\n\ndata:")


def _plain_calls(held: bytes) -> list[HeldCall] | None:
    """The calls, decoded at once, if all events have one line of data, as nearly always; else
    None.
    """
    bodies = b"\n\n" + held
    for head in _BETWEEN:  # a regular expression takes several times as long
        bodies = bodies.replace(head, b",")
    try:
        events = _decode_events(b"[" + bodies[1:] + b"]")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    blocks: dict[int, list[str]] = {}
    for event in events:
        if event.type == "content_block_delta":
            if event.delta is not None and event.index in blocks:
                blocks[event.index].append(event.delta.partial_json)
        elif (
            event.type == "content_block_start"
            and (block := event.content_block) is not None
            and block.type == "tool_use"
        ):
            if bytes(block.input) != b"{}":
                return None
            blocks[event.index] = [block.id, block.name]
    return [
        HeldCall(identity, name, "".join(pieces) or "{}", "tool_use")
        for identity, name, *pieces in blocks.values()
    ]


class MessagesFooter:
    """Appends a line to a message."""

    def add_to_answer(self, place: FooterPlace, answer: Object) -> bool:
        content = answer.get("content")
        if answer.get("stop_reason") != "end_turn" or not isinstance(content, list):
            return False
        if not all(text_of(part.get("type")) in _PLAIN_PARTS for part in _blocks(content)):
            return False
        place.note("".join(text_of(part.get("text")) for part in _blocks(content)))
        content.append({"type": "text", "text": place.line})
        return place.may_add

    def add_to_event(self, place: FooterPlace, raw: bytes, body: Object) -> bytes:
        match body.get("type"):
            case "content_block_start":
                place.parts += 1
                place.is_plain = (
                    place.is_plain
                    and text_of(object_of(body.get("content_block")).get("type")) in _PLAIN_PARTS
                )
            case "content_block_delta":
                place.note(text_of(object_of(body.get("delta")).get("text")))
            case "message_delta" if (
                object_of(body.get("delta")).get("stop_reason") == "end_turn" and place.may_add
            ):
                place.is_added = True
                writer = MessagesWriter(ChatRequest(Wire.MESSAGES, "", ()))
                writer.resume(place.parts)
                return writer.write_whole(place.line) + raw
        return raw

"""Changes to relayed chat completions: find and hold tool calls, restore true answers, add a
line.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from metaclaw.domain.chat import ChatRequest, Json
from metaclaw.domain.turn import TrueAnswer
from metaclaw.wires.chat.answers import ChatWriter
from metaclaw.wires.fields import Object, decode_object, json_text, list_of, object_of, text_of
from metaclaw.wires.format import AttemptMessages, CallOutput, FooterPlace, HeldCall, first_object
from metaclaw.wires.relay import (
    events_of,
    has_mark,
    ids_of,
    is_shown,
    with_true_id,
    without_empty,
)
from metaclaw.wires.sse import event_bytes, has_any, split_events
from metaclaw.wires.translation import custom_arguments


def read_attempt(answer: bytes, stream: bool) -> AttemptMessages:
    if stream:
        identity, messages = _streamed(answer)
    else:
        body = decode_object(answer, "an answer")
        identity = text_of(body.get("id"))
        messages = [object_of(choice.get("message")) for choice in _choices(body)]
    messages = messages or [{}]
    calls = [call for message in messages for call in calls_of(message)]
    message = without_empty({"role": "assistant", "content": None, **messages[0]}, ("content",))
    if isinstance(message.get("tool_calls"), list):
        message["tool_calls"] = [
            _known_call(call, calls[place])
            for place, call in enumerate(list_of(message["tool_calls"]))
        ]
    is_exact = len(messages) == 1 and not message.get("function_call")
    return AttemptMessages(identity, (message,), tuple(calls), is_exact)


def _streamed(answer: bytes) -> tuple[str, list[Object]]:
    identity = ""
    messages: dict[int, Object] = {}
    for body in events_of(answer):
        identity = identity or text_of(body.get("id"))
        for choice in _choices(body):
            _add_delta(_message_of(choice, messages), object_of(choice.get("delta")))
    return identity, [messages[place] for place in sorted(messages)]


def _message_of(choice: Object, messages: dict[int, Object]) -> Object:
    place = choice.get("index")
    return messages.setdefault(place if isinstance(place, int) else 0, {})


def _add_delta(message: Object, delta: Object) -> None:
    for key, value in delta.items():
        before = message.get(key)
        if key == "tool_calls":
            calls = message.setdefault("tool_calls", [])
            assert isinstance(calls, list)
            for number, call in enumerate(map(object_of, list_of(value))):
                _add_call(calls, call, number)
            calls.sort(key=_index)
        elif key == "function_call" and isinstance(value, dict):
            _add_text(
                object_of(message.setdefault("function_call", {"name": "", "arguments": ""})), value
            )
        elif isinstance(value, str) and isinstance(before, str) and key != "role":
            message[key] = before + value
        elif isinstance(value, list) and isinstance(before, list):
            message[key] = [*before, *value]
        elif value is not None:
            message[key] = value


def _add_call(calls: list[Json], delta: Object, number: int) -> None:
    index, identity = delta.get("index"), text_of(delta.get("id"))
    place = index if isinstance(index, int) else number
    known = next((one for one in reversed(calls) if object_of(one).get("index") == place), None)
    if known is None or (identity and object_of(known).get("id") not in (identity, None)):
        call: Object = {"index": place, "type": text_of(delta.get("type")) or "function"}
        if identity:
            call["id"] = identity
        calls.append(call)
        known = call
    found = object_of(known)
    for key in ("function", "custom"):
        if isinstance(delta.get(key), dict):
            _add_text(object_of(found.setdefault(key, {})), object_of(delta[key]))
    for key, value in delta.items():
        if key not in ("index", "id", "type", "function", "custom") and value is not None:
            found[key] = value


def _index(call: Json) -> int:
    index = object_of(call).get("index")
    return index if isinstance(index, int) else 0


def _add_text(into: Object, delta: Object) -> None:
    for key, value in delta.items():
        if key == "name":
            into[key] = text_of(value) or text_of(into.get(key))
        elif isinstance(value, str):
            into[key] = text_of(into.get(key)) + value
        elif value is not None:
            into[key] = value


def calls_of(message: Object) -> list[HeldCall]:
    """The calls of a message, including the deprecated `function_call`."""
    found = []
    for place, call in enumerate(map(object_of, list_of(message.get("tool_calls")))):
        identity = text_of(call.get("id")) or f"call_{place}"
        if isinstance(call.get("custom"), dict):
            custom = object_of(call["custom"])
            found.append(
                HeldCall(
                    identity,
                    text_of(custom.get("name")),
                    custom_arguments(text_of(custom.get("input"))),
                    "custom",
                )
            )
        else:
            function = object_of(call.get("function"))
            found.append(
                HeldCall(
                    identity,
                    text_of(function.get("name")),
                    json_text(function.get("arguments")),
                    "function",
                )
            )
    if isinstance(message.get("function_call"), dict):
        old = object_of(message["function_call"])
        found.append(
            HeldCall("", text_of(old.get("name")), json_text(old.get("arguments")), "function_call")
        )
    return found


def _known_call(call: Json, held: HeldCall) -> Object:
    """A call as a request contains it: with an id, its arguments as text, and without its index in
    the stream.
    """
    known: Object = {
        **{key: value for key, value in object_of(call).items() if key != "index"},
        "id": held.id,
    }
    if isinstance(known.get("function"), dict):
        known["function"] = {**object_of(known["function"]), "arguments": held.arguments}
    return known


def call_results(results: Sequence[CallOutput]) -> list[Json]:
    return [{"role": "tool", "tool_call_id": one.call.id, "content": one.text} for one in results]


def own_words(text: str) -> Json:
    return {"role": "assistant", "content": text}


def restore(
    items: Sequence[Json], answer: TrueAnswer, messages: Sequence[Json]
) -> list[Json] | None:
    restored: list[Json] = []
    is_found = False
    known = ids_of(answer)
    for item in items:
        message = object_of(item)
        if message.get("role") == "assistant" and _is_shown(message, answer):
            restored += messages
            is_found = True
        else:
            is_result = is_found and message.get("role") == "tool"
            true = with_true_id(message, "tool_call_id", known) if is_result else None
            restored.append(true or item)
    return restored if is_found else None


def _is_shown(message: Object, answer: TrueAnswer) -> bool:
    calls = calls_of(message)
    if calls:
        return is_shown(answer.calls, [(call.id, call.arguments) for call in calls])
    return has_mark(answer, message.get("content"))


def resume(request: ChatRequest, passed: bytes) -> ChatWriter:
    writer = ChatWriter(request)
    writer.resume(next(events_of(passed), {}))
    return writer


_CALL_MARKS: Final = (b"tool_calls", b"function_call")
_DONE: Final = (b"data: [DONE]", b"data:[DONE]")
_WAITING: Final = (
    *(b'"tool_calls":[{', b'"tool_calls": [{'),
    *(b'"finish_reason":"', b'"finish_reason": "', b'"choices":[]', b'"choices": []'),
)
"""An event behind a call that contains one of these waits. They cannot occur in text, where
quotation marks are escaped.
"""


class ChatCalls:
    """Tool calls in chat completions. Text behind a call may pass, because the order does not
    matter.
    """

    marks: tuple[bytes, ...] = _CALL_MARKS
    words: tuple[bytes, ...] = (b'"content":"', b'"content": "', b'"reasoning')

    def whole(self, answer: Object) -> list[HeldCall]:
        return [
            call
            for choice in _choices(answer)
            for call in calls_of(object_of(choice.get("message")))
        ]

    def read(self, held: bytes) -> list[HeldCall]:
        found = _plain_calls(held)
        if found is not None:
            return found
        return [call for message in _streamed(held)[1] for call in calls_of(message)]

    def shown(self, sent: bytes) -> list[HeldCall]:
        return self.read(sent)

    def begun(self, body: Object) -> list[str]:
        found = []
        for made in map(_call_delta, _choices(body)):
            for call in map(object_of, list_of(made.get("tool_calls"))):
                said = object_of(call.get("function") or call.get("custom"))
                found.append(text_of(said.get("name")))
            if "function_call" in made:
                found.append("")
        return found

    def passes(self, body: Object) -> bool:
        choices = _choices(body)
        if not choices or body.get("usage"):
            return False
        return not any(_call_delta(choice) or choice.get("finish_reason") for choice in choices)

    def all_wait(self, chunk: bytes) -> bool:
        if not has_any(chunk, self.words):
            return True
        for event in [chunk] if chunk.count(b"data:") == 1 else split_events(chunk)[0]:
            if not has_any(event, _WAITING) and not event.startswith(_DONE):
                return False
        return True


def _choices(body: Object) -> list[Object]:
    return [object_of(choice) for choice in list_of(body.get("choices"))]


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


def _plain_calls(held: bytes) -> list[HeldCall] | None:
    """The calls of one choice, decoded at once, if all events are plain data, as nearly always;
    else None.
    """
    known: dict[int, tuple[str, list[str], list[str]]] = {}
    if not held.startswith(b"data:"):
        return None
    bodies = held[len(b"data:") :].replace(b"\n\ndata:", b",").rstrip()
    if bodies.endswith(b"[DONE]"):
        bodies = bodies.removesuffix(b"[DONE]").rstrip().removesuffix(b",")
    try:
        chunks = _decode_chunks(b"[" + bodies + b"]")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    for choice in (choice for chunk in chunks for choice in chunk.choices):
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


class ChatFooter:
    """Appends a line to a chat completion."""

    def add_to_answer(self, place: FooterPlace, answer: Object) -> bool:
        choices = _choices(answer)
        choice = choices[0] if len(choices) == 1 else {}
        message = object_of(choice.get("message"))
        content = message.get("content")
        if (
            choice.get("finish_reason") != "stop"
            or message.get("tool_calls")
            or not isinstance(content, str)
        ):
            return False
        place.note(content)
        message["content"] = content + place.line
        return place.may_add

    def add_to_event(self, place: FooterPlace, raw: bytes, body: Object) -> bytes:
        choice = first_object(body.get("choices"))
        delta = object_of(choice.get("delta"))
        if (
            delta.get("tool_calls")
            or delta.get("function_call")
            or choice.get("index") not in (0, None)
        ):
            place.is_plain = False
            return raw
        place.note(text_of(delta.get("content")))
        if choice.get("finish_reason") != "stop" or not place.may_add:
            return raw
        place.is_added = True
        added: Json = {
            **choice,
            "delta": {"content": place.line},
            "finish_reason": None,
            "logprobs": None,
        }
        kept = {key: value for key, value in body.items() if key != "usage"}
        if not delta.get("content"):
            return event_bytes({**kept, "choices": [added]}) + raw
        text = event_bytes({**kept, "choices": [{**choice, "finish_reason": None}]}) + event_bytes(
            {**kept, "choices": [added]}
        )
        return text + event_bytes({**body, "choices": [{**choice, "delta": {}}]})

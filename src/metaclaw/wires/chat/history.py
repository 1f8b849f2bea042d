"""Attempts in terms of chat completions: read, refused, and put back into later requests."""

from collections.abc import Sequence

from metaclaw.domain.chat import ChatRequest, Json
from metaclaw.domain.enforcement import TrueAnswer
from metaclaw.wires.attempt import Attempt, HeldCall, events_of, has_mark, ids_of, is_shown, plain_id, told
from metaclaw.wires.chat.stream import ChatWriter
from metaclaw.wires.fields import Object, decode_object, object_of, text_of
from metaclaw.wires.tools import custom_arguments


def read_attempt(said: bytes, *, stream: bool) -> Attempt:
    """What a provider said, whole or streamed. Raises UpstreamError for a whole answer that is none."""
    if stream:
        identity, messages = _streamed(said)
    else:
        body = decode_object(said, "an answer")
        choices = body.get("choices")
        identity = text_of(body.get("id"))
        messages = [object_of(object_of(choice).get("message")) for choice in (choices if isinstance(choices, list) else [])]
    messages = messages or [{}]
    calls = [call for message in messages for call in calls_of(message)]
    message = told({"role": "assistant", "content": None, **messages[0]}, ("content",))
    if isinstance(message.get("tool_calls"), list):
        message["tool_calls"] = [_known_call(call, calls[place]) for place, call in enumerate(_list(message["tool_calls"]))]
    is_exact = len(messages) == 1 and not message.get("function_call")
    return Attempt(identity, (message,), tuple(calls), is_exact)


def _streamed(said: bytes) -> tuple[str, list[Object]]:
    identity = ""
    messages: dict[int, Object] = {}
    for body in events_of(said):
        identity = identity or text_of(body.get("id"))
        for choice in map(object_of, _list(body.get("choices"))):
            place = choice.get("index")
            message = messages.setdefault(place if isinstance(place, int) else 0, {})
            add_delta(message, object_of(choice.get("delta")))
    return identity, [messages[place] for place in sorted(messages)]


def add_delta(message: Object, delta: Object) -> None:
    """Add one chunk to a message."""
    for key, value in delta.items():
        before = message.get(key)
        if key == "tool_calls":
            calls = message.setdefault("tool_calls", [])
            assert isinstance(calls, list)
            for number, call in enumerate(map(object_of, _list(value))):
                _add_call(calls, call, number)
            calls.sort(key=_index)
        elif key == "function_call" and isinstance(value, dict):
            _add_text(object_of(message.setdefault("function_call", {"name": "", "arguments": ""})), value)
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
    """The calls of a message, those of the old kind included."""
    found = []
    for place, call in enumerate(map(object_of, _list(message.get("tool_calls")))):
        identity = text_of(call.get("id")) or f"call_{place}"
        if isinstance(call.get("custom"), dict):
            custom = object_of(call["custom"])
            found.append(HeldCall(identity, text_of(custom.get("name")), custom_arguments(text_of(custom.get("input"))), "custom"))
        else:
            function = object_of(call.get("function"))
            found.append(HeldCall(identity, text_of(function.get("name")), text_of(function.get("arguments")), "function"))
    if isinstance(message.get("function_call"), dict):
        old = object_of(message["function_call"])
        found.append(HeldCall("", text_of(old.get("name")), text_of(old.get("arguments")), "function_call"))
    return found


def _known_call(call: Json, held: HeldCall) -> Object:
    """A call as a request says it: with an id, and without its place in a stream."""
    return {**{key: value for key, value in object_of(call).items() if key != "index"}, "id": held.id}


def call_results(calls: Sequence[HeldCall], texts: Sequence[str]) -> list[Json]:
    """What is told of each call in place of its tool's result."""
    return [{"role": "tool", "tool_call_id": call.id, "content": text} for call, text in zip(calls, texts, strict=True)]


def own_words(text: str) -> Json:
    """A message of the assistant."""
    return {"role": "assistant", "content": text}


def restore(items: Sequence[Json], answer: TrueAnswer, messages: Sequence[Json]) -> list[Json] | None:
    """The items with the true messages in place of the one that the client was shown; None where it is not among them."""
    restored: list[Json] = []
    is_found = False
    known = ids_of(answer)
    for item in items:
        message = object_of(item)
        if message.get("role") == "assistant" and _is_shown(message, answer):
            restored += messages
            is_found = True
        elif is_found and message.get("role") == "tool" and (true := known.get(plain_id(text_of(message.get("tool_call_id"))))):
            restored.append(item if message["tool_call_id"] == true else {**message, "tool_call_id": true})
        else:
            restored.append(item)
    return restored if is_found else None


def _is_shown(message: Object, answer: TrueAnswer) -> bool:
    calls = calls_of(message)
    if calls:
        return is_shown(answer.calls, [(call.id, call.arguments) for call in calls])
    return has_mark(answer, message.get("content"))


def resume(request: ChatRequest, passed: bytes) -> ChatWriter:
    """A writer that goes on behind the events a client has been sent."""
    writer = ChatWriter(request)
    for body in events_of(passed):
        writer.resume(body)
        break
    return writer


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []

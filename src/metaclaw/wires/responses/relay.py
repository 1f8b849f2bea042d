"""Relayed responses: their tool calls held back, read, and put back into later requests; a line added."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from metaclaw.domain.chat import ChatRequest, Json
from metaclaw.domain.ids import new_id
from metaclaw.domain.turn import TrueAnswer
from metaclaw.wires.fields import Object, decode_object, encode_text, json_text, list_of, object_of, text_of
from metaclaw.wires.footer import Footer
from metaclaw.wires.held_calls import AttemptMessages, HeldCall, event_body, events_of, has_mark, ids_of, is_shown, plain_id
from metaclaw.wires.responses.streams import ResponsesWriter
from metaclaw.wires.sse import event_bytes, events_with
from metaclaw.wires.translation import custom_arguments, flat_name

_ENDS = ("response.completed", "response.incomplete", "response.failed")
# Calls that the client runs, and the name that checks know the tool by. `None`: the item names it itself.
CALLS: Final[Mapping[str, str | None]] = {
    "function_call": None,
    "custom_tool_call": None,
    "local_shell_call": "local_shell",
    "shell_call": "shell",
    "apply_patch_call": "apply_patch",
    "computer_call": "computer",
}
# Calls whose results are texts, so that they can be refused.
_REFUSABLE = frozenset(("function_call", "custom_tool_call"))


def read_attempt(said: bytes, *, stream: bool) -> AttemptMessages:
    """What a provider said, whole or streamed. Raises UpstreamError for a whole answer that is none."""
    if stream:
        identity, items = _streamed(said)
    else:
        body = decode_object(said, "an answer")
        output = body.get("output")
        identity, items = text_of(body.get("id")), list(list_of(output))
    calls = tuple(held for item in items if (held := held_call(object_of(item))) is not None)
    return AttemptMessages(identity, tuple(items), calls, all(call.id and call.kind in _REFUSABLE for call in calls))


def _streamed(said: bytes) -> tuple[str, list[Json]]:
    identity = ""
    items: dict[int, Json] = {}
    for body in events_of(said):
        kind, index = body.get("type"), body.get("output_index")
        response = object_of(body.get("response"))
        identity = text_of(response.get("id")) or identity
        if kind == "response.output_item.done" and isinstance(index, int):
            items[index] = body.get("item")
        elif kind in _ENDS and not items:
            output = response.get("output")
            items = dict(enumerate(list_of(output)))
    return identity, [items[place] for place in sorted(items)]


def held_call(item: Object) -> HeldCall | None:
    """The call that an output item is, if the client is to run it."""
    kind = text_of(item.get("type"))
    if kind not in CALLS:
        return None
    identity = text_of(item.get("call_id")) or text_of(item.get("id"))
    fixed = CALLS[kind]
    if fixed is not None:
        given = item.get("action") or item.get("operation") or item.get("actions")
        return HeldCall(identity, fixed, encode_text(object_of(given) if isinstance(given, dict) else {"input": given}), kind)
    name = flat_name(text_of(item.get("namespace")) or None, text_of(item.get("name")))
    if kind == "custom_tool_call":
        return HeldCall(identity, name, custom_arguments(text_of(item.get("input"))), kind)
    return HeldCall(identity, name, json_text(item.get("arguments")), kind)


def call_results(calls: Sequence[HeldCall], texts: Sequence[str]) -> list[Json]:
    """What is told of each call in place of its tool's result."""
    return [{"type": f"{call.kind}_output", "call_id": call.id, "output": text} for call, text in zip(calls, texts, strict=True)]


def own_words(text: str) -> Json:
    """A message of the assistant."""
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def restore(items: Sequence[Json], answer: TrueAnswer, messages: Sequence[Json]) -> list[Json] | None:
    """The items with the true ones in place of those that the client was shown; None where they are not among them."""
    objects = [object_of(item) for item in items]
    known = ids_of(answer)
    shown = _places(objects, answer, known)
    if not shown:
        return None
    first = shown[0]
    while first and _is_said(objects[first - 1]):
        first -= 1
    gone = {*range(first, shown[0]), *shown}
    for place in range(shown[0], shown[-1]):
        if _is_said(objects[place]):
            gone.add(place)
    restored: list[Json] = []
    for place, item in enumerate(items):
        if place == first:
            restored += messages
        if place not in gone:
            restored.append(_answered(objects[place], known) or item)
    return restored


def _places(objects: Sequence[Object], answer: TrueAnswer, known: Mapping[str, str]) -> list[int]:
    """Where the calls stand that the client was shown, or the message with the mark."""
    if not answer.calls:
        return _marked(objects, answer)
    places = [place for place, item in enumerate(objects) if plain_id(text_of(item.get("call_id"))) in known and _is_call(item)]
    if not places:
        return _referred(objects, known)
    calls = [held for place in places if (held := held_call(objects[place])) is not None]
    return places if is_shown(answer.calls, [(call.id, call.arguments) for call in calls]) else []


def _marked(objects: Sequence[Object], answer: TrueAnswer) -> list[int]:
    """Where an answer without calls stands: a run of items that the provider said."""
    run: list[int] = []
    for place in range(len(objects) + 1):
        if place < len(objects) and _is_said(objects[place]):
            run.append(place)
        else:
            if run and has_mark(answer, *(objects[one].get("content") for one in run)):
                return run
            run = []
    return []


def _referred(objects: Sequence[Object], known: Mapping[str, str]) -> list[int]:
    """Where a client that names stored items only by their ids refers to the answer: right before the results of its calls."""
    results = [place for place, item in enumerate(objects) if plain_id(text_of(item.get("call_id"))) in known]
    if {plain_id(text_of(objects[place].get("call_id"))) for place in results} != set(known):
        return []
    before = results[0]
    while before and objects[before - 1].get("type") == "item_reference":
        before -= 1
    return list(range(before, results[0]))


def _is_call(item: Object) -> bool:
    return text_of(item.get("type")) in CALLS


def _is_said(item: Object) -> bool:
    """Whether an item is something the provider said beside calls that the client runs."""
    kind = text_of(item.get("type")) or "message"
    if kind == "message":
        return item.get("role") == "assistant"
    return kind not in CALLS and not kind.endswith("_output") and item.get("role") in (None, "assistant")


def _answered(item: Object, known: Mapping[str, str]) -> Object | None:
    """A result with the provider's own id, where a client has changed it."""
    given = text_of(item.get("call_id"))
    true = known.get(plain_id(given)) if given else None
    return None if true is None or true == given else {**item, "call_id": true}


def resume(request: ChatRequest, passed: bytes) -> ResponsesWriter:
    """A writer that goes on behind the events a client has been sent."""
    number = 0
    begun: Object = {}
    output: list[Json] = []
    for body in events_of(passed):
        count = body.get("sequence_number")
        number = count + 1 if isinstance(count, int) else number + 1
        begun = object_of(body.get("response")) or begun
        if body.get("type") == "response.output_item.done":
            output.append(body.get("item"))
    writer = ResponsesWriter(request)
    writer.resume(number, begun, output)
    return writer


_PLAIN_ITEMS: Final = frozenset(("message", "reasoning"))


class ResponsesCalls:
    """Tool calls in responses."""

    marks: tuple[bytes, ...] = (b'_call"',)
    words: tuple[bytes, ...] = (b".delta",)

    def whole(self, answer: Object) -> list[HeldCall]:
        output = answer.get("output")
        items = list_of(output)
        return [call for item in items if (call := held_call(object_of(item))) is not None]

    def read(self, held: bytes) -> list[HeldCall]:
        done = _streamed_calls(map(event_body, events_with(held, (b"output_item.done",))))
        return done or _streamed_calls(map(event_body, events_with(held, (b"response.completed", b"response.incomplete"))))

    def begins_call(self, body: Object) -> bool:
        return _begins_item(body)

    def passes(self, body: Object) -> bool:
        return False

    def all_wait(self, chunk: bytes) -> bool:
        return True


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
    items = enumerate(list_of(output))
    return {place: call for place, item in items if (call := held_call(object_of(item))) is not None}


def _streamed_calls(bodies: Iterable[Object | None]) -> list[HeldCall]:
    items: dict[Json, HeldCall] = {}
    for body in filter(None, bodies):
        match body.get("type"):
            case "response.output_item.done" if (call := held_call(object_of(body.get("item")))) is not None:
                items[body.get("output_index")] = call
            case "response.completed" | "response.incomplete" if not items:
                items = _items_of(body)
            case _:
                pass
    return list(items.values())


class ResponsesFooter:
    """A line behind a response."""

    def add_to_answer(self, footer: Footer, answer: Object) -> bool:
        output = answer.get("output")
        if answer.get("status") != "completed" or not isinstance(output, list) or not self._has_only_words(output):
            return False
        for item in output:
            parts = object_of(item).get("content")
            for part in list_of(parts):
                footer.hear(text_of(object_of(part).get("text")))
        output.append(self._item(footer.line))
        return footer.may_add

    def add_to_event(self, footer: Footer, raw: bytes, body: Object) -> bytes:
        if body.get("type") == "response.output_text.delta":
            footer.hear(text_of(body.get("delta")))
        if body.get("type") != "response.completed":
            return raw
        response = object_of(body.get("response"))
        output, item = response.get("output"), self._item(footer.line)
        if not isinstance(output, list) or not self._has_only_words(output) or not footer.may_add:
            return raw
        footer.is_added = True
        number = body.get("sequence_number")
        number = number if isinstance(number, int) else 0
        said = []
        for place, (name, fields) in enumerate(self._item_events(footer.line, item, len(output))):
            said.append(event_bytes({"type": name, "sequence_number": number + place, **fields}, name))
        whole = {**body, "sequence_number": number + len(said), "response": {**response, "output": [*output, item]}}
        return b"".join(said) + event_bytes(whole, "response.completed")

    def _item_events(self, line: str, item: Object, index: int) -> Iterator[tuple[str, Object]]:
        where: Object = {"item_id": item["id"], "output_index": index}
        inner: Object = {**where, "content_index": 0}
        begun: Object = {"type": "output_text", "text": "", "annotations": []}
        done: Object = {**begun, "text": line}
        yield "response.output_item.added", {"output_index": index, "item": {**item, "status": "in_progress", "content": []}}
        yield "response.content_part.added", {**inner, "part": begun}
        yield "response.output_text.delta", {**inner, "delta": line, "logprobs": []}
        yield "response.output_text.done", {**inner, "text": line, "logprobs": []}
        yield "response.content_part.done", {**inner, "part": done}
        yield "response.output_item.done", {"output_index": index, "item": item}

    def _item(self, line: str) -> Object:
        part: Object = {"type": "output_text", "text": line, "annotations": []}
        return {"type": "message", "id": new_id("msg_"), "role": "assistant", "status": "completed", "content": [part]}

    def _has_only_words(self, output: list[Json]) -> bool:
        return all(text_of(object_of(item).get("type")) in _PLAIN_ITEMS for item in output)

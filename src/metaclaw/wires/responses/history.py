"""Attempts in terms of responses: read, refused, and put back into later requests."""

from collections.abc import Mapping, Sequence
from typing import Final

from metaclaw.domain.chat import ChatRequest, Json
from metaclaw.domain.enforcement import TrueAnswer
from metaclaw.wires.attempt import Attempt, HeldCall, events_of, has_mark, ids_of, is_shown, plain_id
from metaclaw.wires.fields import Object, decode_object, encode_text, object_of, text_of
from metaclaw.wires.responses.writing import ResponsesWriter
from metaclaw.wires.tools import custom_arguments, flat_name

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


def read_attempt(said: bytes, *, stream: bool) -> Attempt:
    """What a provider said, whole or streamed. Raises UpstreamError for a whole answer that is none."""
    if stream:
        identity, items = _streamed(said)
    else:
        body = decode_object(said, "an answer")
        output = body.get("output")
        identity, items = text_of(body.get("id")), list(output) if isinstance(output, list) else []
    calls = tuple(held for item in items if (held := held_call(object_of(item))) is not None)
    return Attempt(identity, tuple(items), calls, all(call.kind in _REFUSABLE for call in calls))


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
            items = dict(enumerate(output if isinstance(output, list) else []))
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
    return HeldCall(identity, name, text_of(item.get("arguments")), kind)


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

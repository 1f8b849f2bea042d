"""Results of tool calls in requests, in every wire: the ones a request adds to its conversation,
and the position of each.
"""

from collections.abc import Iterator, Mapping, Sequence

from metaclaw.domain.chat import Json, Opaque, Role, Text, ToolCall, ToolResult, Wire
from metaclaw.errors import WireError
from metaclaw.wires.fields import Object, encode_text, list_of, object_of, text_of
from metaclaw.wires.format import wire_format
from metaclaw.wires.responses.relay import held_call

WHOLE_ITEM = -1


def result_places(item: Json) -> Mapping[str, int]:
    """The ids of the calls whose results an item of a request holds, with the index of each in the
    item's content, or WHOLE_ITEM.
    """
    message = object_of(item)
    if message.get("role") == "user":
        blocks = enumerate(map(object_of, list_of(message.get("content"))))
        return {
            text_of(block.get("tool_use_id")): place
            for place, block in blocks
            if block.get("type") == "tool_result"
        }
    if message.get("role") == "tool":
        return {text_of(message.get("tool_call_id")): WHOLE_ITEM}
    is_output = text_of(message.get("type")).endswith("_output")
    return {text_of(message.get("call_id")): WHOLE_ITEM} if is_output else {}


def new_results(wire: Wire, items: Sequence[Json]) -> list[tuple[ToolCall, ToolResult]]:
    """The results behind the last answer of a request's messages, with their calls, in order.
    Results whose call is not in the request, and items of a wrong shape, are left out.
    """
    at = len(items)
    while at and not _is_answer(items[at - 1]):
        at -= 1
    results = [part for item in items[at:] if result_places(item) for part in _parts(wire, item)]
    calls: dict[str, ToolCall] = {}
    while results and at and _is_answer(items[at - 1]):
        at -= 1
        found = [part for part in _parts(wire, items[at]) if isinstance(part, ToolCall)]
        calls |= {call.id or f"{len(calls)}": call for call in found}
    return [
        (call, result)
        for result in results
        if isinstance(result, ToolResult)
        and (call := calls.get(result.call_id) or _nameless(calls, result)) is not None
    ]


def _nameless(calls: dict[str, ToolCall], result: ToolResult) -> ToolCall | None:
    """The first call without an id of the function whose result this is, where the result has one;
    it is taken from the calls. Gemini's models name their calls only lately.
    """
    named = result.extra.get("name")
    for key, call in calls.items():
        if result.call_id and not call.id and call.name == named:
            return calls.pop(key)
    return None


def _is_answer(item: Json) -> bool:
    """Whether an item is a part of the model's answer."""
    message = object_of(item)
    role = message.get("role")
    if role is None:
        return not text_of(message.get("type")).endswith("_output")
    return role == Role.ASSISTANT.value


def _parts(wire: Wire, item: Json) -> Iterator[object]:
    try:
        parts = wire_format(wire).parse_item(item, "item").parts
    except WireError:
        return
    for part in parts:
        yield _read(object_of(part.value)) if isinstance(part, Opaque) else part


def _read(item: Object) -> ToolCall | ToolResult | None:
    """The call or result in an item that only the responses wire has."""
    call = held_call(item)
    if call is not None:
        commands = object_of(item.get("action")).get("commands")
        if isinstance(commands, list):
            return ToolCall(
                call.id, call.name, encode_text({"command": "\n".join(map(text_of, commands))})
            )
        return ToolCall(call.id, call.name, call.arguments)
    if not text_of(item.get("type")).endswith("_output"):
        return None
    is_error = item.get("status") == "failed"
    return ToolResult(text_of(item.get("call_id")), (Text(_output(item.get("output"))),), is_error)


def _output(output: Json) -> str:
    lines = [text_of(output)]
    for chunk in map(object_of, list_of(output)):
        lines += [text_of(chunk.get(key)) for key in ("text", "stdout", "stderr")]
        code = object_of(chunk.get("outcome")).get("exit_code")
        if code:
            lines.append(f"Exit code {code}")
    return "\n".join(filter(None, lines))

"""A Responses stream that goes on in our hand after a call of the client's has begun."""

import json
from typing import Any

import pytest

from metaclaw.domain.chat import ChatRequest, End, Finish, ToolCallDelta, Wire
from metaclaw.wires import wire_format
from metaclaw.wires.relay import events_of
from metaclaw.wires.sse import event_bytes

FORMAT = wire_format(Wire.RESPONSES)
ARGUMENTS = json.dumps({"command": "ls"})


def event(number: int, kind: str, **more: Any) -> bytes:
    return event_bytes({"type": kind, "sequence_number": number, **more}, kind)


def added(number: int, index: int, name: str) -> bytes:
    item = {"type": "function_call", "id": f"fc_{name}", "call_id": name, "name": name}
    return event(
        number,
        "response.output_item.added",
        output_index=index,
        item={**item, "arguments": "", "status": "in_progress"},
    )


def piece(number: int, index: int, name: str, text: str) -> bytes:
    kind = "response.function_call_arguments.delta"
    return event(number, kind, output_index=index, item_id=f"fc_{name}", delta=text)


@pytest.mark.parametrize("said", ["", ARGUMENTS[:4], ARGUMENTS])
def test_a_call_begun_before_ours_is_announced_once(said: str) -> None:
    passed = event(0, "response.created", response={"id": "resp_1", "model": "m", "output": []})
    passed += added(1, 0, "first") + added(2, 1, "second") + piece(3, 0, "first", said)
    shown = [len(call.arguments) for call in FORMAT.calls.shown(passed)]
    assert shown == [len(said), 0]
    writer = FORMAT.resumed_writer(ChatRequest(Wire.RESPONSES, "m", (), stream=True), passed)
    sent = passed
    for place, count in enumerate(shown):
        if rest := ARGUMENTS[count:]:
            sent += writer.write(ToolCallDelta(place, None, None, rest))
    sent += writer.write(End(Finish.TOOL_CALLS, None))
    events = list(events_of(sent))
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    for place, name in enumerate(("first", "second")):
        mine = [one for one in events if one.get("output_index") == place]
        kinds = [one["type"] for one in mine]
        assert kinds.count("response.output_item.added") == 1
        assert kinds[-1] == "response.output_item.done"
        assert "".join(str(one["delta"]) for one in mine if "delta" in one) == ARGUMENTS
        done = mine[-1]["item"]
        assert isinstance(done, dict)
        assert (done["id"], done["call_id"], done["arguments"]) == (f"fc_{name}", name, ARGUMENTS)
    whole = events[-1]["response"]
    assert isinstance(whole, dict)
    calls = FORMAT.calls.whole(whole)
    assert [(call.id, call.arguments) for call in calls] == [
        ("first", ARGUMENTS),
        ("second", ARGUMENTS),
    ]

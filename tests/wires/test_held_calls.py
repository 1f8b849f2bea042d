"""Calls in streams: read at once where events are plain, and event by event where they are not,
with the same result.
"""

import json
from itertools import takewhile
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from metaclaw.domain.chat import Wire
from metaclaw.wires import CallHold, HeldCall, streamed_calls
from metaclaw.wires.sse import events_with, has_any, last_event_end, split_events
from tests.support.cases import each
from tests.support.strict_provider import STEPS, StrictProvider

MARKS = (b"tool", b"call_x")
lines = st.sampled_from(
    [b"data: tool", b"data: text", b"event: call_x", b": tool", b"", b"id: 1", b"data: tool call_x"]
)


def stream_of(wire: Wire, plan: str = "two") -> list[bytes]:
    key = "input" if wire is Wire.RESPONSES else "messages"
    asked: Any = {"model": "m", "stream": True, key: [{"role": "user", "content": f"PLAN {plan}"}]}
    if wire is Wire.GEMINI:
        asked["contents"] = [{"role": "user", "parts": [{"text": f"PLAN {plan}"}]}]
    _, said = StrictProvider(pieces=5, random=Random(3)).reply(wire.value, asked, {})
    assert isinstance(said, list)
    return [event.replace(b"\r\n", b"\n") for event in said]


def read(wire: Wire, pieces: list[bytes]) -> list[HeldCall]:
    hold = CallHold(wire)
    for piece in pieces:
        hold.feed(piece)
    hold.close()
    return streamed_calls(wire, hold.held)


def spelled_otherwise(event: bytes, how: str) -> bytes:
    """The same event as another server may write it."""
    match how:
        case "carriage returns":
            return event.replace(b"\n", b"\r\n")
        case "ids":
            return b"id: 7\n" + event
        case "two lines of data":
            head, comma, rest = event.partition(b", ")
            return head + comma + b"\ndata: " + rest if comma else event
        case _:
            return event.replace(b"data: ", b"data:")


@each("wire", list(Wire))
@each("how", ["carriage returns", "ids", "two lines of data", "no blank"])
def test_calls_are_the_same_in_plain_events_and_in_others(wire: Wire, how: str) -> None:
    said = stream_of(wire)
    calls = read(wire, said)
    assert [json.loads(call.arguments)["command"] for call in calls] == STEPS["two"]
    others = [spelled_otherwise(event, how) for event in said]
    assert others != said
    assert (
        read(wire, others)
        == read(wire, [b"".join(others)])
        == read(wire, [b"".join(said)])
        == calls
    )


@pytest.mark.parametrize("wire", list(Wire))
def test_text_passes_unread_until_a_call_begins(wire: Wire) -> None:
    said = stream_of(wire)
    hold = CallHold(wire)
    passed = list(
        takewhile(lambda event: hold.is_free_of_calls(event) and hold.feed(event) == event, said)
    )
    assert 0 < len(passed) < len(said)
    assert hold.has_words
    hold.feed(said[len(passed)])
    assert hold.has_calls
    assert not any(map(hold.is_free_of_calls, said))


@pytest.mark.parametrize("wire", list(Wire))
def test_text_and_calls_that_come_in_one_piece_are_parted(wire: Wire) -> None:
    said = stream_of(wire)
    one_by_one, at_once = CallHold(wire), CallHold(wire)
    text = b"".join(one_by_one.feed(event) for event in said)
    assert at_once.feed(b"".join(said)) == text
    assert (at_once.held, at_once.has_words) == (one_by_one.held, True)


@given(st.lists(lines, max_size=20).map(b"\n".join), st.booleans())
@example(b"data: text\n\n\ndata: tool", False)
def test_events_with_a_mark_are_those_that_a_look_at_each_finds(
    data: bytes, has_returns: bool
) -> None:
    data = data.replace(b"\n", b"\r\n") if has_returns else data
    events, rest = split_events(data)
    wanted = [event for event in (*events, rest) if has_any(event, MARKS)]
    # A third line end between two events is no part of either.
    assert [event.lstrip(b"\n") for event in events_with(data, MARKS)] == [
        event.lstrip(b"\n") for event in wanted
    ]
    quiet = data[: last_event_end(data, MARKS)]
    assert not has_any(quiet, MARKS)
    assert not quiet or quiet.endswith(b"\n\n")


@pytest.mark.parametrize("wire", list(Wire))
def test_only_the_calls_that_are_named_wait(wire: Wire) -> None:
    said = stream_of(wire, "look-too")
    hold = CallHold(wire, ("metaclaw_skill",))
    passed = b""
    for event in said:
        passed += hold.feed(event)
        if b"metaclaw_skill" not in b"".join(said[: said.index(event) + 1]):
            assert passed == b"".join(said[: said.index(event) + 1])
    assert hold.has_calls
    assert b"metaclaw_skill" not in passed
    plain = CallHold(wire, ("metaclaw_skill",))
    assert b"".join(map(plain.feed, stream_of(wire, "two"))) == b"".join(stream_of(wire, "two"))
    assert not plain.has_calls

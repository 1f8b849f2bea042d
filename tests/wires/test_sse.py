"""Server-sent events by the standard, and the tail of a stream in the shapes servers give it."""

import pytest

from metaclaw.domain.chat import Wire
from metaclaw.wires import TailHold
from metaclaw.wires.sse import MAX_HELD_LINE_BYTES, MAX_TAIL_BYTES, Event, EventParser, event_bytes
from tests.support.cases import each


def parse(data: bytes) -> list[Event]:
    parser = EventParser()
    return parser.feed(data) + parser.close()


@each(
    ("data", "events"),
    [
        (b"data: a\n\n", [Event(None, "a")]),
        (b"data:a\n\ndata:  b\n\n", [Event(None, "a"), Event(None, " b")]),
        (b"event: x\r\ndata: a\r\ndata: b\r\n\r\n", [Event("x", "a\nb")]),
        (b"event: x\rdata: a\r\rdata: b\r\r", [Event("x", "a"), Event(None, "b")]),
        (b"\xef\xbb\xbfdata: a\n\n", [Event(None, "a")]),
        (b"\xef\xbb", []),
        (b": comment\n\nid: 5\nretry: 3\nodd\ndata\n\n", [Event(None, "")]),
        (b"event: x\n\ndata: a\n\n", [Event(None, "a")]),
        (b"event:\ndata: a", [Event(None, "a")]),
        (b"data: \xff\n\n", [Event(None, "\ufffd")]),
        (b"", []),
    ],
)
def test_events_by_the_standard(data: bytes, events: list[Event]) -> None:
    assert parse(data) == events


def test_what_is_written_is_read() -> None:
    assert parse(event_bytes({"a": "b\n"}, "x") + event_bytes({})) == [
        Event("x", '{"a":"b\\n"}'),
        Event(None, "{}"),
    ]


@each(
    ("wire", "flows", "waits"),
    [
        (Wire.CHAT, b"data: {}\n\n", b"data: [DONE]\n\n: bye\n\n"),
        (Wire.CHAT, b"data: {}\r\n\r\n", b"data:[DONE]\r\n\r\n"),
        (Wire.CHAT, b'data: {"text": "data: [DONE]"}\n\n', b"id: 9\n: odd\ndata: [DONE]"),
        (Wire.CHAT, b"\xef\xbb\xbf", b"data: [DONE]\n\n"),
        (
            Wire.MESSAGES,
            b"event: ping\ndata: {}\n\n",
            b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
        ),
        (Wire.MESSAGES, b"data: {}\n\n", b'data: {"type": "message_stop"}\n\n'),
        (Wire.MESSAGES, b"event: error\ndata: {}\n\n", b""),
        (
            Wire.RESPONSES,
            b"event: response.created\ndata: {}\n\n",
            b"event: response.completed\ndata: {}\n\n",
        ),
        (
            Wire.RESPONSES,
            b"event: response.created\ndata: {}\n\n",
            b"event: response.failed\ndata: {}\n\n",
        ),
        (
            Wire.RESPONSES,
            b"event: response.created\ndata: {}\n\n",
            b'data: {"type":"response.incomplete"}\n\n',
        ),
        (
            Wire.RESPONSES,
            b'data: {"n":1,"type":"response.created"}\n\n',
            b'data: {"response":{},"type":"response.completed"}\n\n',
        ),
        (Wire.RESPONSES, b"data: [DONE]\n\n", b'id: 1\ndata:  { "type" : "response.failed" }\n\n'),
        (
            Wire.RESPONSES,
            b"event: response.created\r\n\r\n",
            b'data:{"n":1,"type":"response.incomplete"}\r\n\r\n',
        ),
        (
            Wire.RESPONSES,
            b"event: response.created\r\r",
            b'data:{"n":1,"type":"response.incomplete"}\r\r',
        ),
        (
            Wire.RESPONSES,
            (
                b'data: {"response":{"type":"response.completed"},"type":"x"}\n\ndata:'
                b' {"response.completed\n\n'
            ),
            b"",
        ),
        (
            Wire.MESSAGES,
            b'data: {"delta":{"text":"message_stop"},"type":"content_block_delta"}\n\n',
            b'data: {"n":1,"type":"message_stop"}\n',
        ),
        (Wire.MESSAGES, b'event: ping\r\ndata: {"n":1,"type":"message_stop"}\r\n\r\n', b""),
        (
            Wire.MESSAGES,
            b'data: {"type":"ping"}\r\rid: 1\n\n',
            b'data: {"n":1,"type":"message_stop"}\n',
        ),
    ],
)
def test_the_end_of_a_stream_waits_and_nothing_else_does(
    wire: Wire, flows: bytes, waits: bytes
) -> None:
    for size in (1, 2, 7, 1000):
        hold = TailHold(wire)
        said = flows + waits
        released = b"".join(hold.feed(said[at : at + size]) for at in range(0, len(said), size))
        assert (released, hold.held(), hold.terminal) == (flows, waits, bool(waits))


def test_a_keep_alive_is_not_kept() -> None:
    hold = TailHold(Wire.CHAT)
    assert hold.feed(b": waiting\n") == b": waiting\n"
    assert hold.feed(b"\n") == b"\n"
    assert hold.feed(b"id: 1\n") == b""
    assert hold.feed(b"\n") == b"id: 1\n\n"
    assert hold.feed(b"data: [D") == b""
    assert hold.feed(b"ATA]\n\n") == b"data: [DATA]\n\n"


def test_data_that_names_its_event_flows_before_its_line_is_over() -> None:
    for said in (
        b'data: {"type":"response.created","n":',
        b'event: response.created\ndata: {"n":',
        b'event: x\r\ndata: {"n":',
    ):
        assert TailHold(Wire.RESPONSES).feed(said) == said


@pytest.mark.parametrize("size", [1000, 100_003, MAX_TAIL_BYTES])
def test_a_long_terminal_event_flows_but_for_its_end(size: int) -> None:
    event = b"event: response.completed\ndata: " + b"x" * MAX_TAIL_BYTES + b"\n\n"
    hold = TailHold(Wire.RESPONSES)
    released = b"".join(hold.feed(event[at : at + size]) for at in range(0, len(event), size))
    assert hold.is_complete
    assert released + hold.held() == event
    assert 2 < len(hold.held()) < MAX_TAIL_BYTES


def test_a_line_is_held_up_to_a_limit_and_quickly() -> None:
    end = b'","type":"response.completed"}'
    for room, terminal in ((0, True), (1, False)):
        line = b'data: {"a":"' + b"x" * (MAX_HELD_LINE_BYTES + room - 12 - len(end)) + end
        for size in (1_000, 100_003, len(line)):
            hold = TailHold(Wire.RESPONSES)
            released = b"".join(hold.feed(line[at : at + size]) for at in range(0, len(line), size))
            assert (released, hold.held()) == ((b"", line) if terminal else (line, b""))
            assert hold.feed(b"\n\n") == (b"" if terminal else b"\n\n")
            assert hold.terminal is terminal

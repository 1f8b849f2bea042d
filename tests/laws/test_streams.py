"""Law 2: any split of a stream's bytes gives the same deltas, the same relay and the same
completion.
"""

import re
from collections.abc import Iterable, Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.domain.chat import (
    Begin,
    ChatRequest,
    Delta,
    End,
    Failed,
    Finish,
    Message,
    ReasoningDelta,
    Role,
    Text,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    Usage,
    Wire,
)
from metaclaw.errors import UpstreamError
from metaclaw.wires import TailHold, collect, streamed_facts, wire_format
from metaclaw.wires.sse import EventParser
from tests.support.depth import tries

few = settings(max_examples=tries(20, nightly=400), deadline=None)
fewer = settings(few, max_examples=tries(8, nightly=80))
many = settings(few, max_examples=tries(25, nightly=750))
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
sums = st.integers(0, 5_000)
usages = st.builds(
    lambda fresh, out, read, thought: Usage(fresh + read, out + thought, read, 0, thought),
    sums,
    sums,
    sums,
    sums,
)
PREFIXES = {
    Wire.CHAT: "chatcmpl-1",
    Wire.MESSAGES: "msg_1",
    Wire.RESPONSES: "resp_1",
    Wire.GEMINI: "answer-1",
}
TERMINAL = {
    Wire.CHAT: rb"data: ?\[DONE\]",
    Wire.MESSAGES: rb'event: ?message_stop|data: ?\{(?:[^\r\n]*,)?"type": ?"message_stop"',
    Wire.RESPONSES: (
        rb'(?:event: ?|data: ?\{(?:[^\r\n]*,)?"type": ?")response\.(?:completed|failed|incomplete)'
    ),
    Wire.GEMINI: rb'data: ?\{[^\r\n]*"finishReason"',
}


def request_of(wire: Wire) -> ChatRequest:
    return ChatRequest(
        wire, "model", (Message(Role.USER, (Text("hi"),)),), stream=True, include_usage=True
    )


def pieces_of(text: str, cuts: Iterable[int]) -> list[str]:
    places = sorted({cut % (len(text) + 1) for cut in cuts})
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@st.composite
def calls_at_once(draw: st.DrawFn, first: int) -> list[Delta]:
    """Some tool calls whose pieces arrive in any mixture, each in its own order."""
    waiting: list[list[Delta]] = []
    for index in range(first, first + draw(st.integers(1, 3))):
        arguments = '{"a":"' + draw(names) + '"}'
        pieces = pieces_of(arguments, draw(st.lists(sums, max_size=3)))
        begin: Delta = ToolCallDelta(index, f"call_{index}", draw(names), "")
        waiting.append([begin, *(ToolCallDelta(index, None, None, piece) for piece in pieces)])
    mixed: list[Delta] = []
    while any(waiting):
        calls = [call for call in waiting if call]
        mixed.append(calls[draw(st.integers(0, len(calls) - 1))].pop(0))
    return mixed


@st.composite
def answers(draw: st.DrawFn, wire: Wire) -> list[Delta]:
    """A whole answer in deltas. Two texts or two unsigned thoughts in a row would be one, so kinds
    alternate.
    """
    deltas: list[Delta] = [Begin(PREFIXES[wire], draw(names))]
    kinds = draw(st.lists(st.sampled_from(["text", "thought", "calls"]), max_size=4))
    if wire is Wire.CHAT:
        kinds = sorted(
            set(kinds), key=["thought", "text", "calls"].index
        )  # a chat message has one of each, in this order
    called, last = 0, ""
    for kind in kinds:
        if kind == last:
            continue
        last = kind
        if kind == "calls":
            calls = draw(calls_at_once(called))
            called += sum(
                isinstance(delta, ToolCallDelta) and delta.id is not None for delta in calls
            )
            deltas += calls
        elif kind == "text":
            deltas += map(TextDelta, draw(st.lists(words, min_size=1, max_size=3)))
        else:
            deltas += map(ReasoningDelta, draw(st.lists(words, min_size=1, max_size=3)))
            if wire is not Wire.CHAT:
                deltas.append(ReasoningDelta("", draw(names.map(f"{wire.value}:{{}}".format))))
    finish = draw(st.sampled_from([Finish.LENGTH, Finish.TOOL_CALLS if called else Finish.STOP]))
    return [*deltas, End(finish, draw(usages))]


def written(wire: Wire, deltas: Iterable[Delta]) -> bytes:
    writer = wire_format(wire).writer(request_of(wire))
    return b"".join(map(writer.write, deltas))


def read(wire: Wire, chunks: Iterable[bytes]) -> list[Delta]:
    reader = wire_format(wire).reader()
    return [delta for chunk in chunks for delta in reader.feed(chunk)] + reader.close()


def cut(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = sorted({place % (len(data) + 1) for place in cuts})
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


places = st.lists(st.integers(0, 10_000), max_size=12)
dialects = st.sampled_from(
    ["plain", "crlf", "cr", "bom", "comments", "unnamed", "type-last", "wrapped", "wrapped-crlf"]
)


def spoken_in(dialect: str, data: bytes) -> bytes:
    """The same events as other servers write them."""
    match dialect:
        case "crlf":
            return data.replace(b"\n", b"\r\n")
        case "cr":
            return data.replace(b"\n", b"\r")
        case "bom":
            return b"\xef\xbb\xbf" + data
        case "comments":
            return b": hello\n\n" + data.replace(b"\n\n", b"\n\n: keep-alive\n\nid: 7\nretry: 3\n")
        case "unnamed":
            return re.sub(rb"(?m)^event: .*\n", b"", data)
        case "type-last":
            return re.sub(rb"(?m)^data: (\{.*)$", _backwards, spoken_in("unnamed", data))
        case "wrapped-crlf":
            return spoken_in("crlf", spoken_in("wrapped", data))
        case "wrapped":
            return data.replace(b',"choices"', b',\ndata: "choices"').replace(
                b',"delta"', b',\ndata: "delta"'
            )
        case _:
            return data


def _backwards(line: re.Match[bytes]) -> bytes:
    body = msgspec.json.decode(line[1])
    return b"data: " + msgspec.json.encode(dict(reversed(body.items())))


@pytest.mark.parametrize("wire", Wire)
@few
@given(st.data())
def test_what_a_writer_writes_its_reader_reads(wire: Wire, data: st.DataObject) -> None:
    deltas = data.draw(answers(wire))
    assert collect(read(wire, [written(wire, deltas)])) == collect(deltas)


@pytest.mark.parametrize("wire", Wire)
@few
@given(st.data())
def test_any_split_in_any_dialect_gives_the_same_deltas(wire: Wire, data: st.DataObject) -> None:
    stream = written(wire, data.draw(answers(wire)))
    said = spoken_in(data.draw(dialects), stream)
    assert read(wire, cut(said, data.draw(places))) == read(wire, [stream])


@pytest.mark.parametrize("wire", Wire)
@few
@given(st.data())
def test_a_broken_stream_fails_once_and_at_the_end_however_it_is_split(
    wire: Wire, data: st.DataObject
) -> None:
    stream = written(wire, data.draw(answers(wire)))
    at = data.draw(st.integers(0, max(0, stream.rfind(b"\n\n", 0, len(stream) - 2) - 1)))
    broken = stream[:at] + data.draw(
        st.sampled_from([b"", b"\n\ndata: {nonsense\n\n", b"\n\ndata: [1]\n\n", b"\x00\xff\n"])
    )
    deltas = read(wire, [broken])
    assert read(wire, cut(broken, data.draw(places))) == deltas
    assert [isinstance(delta, End | Failed) for delta in deltas].count(True) == 1
    assert isinstance(deltas[-1], End | Failed)
    assert isinstance(deltas[0], Begin | Failed)
    assert [delta for delta in deltas[1:] if isinstance(delta, Begin)] == []


@pytest.mark.parametrize("wire", Wire)
@few
@given(st.data())
def test_a_stream_without_its_terminal_event_is_not_whole(wire: Wire, data: st.DataObject) -> None:
    deltas = data.draw(answers(wire))
    stream = written(wire, deltas[:-1])
    with pytest.raises(UpstreamError, match="before the answer was complete"):
        collect(read(wire, [stream]))


@pytest.mark.parametrize("wire", Wire)
@pytest.mark.parametrize(
    "dialect", ["plain", "crlf", "cr", "bom", "comments", "unnamed", "type-last"]
)
@fewer
@given(st.data())
def test_the_tail_is_held_and_everything_before_it_is_not(
    wire: Wire, dialect: str, data: st.DataObject
) -> None:
    stream = spoken_in(dialect, written(wire, data.draw(answers(wire))))
    hold = TailHold(wire)
    released = [hold.feed(chunk) for chunk in cut(stream, data.draw(places))]
    assert b"".join(released) + hold.held() == stream
    assert hold.terminal
    found = re.search(
        rb"(?:^(?:\xef\xbb\xbf)?|[\r\n])((?:(?:id|retry): [^\r\n]*(?:\r\n|\r|\n))*)(?:"
        + TERMINAL[wire]
        + rb")",
        stream,
    )
    assert found is not None
    assert b"".join(released) == stream[: found.start(1)]


# Google's end is a field of an event: its lines are decided at their end.
@pytest.mark.parametrize("wire", [wire for wire in Wire if wire is not Wire.GEMINI])
@fewer
@given(st.data())
def test_nothing_is_delayed_that_cannot_be_terminal(wire: Wire, data: st.DataObject) -> None:
    said = spoken_in(
        data.draw(st.sampled_from(["plain", "crlf", "cr", "unnamed"])),
        written(wire, data.draw(answers(wire))),
    )
    hold = TailHold(wire)
    for byte in cut(said, range(len(said))):
        hold.feed(byte)
        if hold.terminal:
            break
        assert len(hold.held()) < 48
        assert re.fullmatch(rb"|d|da|dat|data:?.{0,42}|e|ev|eve|even|event:?.{0,40}", hold.held())


@pytest.mark.parametrize("wire", Wire)
@fewer
@given(st.data())
def test_an_event_is_not_delayed_beyond_its_last_line_wherever_its_type_stands(
    wire: Wire, data: st.DataObject
) -> None:
    said = spoken_in("type-last", written(wire, data.draw(answers(wire))))
    hold = TailHold(wire)
    for line in said.splitlines(keepends=True):
        released = hold.feed(line)
        if hold.terminal:
            break
        assert (released, hold.held()) == (line, b"")
    assert hold.terminal


scraps = st.lists(
    st.sampled_from(
        [
            b"data: ",
            b"data:",
            b"[DONE]",
            b"\n",
            b"\r",
            b"\r\n",
            b"event: ",
            b"message_stop",
            b"response.completed",
            b'{"type":"',
            b'{"a":"',
            b'","type":"',
            b'"}',
            b'data: {"a":1,"type":"message_stop"}',
            b'data: {"a":1,"type":"response.completed"}',
            b"id: 1",
            b":x",
            b"x",
            b"\xff",
        ]
    ),
    max_size=25,
).map(b"".join)


@pytest.mark.parametrize("wire", Wire)
@many
@given(scraps, places)
def test_the_hold_decides_alike_however_the_bytes_are_split(
    wire: Wire, said: bytes, at: list[int]
) -> None:
    whole, parted = TailHold(wire), TailHold(wire)
    released = whole.feed(said)
    assert b"".join(map(parted.feed, cut(said, at))) == released
    assert (parted.held(), parted.terminal) == (whole.held(), whole.terminal)
    assert released + whole.held() == said


@many
@given(scraps, places)
def test_events_are_the_same_however_the_bytes_are_split(said: bytes, at: list[int]) -> None:
    whole, parted = EventParser(), EventParser()
    expected = whole.feed(said) + whole.close()
    assert [
        event for chunk in cut(said, at) for event in parted.feed(chunk)
    ] + parted.close() == expected


@pytest.mark.parametrize("wire", Wire)
@few
@given(st.data())
def test_the_summary_of_a_stream_says_what_its_deltas_say(wire: Wire, data: st.DataObject) -> None:
    deltas = data.draw(answers(wire))
    facts = streamed_facts(wire, written(wire, deltas))
    completion = collect(deltas)
    assert (facts.id, facts.model, facts.finish, facts.usage) == (
        completion.id,
        completion.model,
        completion.finish,
        completion.usage,
    )
    assert facts.error is None


@pytest.mark.parametrize("wire", Wire)
@few
@given(scraps | st.binary(max_size=40))
def test_a_streams_garbage_has_no_facts_and_is_no_error(wire: Wire, said: bytes) -> None:
    assert streamed_facts(wire, said).usage is None


@pytest.mark.parametrize("wire", [Wire.CHAT, Wire.RESPONSES])
@few
@given(st.lists(st.tuples(words, st.floats(-20, 0)), min_size=1, max_size=4))
def test_log_probabilities_pass_through_a_stream(
    wire: Wire, tokens: list[tuple[str, float]]
) -> None:
    logprobs = [TokenLogprob(token, value, ((token, value),)) for token, value in tokens]
    deltas: list[Delta] = [
        Begin(PREFIXES[wire], "m"),
        *(TextDelta(each.token, (each,)) for each in logprobs),
        End(Finish.STOP),
    ]
    assert collect(read(wire, [written(wire, deltas)])).logprobs == tuple(logprobs)

"""The look at a stream's first event: errors and empty streams are found, and nothing else is held
back.
"""

import pytest

from metaclaw.errors import UpstreamError
from metaclaw.wires import begins_answer
from metaclaw.wires.sse import MAX_LOOK_BYTES
from tests.support.cases import each

ANSWERS = [
    b'data: {"id":"c","choices":[]}\n\n',
    b'\xef\xbb\xbfdata:{"id":"c"}\r\n\r\n',
    b"id: 1\nretry: 5\nevent: message_start\n",
    b'data: {"id":"c","error":null}\n\n',
    b'data: {"choices":[{"delta":{"content":"an \\"error\\" in words"}}]}\n\n',
    b": wait\n\n: wait\n\n",
    b"event: response.created\n" + b"d" * 10,
]
ERRORS = [
    (b'data: {"error": {"message": "no", "code": 429}}\n\n', 429, "no"),
    (
        (
            b"event: error\ndata:"
            b' {"type":"error","error":{"type":"overloaded_error","message":"no"}}\n\n'
        ),
        529,
        "no",
    ),
    (
        b'data: {"type":"error","error":{"type":"rate_limit_error","message":"no"}}\r\n\r\n',
        429,
        "no",
    ),
    (
        (
            b"event: response.failed\ndata:"
            b' {"type":"response.failed","response":{"error":{"code":"x","message":"no"}}}\n\n'
        ),
        502,
        "no",
    ),
    (
        b'data: {"id":"c","error":{"code":"server_error","message":"no"},"choices":[]}\n\n',
        502,
        "no",
    ),
    (b"event: error\ndata: no\n\n", 502, "no"),
    (b"data: [DONE]\n\n", 502, "no answer"),
]


@each("stream", ANSWERS)
def test_an_answer_is_let_through_as_soon_as_it_is_known(stream: bytes) -> None:
    assert begins_answer(stream)


def _feed_byte_by_byte(stream: bytes) -> None:
    for size in range(len(stream) + 1):
        assert not begins_answer(stream[:size])


@each(("stream", "status", "words"), ERRORS)
def test_an_error_is_found_however_its_bytes_are_split(
    stream: bytes, status: int, words: str
) -> None:
    with pytest.raises(UpstreamError) as caught:
        _feed_byte_by_byte(stream)
    assert (caught.value.status, words in str(caught.value)) == (status, True)


@each(
    "stream",
    [
        b"",
        b"\n\n",
        b": wait\n\n",
        b"data:\n\n",
        b"event: error\n",
        b"<html></html>",
        b'{"error": "no"}',
    ],
)
def test_a_stream_that_ends_without_an_event_is_no_answer(stream: bytes) -> None:
    assert not begins_answer(stream)
    with pytest.raises(UpstreamError):
        begins_answer(stream, is_all=True)


def test_endless_lines_without_data_are_relayed_undecided() -> None:
    lines = b"id: 1\n" * MAX_LOOK_BYTES
    assert not begins_answer(lines[: MAX_LOOK_BYTES // 2])
    assert begins_answer(lines)


@pytest.mark.parametrize("opening", [b"data: ", b"<html>"])
def test_a_first_line_beyond_all_measure_is_relayed_undecided(opening: bytes) -> None:
    assert begins_answer(opening + b"x" * MAX_LOOK_BYTES)

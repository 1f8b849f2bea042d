"""Errors of any shape, facts from raw bytes, and the estimate of tokens."""

import time

import msgspec
import pytest

from metaclaw.domain.chat import (
    ChatRequest,
    Finish,
    Image,
    Json,
    Message,
    Opaque,
    Reasoning,
    Role,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
    Wire,
)
from metaclaw.wires import (
    Facts,
    TailHold,
    estimate_tokens,
    parse_error,
    streamed_facts,
    whole_facts,
    wire_format,
)
from metaclaw.wires.fields import object_of, whole
from tests.support.cases import each


@each(
    ("body", "said"),
    [
        (b'{"error":{"message":"no","type":"t","code":"c"}}', ("no", "c")),
        (b'{"error":{"message":"no","type":"t","code":null}}', ("no", "t")),
        (
            b'{"type":"error","error":{"type":"overloaded_error","message":"no"}}',
            ("no", "overloaded_error"),
        ),
        (b'{"error":"no"}', ("no", "upstream_500")),
        (b'[{"error":{"message":"no","code":500}}]', ("no", "upstream_500")),
        (b'{"detail":[{"msg":"no","type":"missing"}]}', ("no", "missing")),
        (b'{"message":"no"}', ("no", "upstream_500")),
        (b"no", ("no", "upstream_500")),
        (b"", ("the provider answered with status 500 and gave no reason", "upstream_500")),
        (b"5", ("the provider answered with status 500 and gave no reason", "upstream_500")),
        (b"[]", ("the provider answered with status 500 and gave no reason", "upstream_500")),
    ],
)
def test_a_providers_error_of_any_shape_is_understood(body: bytes, said: tuple[str, str]) -> None:
    assert parse_error(500, body) == said


@each(
    ("status", "openai", "anthropic"),
    [
        (400, "invalid_request_error", "invalid_request_error"),
        (401, "authentication_error", "authentication_error"),
        (413, "invalid_request_error", "request_too_large"),
        (429, "rate_limit_error", "rate_limit_error"),
        (502, "server_error", "api_error"),
        (529, "server_error", "overloaded_error"),
    ],
)
def test_errors_are_typed_by_their_status(status: int, openai: str, anthropic: str) -> None:
    for wire in (Wire.CHAT, Wire.RESPONSES):
        body = msgspec.json.decode(wire_format(wire).error_body(status, "m", "c", "p"))
        assert body == {"error": {"message": "m", "type": openai, "param": "p", "code": "c"}}
    assert msgspec.json.decode(wire_format(Wire.MESSAGES).error_body(status, "m", "c", "p")) == {
        "type": "error",
        "error": {"type": anthropic, "message": "m"},
    }


CHAT: Json = {
    "id": "chatcmpl-1",
    "model": "m",
    "choices": [{"message": {"tool_calls": [{}]}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 2},
}
MESSAGE: Json = {
    "id": "msg_1",
    "model": "m",
    "content": [],
    "stop_reason": "max_tokens",
    "usage": {"input_tokens": 5, "output_tokens": 2},
}
RESPONSE: Json = {
    "id": "resp_1",
    "model": "m",
    "status": "completed",
    "output": [{"type": "custom_tool_call"}],
    "usage": {"input_tokens": 5, "output_tokens": 2},
}


@pytest.mark.parametrize(
    ("wire", "body", "finish"),
    [
        (Wire.CHAT, CHAT, Finish.TOOL_CALLS),
        (Wire.MESSAGES, MESSAGE, Finish.LENGTH),
        (Wire.RESPONSES, RESPONSE, Finish.TOOL_CALLS),
    ],
)
def test_facts_of_a_whole_answer(wire: Wire, body: dict[str, Json], finish: Finish) -> None:
    assert whole_facts(wire, body) == Facts(str(body["id"]), "m", finish, Usage(5, 2))


@pytest.mark.parametrize("wire", Wire)
def test_an_error_is_a_fact(wire: Wire) -> None:
    assert whole_facts(wire, {"error": {"message": "no"}}) == Facts(error="no")
    assert (
        streamed_facts(
            wire, b'event: error\ndata: {"type":"error","error":{"message":"no"}}\n\n'
        ).error
        == "no"
    )


def test_a_failed_response_is_an_error() -> None:
    response = b'{"id":"resp_1","status":"failed","error":{"message":"no"}}'
    event = (
        b'event: response.failed\ndata: {"type":"response.failed","response":' + response + b"}\n\n"
    )
    assert streamed_facts(Wire.RESPONSES, event) == Facts("resp_1", error="no")


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_response_that_failed_without_a_word_is_an_error(status: str) -> None:
    response: dict[str, Json] = {
        "id": "resp_1",
        "status": status,
        "error": None,
        "output": [],
        "usage": {"input_tokens": 5},
    }
    expected = Facts("resp_1", usage=Usage(5, 0), error=f"the provider reported status {status}")
    assert whole_facts(Wire.RESPONSES, response) == expected
    event = msgspec.json.encode({"response": response, "type": "response.completed"})
    assert streamed_facts(Wire.RESPONSES, b"data: " + event + b"\n\n") == expected


@each("response", ["", ',"response":null', ',"response":{}', ',"response":{"error":null}'])
def test_an_event_of_failure_is_an_error_whatever_it_holds(response: str) -> None:
    said = f'event: response.failed\ndata: {{"type":"response.failed"{response}}}\n\n'.encode()
    assert streamed_facts(Wire.RESPONSES, said) == Facts(
        error="the provider reported status failed"
    )


@pytest.mark.parametrize(
    ("wire", "field", "values"),
    [
        (Wire.CHAT, "choices", [None, {}, [], ["x"], "x"]),
        (Wire.MESSAGES, "content", [None, {}, "x"]),
        (Wire.RESPONSES, "output", [None, {}, "x"]),
    ],
)
def test_an_answer_that_answers_nothing_is_an_error(
    wire: Wire, field: str, values: list[Json]
) -> None:
    error = f"the provider's answer has no {field}"
    ended: dict[str, Json] = {
        "id": "1",
        "model": "m",
        "stop_reason": "end_turn",
        "status": "completed",
    }
    assert whole_facts(wire, ended) == Facts("1", "m", error=error)
    for value in values:
        assert whole_facts(wire, {**ended, field: value}) == Facts("1", "m", error=error)


@each("count", [-1, 2**53 + 1, 2**64, 10**30, 1.5, True, "7", None])
def test_a_count_that_nobody_can_have_counted_is_none(count: Json) -> None:
    assert whole(count) == 0
    usage: Json = {
        "input_tokens": count,
        "prompt_tokens": count,
        "output_tokens": 2**53,
        "completion_tokens": 2**53,
    }
    for wire, body in ((Wire.CHAT, CHAT), (Wire.MESSAGES, MESSAGE), (Wire.RESPONSES, RESPONSE)):
        assert whole_facts(wire, {**object_of(body), "usage": usage}).usage == Usage(0, 2**53)


def test_counts_that_are_too_many_together_are_none() -> None:
    usage: Json = {"input_tokens": 2**53, "cache_read_input_tokens": 1, "output_tokens": 2}
    assert whole_facts(Wire.MESSAGES, {**object_of(MESSAGE), "usage": usage}).usage == Usage(
        0, 2, 1
    )


def test_facts_are_found_among_comments_carriage_returns_and_words_that_look_like_events() -> None:
    stream = (
        b": hello\r\n\r\ndata: {}\r\n\r\ndata:"
        b' {"id":"chatcmpl-1","model":"m","choices":[{"delta":{"content":"say data: and'
        b' data:"}}]}\r\n\r\ndata:'
        b' {"id":"chatcmpl-1","choices":[{"delta":{},"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":5,"completion_tokens":2}}\r\n\r\ndata:'
        b" [DONE]\r\n\r\n: bye\r\n\r\n"
    )
    assert streamed_facts(Wire.CHAT, stream) == Facts("chatcmpl-1", "m", Finish.STOP, Usage(5, 2))


def test_a_stream_of_nothing_has_no_facts() -> None:
    for said in (b"", b"data:", b"data: {}", b"data: {}\n", b"\n\n", b"data: {}\n\n" * 20):
        assert streamed_facts(Wire.CHAT, said) == Facts()


def _request(*parts: object, tools: tuple[Tool | Opaque, ...] = ()) -> ChatRequest:
    return ChatRequest(Wire.MESSAGES, "m", (Message(Role.USER, parts),), tools)  # type: ignore[arg-type]


def test_an_estimate_counts_everything_a_request_holds() -> None:
    nothing = estimate_tokens(_request())
    for part in (
        Text("some words here"),
        Reasoning("some words here"),
        ToolCall("a", "f", "{}"),
        ToolResult("a", (Text("words"),)),
        Opaque(Wire.CHAT, {"a": 1}),
    ):
        assert estimate_tokens(_request(part)) > nothing
    assert estimate_tokens(_request(Image("https://e.org/a.png"))) - nothing == 1_600
    assert estimate_tokens(_request(tools=(Tool("f", "d", {"type": "object"}),))) > nothing
    assert estimate_tokens(_request(tools=(Opaque(Wire.MESSAGES, {"type": "bash"}),))) > nothing
    assert estimate_tokens(_request(Text("言葉" * 50))) > estimate_tokens(_request(Text("ab" * 50)))


def test_an_estimate_of_prose_is_near_what_tokenizers_count() -> None:
    prose = (
        "The quick brown fox jumps over the lazy dog, and then it rests for a while in the warm"
        " afternoon sun. " * 20
    )
    assert (
        380 <= estimate_tokens(_request(Text(prose))) <= 620
    )  # tokenizers make 23 tokens or so of the sentence


def test_holding_the_tail_costs_microseconds_a_chunk() -> None:
    """It runs for every chunk of every stream, so a slow way of doing it must not slip in."""
    chunk = (
        b"data:"
        b' {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"word'
        b' "}}]}\n\n'
    )
    hold = TailHold(Wire.CHAT)
    best = min(_seconds(hold, chunk) for _ in range(5))
    assert best / 1_000 < 50e-6


def _seconds(hold: TailHold, chunk: bytes) -> float:
    began = time.perf_counter()
    for _ in range(1_000):
        hold.feed(chunk)
    return time.perf_counter() - began

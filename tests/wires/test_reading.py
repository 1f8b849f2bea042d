"""Providers' streams and answers as they really come: odd, repetitive, broken off, or not what was
asked for.
"""

from collections.abc import Iterable

import msgspec
import pytest

from metaclaw.domain.chat import (
    Begin,
    ChatRequest,
    Completion,
    Delta,
    End,
    Failed,
    Finish,
    Json,
    Message,
    Opaque,
    OpaqueDelta,
    Reasoning,
    ReasoningDelta,
    Role,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolResult,
    Usage,
    Wire,
)
from metaclaw.errors import UpstreamError
from metaclaw.wires import collect, deltas_of, wire_format
from metaclaw.wires.fields import object_of
from metaclaw.wires.sse import MAX_EVENT_BYTES
from tests.support.cases import each

CHAT, RESPONSES, MESSAGES = Wire.CHAT, Wire.RESPONSES, Wire.MESSAGES


def events(*bodies: Json) -> bytes:
    return b"".join(
        b"data: "
        + (body.encode() if isinstance(body, str) else msgspec.json.encode(body))
        + b"\n\n"
        for body in bodies
    )


def read(wire: Wire, *bodies: Json) -> list[Delta]:
    reader = wire_format(wire).reader()
    return reader.feed(events(*bodies)) + reader.close()


def chunk(delta: Json, finish: str | None = None, **more: Json) -> Json:
    return {
        "id": "chatcmpl-1",
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        **more,
    }


def call(index: int | None, **fields: Json) -> Json:
    place: dict[str, Json] = {} if index is None else {"index": index}
    return chunk({"tool_calls": [{**place, **fields}]})


# Chat


def test_usage_after_the_reason_to_finish_is_in_the_end() -> None:
    usage: Json = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": None}
    deltas = read(
        CHAT,
        chunk({"content": "hi"}),
        chunk({}, "stop"),
        {"id": "chatcmpl-1", "model": "m", "choices": [], "usage": usage},
        "[DONE]",
    )
    assert deltas == [Begin("chatcmpl-1", "m"), TextDelta("hi"), End(Finish.STOP, Usage(5, 2))]


def test_a_missing_done_is_no_harm_once_the_reason_to_finish_is_known() -> None:
    assert read(CHAT, chunk({"content": "hi"}, "length"))[-1] == End(Finish.LENGTH)


def test_a_done_without_a_reason_to_finish_is_an_end() -> None:
    assert read(CHAT, chunk({"content": "hi"}), "[DONE]")[-1] == End(Finish.STOP)


def test_an_empty_first_chunk_does_not_name_the_answer() -> None:
    first: Json = {"id": "", "model": "", "choices": [], "prompt_filter_results": []}
    assert read(CHAT, first, chunk({"content": "hi"}, "stop"))[0] == Begin("chatcmpl-1", "m")


def test_only_the_first_choice_is_read() -> None:
    other: Json = {
        "id": "chatcmpl-1",
        "model": "m",
        "choices": [{"index": 1, "delta": {"content": "no"}}],
    }
    assert TextDelta("no") not in read(CHAT, chunk({"content": "hi"}), other, "[DONE]")


def test_ids_and_names_repeated_in_every_chunk_begin_a_call_once() -> None:
    function: Json = {"name": "f", "arguments": "{"}
    rest: Json = {"name": "f", "arguments": "}"}
    deltas = read(
        CHAT, call(0, id="a", function=function), call(0, id="a", function=rest), chunk({}, "stop")
    )
    assert deltas[1:] == [
        ToolCallDelta(0, "a", "f", "{"),
        ToolCallDelta(0, None, None, "}"),
        End(Finish.TOOL_CALLS),
    ]


def test_parallel_calls_with_one_index_are_told_apart_by_id() -> None:
    deltas = read(
        CHAT,
        call(0, id="a", function={"name": "f", "arguments": "{}"}),
        call(0, id="b", function={"name": "g", "arguments": "{}"}),
        "[DONE]",
    )
    assert [delta.index for delta in deltas if isinstance(delta, ToolCallDelta)] == [0, 1]


def test_a_call_without_index_or_id_is_still_a_call() -> None:
    deltas = read(CHAT, call(None, function={"name": "f", "arguments": "{}"}), "[DONE]")
    assert collect(deltas).parts == (ToolCall("call_chatcmpl-1_0", "f", "{}"),)


def test_reasoning_has_two_names_and_refusals_are_words() -> None:
    deltas = read(
        CHAT,
        chunk({"reasoning": "a"}),
        chunk({"reasoning_content": "b"}),
        chunk({"refusal": "no"}, "content_filter"),
        "[DONE]",
    )
    assert collect(deltas).parts == (Reasoning("ab"), Text("no"))
    assert collect(deltas).finish is Finish.CONTENT_FILTER


def test_content_in_parts_is_read_whole_and_streamed() -> None:
    parts: Json = [{"type": "text", "text": "Good "}, {"type": "text", "text": "day."}]
    whole: Json = {"choices": [{"message": {"content": parts}, "finish_reason": "stop"}]}
    answer = wire_format(CHAT).parse_answer(msgspec.json.encode(whole))
    streamed = collect(read(CHAT, chunk({"content": parts}, "stop"), "[DONE]"))
    assert answer.parts == streamed.parts == (Text("Good day."),)


def test_an_error_in_the_stream_is_a_failure_and_the_last_word() -> None:
    deltas = read(
        CHAT,
        chunk({"content": "hi"}),
        {"error": {"message": "overloaded", "code": "busy"}},
        chunk({"content": "more"}),
    )
    assert deltas[-1] == Failed("overloaded", "busy")


@each(
    "body",
    ["{nonsense", "[1]", '"x"', '{"choices": [5]}', '{"choices": [{"delta": {"tool_calls": 5}}]}'],
)
def test_garbage_is_a_failure(body: str) -> None:
    deltas = read(CHAT, body)
    assert isinstance(deltas[-1], Failed)
    assert deltas[-1].code == "upstream_garbage"


def test_a_page_instead_of_a_stream_is_a_failure() -> None:
    for wire in Wire:
        reader = wire_format(wire).reader()
        assert reader.feed(b"<html>login</html>\n") == []
        (failed,) = reader.close()
        assert isinstance(failed, Failed)
        assert (reader.feed(b"data: 5\n\n"), reader.close()) == ([], [])


def test_an_event_without_end_is_given_up() -> None:
    reader = wire_format(CHAT).reader()
    piece = b"data: " + b"x" * (MAX_EVENT_BYTES // 4)
    deltas = [delta for _ in range(5) for delta in reader.feed(piece)]
    assert isinstance(deltas[0], Failed)
    assert "larger" in deltas[0].message


def test_half_a_surrogate_pair_does_not_break_the_answer() -> None:
    assert read(
        CHAT,
        '{"id":"chatcmpl-1","model":"m","choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}',
        "[DONE]",
    )[1] == TextDelta("\ud83d")


# Messages


def message(*more: Json) -> list[Json]:
    usage: Json = {"input_tokens": 5, "cache_read_input_tokens": 3, "output_tokens": 1}
    return [
        {"type": "message_start", "message": {"id": "msg_1", "model": "c", "usage": usage}},
        {"type": "ping"},
        *more,
    ]


def block(index: int, content: Json, *deltas: Json) -> list[Json]:
    started: Json = {"type": "content_block_start", "index": index, "content_block": content}
    pieces: list[Json] = [
        {"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas
    ]
    return [started, *pieces, {"type": "content_block_stop", "index": index}]


FINAL: list[Json] = [
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 9},
    },
    {"type": "message_stop"},
]


def test_counts_of_the_first_and_the_last_event_are_put_together() -> None:
    deltas = read(MESSAGES, *message(), *FINAL)
    assert deltas == [Begin("msg_1", "c", Usage(8, 1, 3)), End(Finish.STOP, Usage(8, 9, 3))]


def test_a_call_without_input_has_an_empty_object() -> None:
    deltas = read(
        MESSAGES,
        *message(*block(0, {"type": "tool_use", "id": "a", "name": "f", "input": {}})),
        *FINAL,
    )
    assert collect(deltas).parts == (ToolCall("a", "f", "{}"),)


def test_a_call_may_bring_its_input_at_once() -> None:
    deltas = read(
        MESSAGES,
        *message(*block(0, {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}})),
        *FINAL,
    )
    assert collect(deltas).parts == (ToolCall("a", "f", '{"x":1}'),)


def test_blocks_may_begin_with_something_in_them() -> None:
    thinking: Json = {"type": "thinking", "thinking": "a", "signature": "s"}
    deltas = read(
        MESSAGES,
        *message(
            *block(0, thinking),
            *block(1, {"type": "text", "text": "b"}, {"type": "citations_delta"}),
        ),
        *FINAL,
    )
    assert collect(deltas).parts == (Reasoning("a", "messages:s"), Text("b"))


def test_a_servers_own_tools_are_carried_whole() -> None:
    used: Json = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    deltas = read(
        MESSAGES,
        *message(
            *block(0, used, {"type": "input_json_delta", "partial_json": '{"q":1}'}),
            *block(1, {"type": "odd"}),
        ),
        *FINAL,
    )
    opaque = [delta for delta in deltas if isinstance(delta, OpaqueDelta)]
    assert [delta.part.value for delta in opaque] == [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"q": 1}},
        {"type": "odd"},
    ]


def test_an_error_event_is_a_failure() -> None:
    deltas = read(
        MESSAGES,
        *message(),
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    )
    assert deltas[-1] == Failed("Overloaded", "overloaded_error")


def test_a_message_is_whole_once_it_says_why_it_stopped() -> None:
    assert read(MESSAGES, *message(), FINAL[0])[-1] == End(Finish.STOP, Usage(8, 9, 3))
    assert read(MESSAGES, *message(), "[DONE]")[-1] == Failed(
        "the provider's stream ended before the answer was complete", "upstream_truncated"
    )


def test_pieces_of_blocks_nobody_opened_are_passed_over() -> None:
    stray: Json = {
        "type": "content_block_delta",
        "index": 7,
        "delta": {"type": "text_delta", "text": "x"},
    }
    assert (
        collect(
            read(MESSAGES, *message(stray, {"type": "content_block_stop", "index": 7}), *FINAL)
        ).parts
        == ()
    )


@each(
    ("word", "finish"),
    [
        ("max_tokens", Finish.LENGTH),
        ("model_context_window_exceeded", Finish.LENGTH),
        ("refusal", Finish.CONTENT_FILTER),
        ("pause_turn", Finish.OTHER),
    ],
)
def test_anthropics_reasons_to_stop(word: str, finish: Finish) -> None:
    body: Json = {
        "id": "msg_1",
        "model": "c",
        "content": [],
        "stop_reason": word,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    assert wire_format(MESSAGES).parse_answer(msgspec.json.encode(body)).finish is finish


# Responses


def response(status: str = "completed", **more: Json) -> Json:
    return {"id": "resp_1", "model": "g", "status": status, "output": [], **more}


def item(index: int, body: Json, *between: Json) -> list[Json]:
    return [
        {"type": "response.output_item.added", "output_index": index, "item": body},
        *between,
        {"type": "response.output_item.done", "output_index": index, "item": body},
    ]


CREATED: Json = {"type": "response.created", "response": response("in_progress")}
COMPLETED: Json = {"type": "response.completed", "response": response()}
SAID: Json = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "hi"}],
}


def test_items_that_come_without_pieces_are_said_when_done() -> None:
    called: Json = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    thought: Json = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "hm"}],
        "encrypted_content": "e",
    }
    deltas = read(
        RESPONSES, CREATED, *item(0, thought), *item(1, SAID), *item(2, called), COMPLETED
    )
    assert collect(deltas).parts == (
        Reasoning("hm", "responses:e"),
        Text("hi"),
        ToolCall("a", "f", "{}"),
    )
    assert collect(deltas).finish is Finish.TOOL_CALLS


def test_two_messages_in_a_row_are_two_paragraphs() -> None:
    assert collect(read(RESPONSES, CREATED, *item(0, SAID), *item(1, SAID), COMPLETED)).parts == (
        Text("hi\n\nhi"),
    )


def test_parts_of_a_summary_are_paragraphs() -> None:
    first: Json = {"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "a"}
    between: Json = {
        "type": "response.reasoning_summary_part.added",
        "output_index": 0,
        "summary_index": 1,
    }
    second: Json = {"type": "response.reasoning_text.delta", "output_index": 0, "delta": "b"}
    thought: Json = {"type": "reasoning", "summary": []}
    assert collect(
        read(RESPONSES, CREATED, *item(0, thought, first, between, second), COMPLETED)
    ).parts == (Reasoning("a\n\nb"),)


def test_custom_and_hosted_calls_are_said_whole() -> None:
    custom: Json = {"type": "custom_tool_call", "call_id": "c", "name": "exec", "input": "ls"}
    hosted: Json = {"type": "web_search_call", "id": "ws"}
    deltas = read(RESPONSES, CREATED, *item(0, custom), *item(1, hosted), COMPLETED)
    assert collect(deltas).parts == (
        ToolCall("c", "exec", '{"input":"ls"}'),
        Opaque(RESPONSES, hosted),
    )


def test_the_rest_of_arguments_that_came_in_part_is_taken_from_the_item() -> None:
    begun: Json = {
        "type": "function_call",
        "call_id": "a",
        "name": "f",
        "arguments": '{"x":1}',
        "namespace": "n",
    }
    piece: Json = {
        "type": "response.function_call_arguments.delta",
        "output_index": 0,
        "delta": '{"x"',
    }
    stray: Json = {
        "type": "response.function_call_arguments.delta",
        "output_index": 9,
        "delta": "z",
    }
    assert collect(read(RESPONSES, CREATED, *item(0, begun, piece, stray), COMPLETED)).parts == (
        ToolCall("a", "n__f", '{"x":1}'),
    )


def test_refusals_are_words_and_incomplete_says_why() -> None:
    refusal: Json = {"type": "response.refusal.delta", "output_index": 0, "delta": "no"}
    cut: Json = {
        "type": "response.incomplete",
        "response": response("incomplete", incomplete_details={"reason": "content_filter"}),
    }
    assert read(RESPONSES, refusal, cut) == [
        Begin("", ""),
        TextDelta("no"),
        End(Finish.CONTENT_FILTER),
    ]


@each(
    ("event", "failed"),
    [
        (
            {
                "type": "response.failed",
                "response": response(
                    "failed", error={"code": "rate_limit_exceeded", "message": "slow"}
                ),
            },
            ("slow", "rate_limit_exceeded"),
        ),
        ({"type": "error", "message": "bad", "code": None}, ("bad", "upstream_error")),
        ({"type": "error", "error": {"message": "worse", "code": "x"}}, ("worse", "x")),
        ({"type": "error"}, ("the provider reported an error", "upstream_error")),
        ({"type": "response.failed"}, ("the provider reported status failed", "upstream_error")),
        (
            {"type": "response.completed", "response": response("failed", error=None)},
            ("the provider reported status failed", "upstream_error"),
        ),
        (
            {"type": "response.completed", "response": response("cancelled")},
            ("the provider reported status cancelled", "upstream_error"),
        ),
        (
            {"type": "response.incomplete", "response": response(error={"code": "x"})},
            ("the provider reported an error", "x"),
        ),
    ],
)
def test_failed_responses_say_why(event: Json, failed: tuple[str, str]) -> None:
    assert read(RESPONSES, CREATED, event)[-1] == Failed(*failed)


def test_a_response_without_its_last_event_is_not_whole() -> None:
    assert isinstance(read(RESPONSES, CREATED, *item(0, SAID))[-1], Failed)
    assert isinstance(read(RESPONSES, CREATED, "[DONE]")[-1], Failed)


# Whole answers


@each("wire", Wire)
@each(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"choices":[],"content":5,"output":{}}',
        b'{"choices":[{"message":5}],"content":[5],"output":[5]}',
    ],
)
def test_an_answer_that_is_none_is_the_providers_fault(wire: Wire, body: bytes) -> None:
    with pytest.raises(UpstreamError) as caught:
        wire_format(wire).parse_answer(body)
    assert (caught.value.status, caught.value.code) == (502, "upstream_garbage")


@pytest.mark.parametrize("wire", Wire)
def test_an_error_in_an_answer_is_told(wire: Wire) -> None:
    body = b'{"type":"error","status":"failed","error":{"message":"no money","code":"quota"}}'
    with pytest.raises(UpstreamError, match="no money") as caught:
        wire_format(wire).parse_answer(body)
    assert caught.value.code == "quota"


def test_chat_content_in_parts_and_stop_words() -> None:
    choice: Json = {
        "message": {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        "finish_reason": "stop",
        "stop_reason": "###",
    }
    completion = wire_format(CHAT).parse_answer(msgspec.json.encode({"choices": [choice]}))
    assert (completion.parts, completion.stop_sequence, completion.finish) == (
        (Text("ab"),),
        "###",
        Finish.STOP,
    )


@pytest.mark.parametrize(
    ("status", "finish"),
    [("in_progress", None), ("incomplete", Finish.OTHER), ("odd", Finish.OTHER)],
)
def test_states_of_a_response(status: str, finish: Finish | None) -> None:
    assert (
        wire_format(RESPONSES).parse_answer(msgspec.json.encode(response(status))).finish is finish
    )


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_whole_response_that_failed_without_a_word_is_no_answer(status: str) -> None:
    with pytest.raises(UpstreamError, match=f"the provider reported status {status}") as caught:
        wire_format(RESPONSES).parse_answer(msgspec.json.encode(response(status, error=None)))
    assert caught.value.code == "upstream_error"


# Deltas


def written(wire: Wire, deltas: Iterable[Delta]) -> bytes:
    request = ChatRequest(
        wire, "m", (Message(Role.USER, (Text("hi"),)),), stream=True, include_usage=True
    )
    writer = wire_format(wire).writer(request)
    return b"".join(map(writer.write, deltas))


@pytest.mark.parametrize("wire", [MESSAGES, RESPONSES])
def test_a_piece_of_a_call_that_never_began_is_the_providers_fault(wire: Wire) -> None:
    with pytest.raises(UpstreamError, match="not being made"):
        written(wire, [Begin("1", "m"), ToolCallDelta(3, None, None, "{}")])


@pytest.mark.parametrize("wire", [MESSAGES, RESPONSES])
def test_a_piece_of_a_call_that_is_over_is_the_providers_fault_unless_it_is_blank(
    wire: Wire,
) -> None:
    said: list[Delta] = [
        Begin("1", "m"),
        ToolCallDelta(0, "a", "f", "{}"),
        TextDelta("x"),
        ToolCallDelta(0, None, None, "\n"),
    ]
    written(wire, said)
    with pytest.raises(UpstreamError, match="not being made"):
        written(wire, [*said, ToolCallDelta(0, None, None, "z")])


@pytest.mark.parametrize("wire", Wire)
def test_empty_pieces_and_foreign_parts_are_not_written(wire: Wire) -> None:
    other = MESSAGES if wire is not MESSAGES else RESPONSES
    nothing: list[Delta] = [
        TextDelta(""),
        ReasoningDelta(""),
        OpaqueDelta(Opaque(other, {"type": "x"})),
    ]
    assert written(wire, nothing) == b""


@pytest.mark.parametrize("wire", [MESSAGES, RESPONSES])
def test_a_wires_own_parts_are_written(wire: Wire) -> None:
    part = Opaque(wire, {"type": "web_search_call", "id": "ws"})
    said = written(
        wire, [Begin("1", "m"), TextDelta("a"), OpaqueDelta(part), End(Finish.STOP, Usage(1, 1))]
    )
    reader = wire_format(wire).reader()
    assert part in collect(reader.feed(said)).parts


@pytest.mark.parametrize("wire", Wire)
def test_an_answer_without_a_beginning_is_still_an_answer(wire: Wire) -> None:
    reader = wire_format(wire).reader()
    said = (
        written(wire, [End(Finish.STOP, Usage(1, 1))])
        if wire is not CHAT
        else written(wire, [TextDelta(""), End(Finish.STOP, Usage(1, 1))])
    )
    assert isinstance([*reader.feed(said), *reader.close()][-1], End)


def test_a_failure_before_the_beginning_is_still_told() -> None:
    for wire in Wire:
        assert b"broke" in written(wire, [Failed("broke")])


def test_collecting_stops_at_a_failure() -> None:
    with pytest.raises(UpstreamError, match="broke"):
        collect([Begin("1", "m"), Failed("broke")])
    with pytest.raises(UpstreamError, match="complete"):
        collect([Begin("1", "m"), TextDelta("x")])


def test_a_redacted_thought_does_not_swallow_the_one_before_it() -> None:
    parts = (
        Reasoning("a"),
        Reasoning("", "messages:x", redacted=True),
        Reasoning("b"),
        Text("c"),
        Opaque(MESSAGES, {"type": "x"}),
    )
    completion = Completion("msg_1", "m", parts, Finish.STOP, Usage(1, 1))
    assert collect(deltas_of(completion)) == completion
    for wire in (MESSAGES, RESPONSES):
        reader = wire_format(wire).reader()
        assert collect(reader.feed(written(wire, deltas_of(completion)))).parts[:4] == parts[:4]


def test_an_unfinished_answer_taken_apart_is_a_failure() -> None:
    assert list(deltas_of(Completion("1", "m", (), None)))[-1] == Failed(
        "the provider's stream ended before the answer was complete", "upstream_truncated"
    )


def test_a_chat_client_gets_its_custom_calls_whole() -> None:
    tool = Opaque(CHAT, {"type": "custom", "custom": {"name": "exec"}})
    request = ChatRequest(CHAT, "m", (Message(Role.USER, (Text("hi"),)),), (tool,), stream=True)
    writer = wire_format(CHAT).writer(request)
    assert writer.write(ToolCallDelta(0, "c", "exec", '{"input":')) == b""
    assert writer.write(ToolCallDelta(0, None, None, '"ls"}')) == b""
    assert b'"type":"custom","custom":{"name":"exec","input":"ls"}' in writer.write(
        End(Finish.TOOL_CALLS)
    )
    whole = wire_format(CHAT).render_answer(
        Completion("1", "m", (ToolCall("c", "exec", "raw"),), Finish.TOOL_CALLS), request
    )
    assert b'"custom":{"name":"exec","input":"raw"}' in whole


@pytest.mark.parametrize(
    ("wire", "prefix"), [(CHAT, "chatcmpl-"), (MESSAGES, "msg_"), (RESPONSES, "resp_")]
)
def test_an_answer_without_a_name_gets_one_of_its_wire(wire: Wire, prefix: str) -> None:
    request = ChatRequest(wire, "asked", (Message(Role.USER, (Text("hi"),)),))
    spoken = wire_format(wire)
    shown = spoken.parse_answer(
        spoken.render_answer(Completion("", "", (Text("hi"),), None), request)
    )
    assert len(shown.id) > len(prefix)
    assert (shown.id.startswith(prefix), shown.model, shown.finish) == (True, "asked", Finish.STOP)


@pytest.mark.parametrize("wire", [MESSAGES, RESPONSES])
def test_parts_only_one_wire_knows_stay_on_it(wire: Wire) -> None:
    own, foreign = Opaque(wire, {"type": "odd_call", "id": "x"}), Opaque(CHAT, {"type": "odd"})
    completion = Completion("1", "m", (own, foreign, Text("hi")), Finish.STOP, Usage(1, 1))
    spoken = wire_format(wire)
    request = ChatRequest(wire, "m", (Message(Role.USER, (Text("hi"),)),))
    assert spoken.parse_answer(spoken.render_answer(completion, request)).parts == (own, Text("hi"))


def test_instructions_are_repeated_in_a_response() -> None:
    request = wire_format(RESPONSES).parse_request(
        {"model": "m", "instructions": "be kind", "input": "hi", "metadata": {"a": "b"}}
    )
    body = msgspec.json.decode(
        wire_format(RESPONSES).render_answer(Completion("1", "m", (), Finish.STOP), request)
    )
    assert (body["instructions"], body["metadata"]) == ("be kind", {"a": "b"})


def test_a_thought_without_words_or_proof_is_no_thought() -> None:
    assert collect([Begin("1", "m"), ReasoningDelta(""), End(Finish.STOP)]).parts == ()


def test_an_answer_holds_no_results() -> None:
    completion = Completion("1", "m", (ToolResult("a", ()),), Finish.STOP)
    assert list(deltas_of(completion)) == [Begin("1", "m"), End(Finish.STOP)]


def test_an_event_without_data_means_nothing() -> None:
    reader = wire_format(CHAT).reader()
    assert reader.feed(b"event: ping\ndata:\n\n") == []


def test_the_last_event_counts_without_its_blank_line() -> None:
    for wire in Wire:
        said = written(
            wire, [Begin("1", "m"), TextDelta("hi"), End(Finish.STOP, Usage(1, 1))]
        ).rstrip(b"\n")
        reader = wire_format(wire).reader()
        assert isinstance((reader.feed(said) + reader.close())[-1], End)


def test_an_empty_text_in_a_message_is_no_part() -> None:
    body: Json = {
        "id": "msg_1",
        "model": "c",
        "content": [{"type": "text", "text": ""}],
        "stop_reason": "end_turn",
    }
    assert wire_format(MESSAGES).parse_answer(msgspec.json.encode(body)).parts == ()
    item_: Json = {"type": "message", "content": [{"type": "output_text", "text": ""}]}
    assert (
        wire_format(RESPONSES)
        .parse_answer(msgspec.json.encode({**object_of(response()), "output": [item_]}))
        .parts
        == ()
    )

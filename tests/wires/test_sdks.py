"""The official SDKs, validating strictly, accept every answer and stream we render."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import httpx2
import pytest

from metaclaw.domain.chat import (
    Begin,
    ChatRequest,
    Completion,
    Delta,
    End,
    Failed,
    Finish,
    Message,
    Opaque,
    Reasoning,
    ReasoningDelta,
    Role,
    SampledTokens,
    Text,
    TextDelta,
    TokenLogprob,
    Tool,
    ToolCall,
    ToolCallDelta,
    Usage,
    Wire,
)
from metaclaw.wires import deltas_of, wire_format

if TYPE_CHECKING:  # only who asks waits for an SDK
    import anthropic
    import openai

USAGE = Usage(100, 20, cached_tokens=30, cache_write_tokens=5, reasoning_tokens=7)
ARGUMENTS = '{"command":"echo ok"}'
ANSWER = Completion(
    id="42",
    model="some-model",
    parts=(
        Reasoning("let me see", "messages:c2ln"),
        Text("Two things to do."),
        ToolCall("call_1", "bash", ARGUMENTS),
        ToolCall("call_2", "bash", '{"command":"ls"}'),
    ),
    finish=Finish.TOOL_CALLS,
    usage=USAGE,
    tokens=SampledTokens((1,), (2,), (-0.5,)),
)
LOGPROBS = (TokenLogprob("hé", -0.1, (("hé", -0.1), ("ho", -2.5))),)
TOOL = Tool("bash", "run it", {"type": "object", "properties": {"command": {"type": "string"}}})


def request_of(
    wire: Wire, *, stream: bool = True, tools: tuple[Tool | Opaque, ...] = (TOOL,)
) -> ChatRequest:
    return ChatRequest(
        wire,
        "asked",
        (Message(Role.USER, (Text("hi"),)),),
        tools,
        stream=stream,
        include_usage=stream,
    )


def streamed(
    wire: Wire, deltas: Iterable[Delta], tools: tuple[Tool | Opaque, ...] = (TOOL,)
) -> bytes:
    writer = wire_format(wire).writer(request_of(wire, tools=tools))
    return b"".join(map(writer.write, deltas))


def whole(wire: Wire, completion: Completion = ANSWER) -> bytes:
    return wire_format(wire).render_answer(completion, request_of(wire, stream=False))


def transport(body: bytes, kind: str, status: int = 200) -> httpx2.MockTransport:
    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, content=body, headers={"content-type": kind})

    return httpx2.MockTransport(answer)


def oai(body: bytes, kind: str = "text/event-stream", status: int = 200) -> "openai.OpenAI":
    import openai

    client = httpx2.Client(transport=transport(body, kind, status))
    return openai.OpenAI(
        base_url="http://test/v1",
        api_key="k",
        http_client=client,
        max_retries=0,
        _strict_response_validation=True,
    )


def claude(
    body: bytes, kind: str = "text/event-stream", status: int = 200
) -> "anthropic.Anthropic":
    import anthropic

    client = httpx2.Client(transport=transport(body, kind, status))
    return anthropic.Anthropic(
        base_url="http://test",
        api_key="k",
        http_client=client,
        max_retries=0,
        _strict_response_validation=True,
    )


def test_a_whole_chat_answer() -> None:
    client = oai(whole(Wire.CHAT), "application/json")
    answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    choice = answer.choices[0]
    assert choice.message.content == "Two things to do."
    assert [call.id for call in choice.message.tool_calls or ()] == ["call_1", "call_2"]
    assert (answer.id, choice.finish_reason) == ("chatcmpl-42", "tool_calls")
    assert answer.usage is not None
    assert (answer.usage.total_tokens, answer.usage.prompt_tokens) == (120, 100)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 30
    assert getattr(choice.message, "reasoning_content", None) == "let me see"


def test_a_whole_chat_answer_with_log_probabilities() -> None:
    body = whole(Wire.CHAT, Completion("1", "m", (Text("hé"),), Finish.STOP, logprobs=LOGPROBS))
    answer = oai(body, "application/json").chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hi"}]
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert logprobs.content[0].bytes == list("hé".encode())
    assert logprobs.content[0].top_logprobs[1].logprob == -2.5


def test_a_chat_stream_through_the_streaming_helper() -> None:
    client = oai(streamed(Wire.CHAT, deltas_of(ANSWER)))
    with client.chat.completions.stream(
        model="m", messages=[{"role": "user", "content": "hi"}]
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    assert final.choices[0].message.content == "Two things to do."
    calls = final.choices[0].message.tool_calls or ()
    assert [call.function.arguments for call in calls if call.type == "function"] == [
        ARGUMENTS,
        '{"command":"ls"}',
    ]
    assert final.usage is not None
    assert final.usage.completion_tokens == 20


def test_a_chat_stream_has_usage_only_for_those_who_asked() -> None:
    request = ChatRequest(Wire.CHAT, "m", (Message(Role.USER, (Text("hi"),)),), stream=True)
    writer = wire_format(Wire.CHAT).writer(request)
    body = b"".join(map(writer.write, deltas_of(ANSWER)))
    chunks = list(
        oai(body).chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
    )
    assert [chunk.usage for chunk in chunks if chunk.usage is not None] == []
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_whole_response() -> None:
    response = oai(whole(Wire.RESPONSES), "application/json").responses.create(
        model="m", input="hi"
    )
    assert [item.type for item in response.output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    assert response.output_text == "Two things to do."
    assert (response.id, response.status) == ("resp_42", "completed")
    assert response.usage is not None
    assert response.usage.input_tokens_details.cached_tokens == 30
    assert response.usage.output_tokens_details.reasoning_tokens == 7


def test_a_response_cut_short_is_incomplete() -> None:
    body = whole(Wire.RESPONSES, Completion("1", "m", (Text("and so"),), Finish.LENGTH, USAGE))
    response = oai(body, "application/json").responses.create(model="m", input="hi")
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_a_response_stream_through_the_streaming_helper() -> None:
    with oai(streamed(Wire.RESPONSES, deltas_of(ANSWER))).responses.stream(
        model="m", input="hi"
    ) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [
        event.type for event in events if not event.type.startswith("response.function_call")
    ] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.output_item.done",
        "response.output_item.added",
        "response.output_item.done",
        "response.completed",
    ]
    assert final.output_text == "Two things to do."
    assert [item.arguments for item in final.output if item.type == "function_call"] == [
        ARGUMENTS,
        '{"command":"ls"}',
    ]
    assert final.usage is not None
    assert final.usage.total_tokens == 120


def test_a_response_stream_calls_custom_and_namespaced_tools_as_the_client_knows_them() -> None:
    tools = (
        Opaque(Wire.RESPONSES, {"type": "custom", "name": "exec"}),
        Opaque(
            Wire.RESPONSES,
            {
                "type": "namespace",
                "name": "agents",
                "description": "others",
                "tools": [{"type": "function", "name": "close", "parameters": {}}],
            },
        ),
    )
    deltas: list[Delta] = [
        Begin("1", "m"),
        ToolCallDelta(0, "c1", "exec", '{"inp'),
        ToolCallDelta(0, None, None, 'ut":"ls\\n"}'),
        ToolCallDelta(1, "c2", "agents__close", "{}"),
        End(Finish.TOOL_CALLS, USAGE),
    ]
    with oai(streamed(Wire.RESPONSES, deltas, tools)).responses.stream(
        model="m", input="hi"
    ) as stream:
        events = list(stream)
        output = stream.get_final_response().output
    assert output[0].type == "custom_tool_call"
    assert (output[0].name, output[0].input, output[0].call_id) == ("exec", "ls\n", "c1")
    assert output[1].type == "function_call"
    assert (output[1].name, output[1].namespace, output[1].arguments) == ("close", "agents", "{}")
    assert "response.custom_tool_call_input.done" in [event.type for event in events]


def test_a_whole_message() -> None:
    answer = claude(whole(Wire.MESSAGES), "application/json").messages.create(
        model="m", max_tokens=5, messages=[{"role": "user", "content": "hi"}]
    )
    assert [block.type for block in answer.content] == ["thinking", "text", "tool_use", "tool_use"]
    thinking, _, call, _ = answer.content
    assert thinking.type == "thinking"
    assert thinking.signature == "c2ln"
    assert call.type == "tool_use"
    assert call.input == {"command": "echo ok"}
    assert (answer.id, answer.stop_reason) == ("msg_42", "tool_use")
    usage = answer.usage
    assert (
        usage.input_tokens,
        usage.cache_read_input_tokens,
        usage.cache_creation_input_tokens,
    ) == (65, 30, 5)
    assert usage.output_tokens_details is not None
    assert usage.output_tokens_details.thinking_tokens == 7


def test_a_message_stream_through_the_streaming_helper() -> None:
    client = claude(streamed(Wire.MESSAGES, deltas_of(ANSWER)))
    with client.messages.stream(
        model="m", max_tokens=5, messages=[{"role": "user", "content": "hi"}]
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 4
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block.input for block in final.content if block.type == "tool_use"] == [
        {"command": "echo ok"},
        {"command": "ls"},
    ]
    assert final.stop_reason == "tool_use"
    assert (final.usage.input_tokens, final.usage.output_tokens) == (65, 20)


def test_redacted_thinking_is_a_block_of_its_own() -> None:
    deltas: list[Delta] = [
        Begin("1", "m"),
        ReasoningDelta("", "messages:eA==", redacted=True),
        TextDelta("hi"),
        End(Finish.STOP, USAGE),
    ]
    client = claude(streamed(Wire.MESSAGES, deltas))
    with client.messages.stream(
        model="m", max_tokens=5, messages=[{"role": "user", "content": "hi"}]
    ) as stream:
        first = stream.get_final_message().content[0]
    assert first.type == "redacted_thinking"
    assert first.data == "eA=="


FAILURE: list[Delta] = [
    Begin("1", "m"),
    TextDelta("so far"),
    Failed("the provider fell over", "upstream_error"),
]


def test_a_failure_in_a_chat_stream_reaches_the_caller() -> None:
    import openai

    stream = oai(streamed(Wire.CHAT, FAILURE)).chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hi"}], stream=True
    )
    with pytest.raises(openai.APIError, match="the provider fell over"):
        list(stream)


def test_a_failure_in_a_response_stream_reaches_the_caller() -> None:
    stream = oai(streamed(Wire.RESPONSES, FAILURE)).responses.create(
        model="m", input="hi", stream=True
    )
    events = list(stream)
    error, failed = events[-2:]
    assert error.type == "error"
    assert error.message == "the provider fell over"
    assert failed.type == "response.failed"
    assert failed.response.error is not None
    assert failed.response.error.message == "the provider fell over"


def test_a_failure_in_a_message_stream_reaches_the_caller() -> None:
    import anthropic

    client = claude(streamed(Wire.MESSAGES, FAILURE))
    stream = client.messages.create(
        model="m", max_tokens=5, messages=[{"role": "user", "content": "hi"}], stream=True
    )
    with pytest.raises(anthropic.APIStatusError, match="the provider fell over"):
        list(stream)


def _chat_call(body: bytes, status: int) -> None:
    oai(body, "application/json", status).chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hi"}]
    )


def _responses_call(body: bytes, status: int) -> None:
    oai(body, "application/json", status).responses.create(model="m", input="hi")


@pytest.mark.parametrize(
    ("wire", "call"), [(Wire.CHAT, _chat_call), (Wire.RESPONSES, _responses_call)]
)
def test_an_error_body_becomes_the_sdks_own_exception(
    wire: Wire, call: Callable[[bytes, int], None]
) -> None:
    import openai

    body = wire_format(wire).error_body(429, "slow down", "rate_limited", None)
    with pytest.raises(openai.RateLimitError, match="slow down") as caught:
        call(body, 429)
    assert caught.value.code == "rate_limited"


def test_an_error_body_becomes_anthropics_own_exception() -> None:
    import anthropic

    body = wire_format(Wire.MESSAGES).error_body(400, "what is this", "bad", "messages")
    with pytest.raises(anthropic.BadRequestError, match="what is this") as caught:
        claude(body, "application/json", 400).messages.create(
            model="m", max_tokens=1, messages=[{"role": "user", "content": "hi"}]
        )
    assert caught.value.body == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "what is this"},
    }


def test_an_error_event_of_the_proxy_itself_reaches_the_caller() -> None:
    import anthropic
    import openai

    chat = wire_format(Wire.CHAT).error_event("gone", "upstream_error")
    with pytest.raises(openai.APIError, match="gone"):
        list(
            oai(chat).chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=True
            )
        )
    message = wire_format(Wire.MESSAGES).error_event("gone", "upstream_error")
    with pytest.raises(anthropic.APIStatusError, match="gone"):
        list(
            claude(message).messages.create(
                model="m", max_tokens=5, messages=[{"role": "user", "content": "hi"}], stream=True
            )
        )
    response = wire_format(Wire.RESPONSES).error_event("gone", "upstream_error")
    (event,) = oai(response).responses.create(model="m", input="hi", stream=True)
    assert event.type == "error"
    assert event.message == "gone"

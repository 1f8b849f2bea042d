"""Requests that are wrong are refused with the name of what is wrong; requests that are odd are
understood.
"""

from typing import Any

import pytest

from metaclaw.domain.chat import (
    Image,
    Message,
    Opaque,
    Reasoning,
    Role,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolMode,
    ToolResult,
    Wire,
)
from metaclaw.errors import WireError
from metaclaw.wires import wire_format
from tests.support.cases import each

HELLO = {"role": "user", "content": "hi"}


def parse(wire: Wire, **body: Any) -> Any:
    return wire_format(wire).parse_request({"model": "m", **body})


CHAT, RESPONSES, MESSAGES = Wire.CHAT, Wire.RESPONSES, Wire.MESSAGES


@each(
    ("wire", "body", "param"),
    [
        (CHAT, {"messages": [], "model": "m"}, "messages"),
        (CHAT, {"messages": "hi"}, "messages"),
        (CHAT, {"messages": None}, "messages"),
        (CHAT, {"messages": [1]}, "messages[0]"),
        (CHAT, {"messages": [{"content": "x"}]}, "messages[0].role"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"),
        (CHAT, {"messages": [{"role": "user", "content": {"a": 1}}]}, "messages[0].content"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"text": "x"}]}]},
            "messages[0].content[0].type",
        ),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
            "messages[0].content[0].text",
        ),
        (CHAT, {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        (
            CHAT,
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]},
            "messages[0].tool_calls[0].function",
        ),
        (CHAT, {"messages": [HELLO], "model": 5}, "model"),
        (CHAT, {"messages": [HELLO], "max_tokens": "many"}, "max_tokens"),
        (CHAT, {"messages": [HELLO], "max_tokens": True}, "max_tokens"),
        (CHAT, {"messages": [HELLO], "temperature": "hot"}, "temperature"),
        (CHAT, {"messages": [HELLO], "stream": "yes"}, "stream"),
        (CHAT, {"messages": [HELLO], "stop": [1]}, "stop"),
        (CHAT, {"messages": [HELLO], "stop": 5}, "stop"),
        (CHAT, {"messages": [HELLO], "n": 0}, "n"),
        (CHAT, {"messages": [HELLO], "tools": {}}, "tools"),
        (CHAT, {"messages": [HELLO], "tools": [{"type": "function"}]}, "tools[0].function"),
        (CHAT, {"messages": [HELLO], "tool_choice": "perhaps"}, "tool_choice"),
        (CHAT, {"messages": [HELLO], "response_format": "json"}, "response_format"),
        (
            CHAT,
            {"messages": [HELLO], "response_format": {"type": "json_schema"}},
            "response_format.json_schema",
        ),
        (MESSAGES, {"messages": []}, "messages"),
        (MESSAGES, {"messages": [{"role": "user"}]}, "messages[0].content"),
        (MESSAGES, {"messages": [HELLO], "system": 5}, "system"),
        (
            MESSAGES,
            {"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]},
            "messages[0].content[0].id",
        ),
        (
            MESSAGES,
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "tool_result",
                                "tool_use_id": "a",
                                "content": [{"type": "thinking", "thinking": "x"}],
                            }
                        ],
                    }
                ]
            },
            "messages[0].content[0].content",
        ),
        (MESSAGES, {"messages": [HELLO], "tools": [{"name": 5}]}, "tools[0].name"),
        (MESSAGES, {"messages": [HELLO], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        (
            MESSAGES,
            {"messages": [HELLO], "output_config": {"format": {"type": "xml"}}},
            "output_config.format.type",
        ),
        (RESPONSES, {"input": []}, "input"),
        (RESPONSES, {"input": ""}, "input"),
        (RESPONSES, {}, "input"),
        (RESPONSES, {"input": {"a": 1}}, "input"),
        (RESPONSES, {"input": [{"role": "user"}]}, "input[0].content"),
        (RESPONSES, {"input": [{"role": "user", "content": 5}]}, "input[0].content"),
        (RESPONSES, {"input": [{"type": {}}]}, "input[0].type"),
        (RESPONSES, {"input": [{"type": "function_call", "call_id": "a"}]}, "input[0].name"),
        (
            RESPONSES,
            {"input": [{"type": "custom_tool_call", "call_id": "a", "name": "b"}]},
            "input[0].input",
        ),
        (RESPONSES, {"input": "hi", "tools": [{"name": "x"}]}, "tools[0].type"),
        (RESPONSES, {"input": "hi", "tool_choice": "perhaps"}, "tool_choice"),
    ],
)
def test_what_is_wrong_is_named(wire: Wire, body: dict[str, Any], param: str) -> None:
    with pytest.raises(WireError) as caught:
        parse(wire, **body)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert param.split("[")[0].split(".")[0] in str(caught.value)


def test_an_odd_role_is_kept_as_it_is_and_refused_only_by_another_wire() -> None:
    request = parse(CHAT, messages=[{"role": "martian", "content": "x"}])
    assert request.messages[0].role == "martian"
    assert wire_format(CHAT).render_request(request)["messages"] == [
        {"role": "martian", "content": "x"}
    ]
    with pytest.raises(WireError, match="martian") as caught:
        wire_format(MESSAGES).render_request(request)
    assert caught.value.param == "messages[0].role"


def test_chat_content_comes_in_every_shape() -> None:
    request = parse(
        CHAT,
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "be kind"}]},
            {
                "role": "user",
                "name": "ann",
                "content": ["plain", {"type": "image_url", "image_url": "https://e.org/a.png"}],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "image_url",
                        "image_url": {"url": "https://e.org/a.png", "detail": "low"},
                    }
                ],
            },
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
            {
                "role": "assistant",
                "content": None,
                "reasoning": "hm",
                "refusal": "no",
                "provider_specific_fields": {"a": None},
            },
            {
                "role": "assistant",
                "content": [{"type": "refusal", "refusal": "no"}],
                "reasoning_content": "hm",
            },
            {
                "role": "assistant",
                "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": None}}],
            },
            {"role": "tool", "tool_call_id": "a", "content": None, "name": "f"},
        ],
    )
    assert [message.parts for message in request.messages] == [
        (Text("be kind"),),
        (Text("plain"), Image("https://e.org/a.png")),
        (Image("https://e.org/a.png", "low"),),
        (Opaque(CHAT, {"type": "input_audio", "input_audio": {}}),),
        (Reasoning("hm"), Text("no", {"type": "refusal"})),
        (Reasoning("hm"), Text("no", {"type": "refusal"})),
        (ToolCall("a", "f", ""),),
        (ToolResult("a", ()),),
    ]
    assert request.messages[0].role is Role.SYSTEM
    assert request.messages[4].extra == {"provider_specific_fields": {"a": None}}


def test_newer_words_for_the_same_wish_win() -> None:
    assert (
        parse(CHAT, messages=[HELLO], max_tokens=5, max_completion_tokens=7).sampling.max_tokens
        == 7
    )
    assert parse(CHAT, messages=[HELLO], max_tokens=5).sampling.max_tokens == 5


@pytest.mark.parametrize(
    ("given", "kept"),
    [({"type": "text"}, None), ({"type": "json_object"}, {"schema": {"type": "object"}})],
)
def test_wished_shapes_of_chat_answers(given: Any, kept: Any) -> None:
    assert parse(CHAT, messages=[HELLO], response_format=given).json_schema == kept
    assert parse(RESPONSES, input="hi", text={"format": given}).json_schema == kept


def test_shapes_and_choices_nobody_knows_are_kept() -> None:
    request = parse(
        CHAT,
        messages=[HELLO],
        response_format={"type": "grammar"},
        tool_choice={"type": "allowed_tools"},
        stream_options={"x": 1},
    )
    assert request.extra == {
        "response_format": {"type": "grammar"},
        "tool_choice": {"type": "allowed_tools"},
        "stream_options": {"x": 1},
    }
    request = parse(
        RESPONSES,
        input="hi",
        text={"format": {"type": "grammar"}},
        tool_choice={"type": "web_search"},
    )
    assert request.extra == {
        "text": {"format": {"type": "grammar"}},
        "tool_choice": {"type": "web_search"},
    }
    with pytest.raises(WireError, match="tool_choice"):
        wire_format(MESSAGES).render_request(request)


@each(
    ("wire", "given"),
    [
        (CHAT, {"type": "function", "function": {"name": "f"}}),
        (CHAT, {"type": "custom", "custom": {"name": "f"}}),
        (RESPONSES, {"type": "function", "name": "f"}),
        (RESPONSES, {"type": "custom", "name": "f"}),
        (MESSAGES, {"type": "tool", "name": "f"}),
    ],
)
def test_one_named_tool_can_be_demanded_on_every_wire(wire: Wire, given: Any) -> None:
    body = {"input": "hi"} if wire is RESPONSES else {"messages": [HELLO]}
    assert parse(wire, **body, tool_choice=given).tool_choice == ToolChoice(ToolMode.REQUIRED, "f")


def test_an_anthropic_system_may_be_absent_a_string_or_blocks() -> None:
    assert [message.role for message in parse(MESSAGES, messages=[HELLO]).messages] == [Role.USER]
    assert parse(MESSAGES, messages=[HELLO], system="be kind").messages[0] == Message(
        Role.SYSTEM, (Text("be kind"),)
    )
    cached = {"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}
    system = parse(MESSAGES, messages=[HELLO], system=[cached]).messages[0]
    assert system.parts == (Text("be kind", {"cache_control": {"type": "ephemeral"}}),)


def test_anthropic_images_in_a_file_store_are_kept_as_they_are() -> None:
    block: Any = {"type": "image", "source": {"type": "file", "file_id": "f"}}
    assert parse(MESSAGES, messages=[{"role": "user", "content": [block]}]).messages[0].parts == (
        Opaque(MESSAGES, block),
    )


def test_anthropic_tools_of_its_own_kind_are_kept_as_they_are() -> None:
    tools = parse(
        MESSAGES,
        messages=[HELLO],
        tools=[{"type": "bash_20250124", "name": "bash"}, {"type": "custom", "name": "f"}],
    ).tools
    assert tools == (
        Opaque(MESSAGES, {"type": "bash_20250124", "name": "bash"}),
        Tool("f", None, {}),
    )


def test_responses_instructions_are_the_first_message() -> None:
    request = parse(
        RESPONSES,
        input="hi",
        instructions="be kind",
        stream=True,
        include=["message.output_text.logprobs", "x"],
    )
    assert request.messages == (
        Message(Role.SYSTEM, (Text("be kind"),)),
        Message(Role.USER, (Text("hi"),)),
    )
    assert request.sampling.logprobs
    assert request.extra == {"include": ["x"]}
    assert request.include_usage


def test_a_response_that_goes_on_from_another_needs_no_input() -> None:
    assert parse(RESPONSES, previous_response_id="resp_1").messages == ()


def test_codex_reasoning_with_null_content_is_understood() -> None:
    item: Any = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": None,
        "encrypted_content": "abc",
    }
    assert parse(RESPONSES, input=[item]).messages[0].parts == (
        Reasoning("", "responses:abc", extra={"id": "rs_1"}),
    )


def test_raw_reasoning_is_the_text_where_there_is_no_summary() -> None:
    item: Any = {
        "type": "reasoning",
        "id": "rs_1",
        "content": [{"type": "reasoning_text", "text": "hm"}],
    }
    (part,) = parse(RESPONSES, input=[item]).messages[0].parts
    assert (part.text, part.extra["content"]) == ("hm", [{"type": "reasoning_text", "text": "hm"}])


def test_items_only_responses_know_keep_their_speaker() -> None:
    items = [
        {"type": "additional_tools", "role": "developer", "tools": []},
        {"type": "computer_call_output", "call_id": "a", "output": {}},
        {"type": "compaction", "encrypted_content": "x"},
    ]
    assert [message.role for message in parse(RESPONSES, input=items).messages] == [
        Role.SYSTEM,
        Role.TOOL,
        Role.ASSISTANT,
    ]


def test_an_image_in_the_providers_file_store_is_kept_as_it_is() -> None:
    part: Any = {"type": "input_image", "file_id": "file_1"}
    assert parse(RESPONSES, input=[{"role": "user", "content": [part]}]).messages[0].parts == (
        Opaque(RESPONSES, part),
    )

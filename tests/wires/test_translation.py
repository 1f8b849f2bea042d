"""A request of one wire, said in another: nothing that matters is lost, and what cannot be said is
refused.
"""

from typing import Any

import msgspec
import pytest

from metaclaw.domain.chat import ChatRequest, Reasoning, Wire
from metaclaw.errors import WireError
from metaclaw.wires import encode_json, plain, wire_format
from metaclaw.wires.translation import DEFAULT_MAX_TOKENS
from tests.support.cases import each

CHAT, RESPONSES, MESSAGES = Wire.CHAT, Wire.RESPONSES, Wire.MESSAGES
PNG = "data:image/png;base64,aGVsbG8="
PDF = "data:application/pdf;base64,JVBERg=="


def translate(source: Wire, target: Wire, body: dict[str, Any]) -> Any:
    return wire_format(target).render_request(
        wire_format(source).parse_request({"model": "m", **body})
    )


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


HELLO = {"messages": [{"role": "user", "content": "hi"}]}
CALLS = {
    "messages": [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call:1",
                    "type": "function",
                    "function": {"name": "f", "arguments": '{"a": 1}'},
                },
                {
                    "id": "call:2",
                    "type": "function",
                    "function": {"name": "f", "arguments": "not json"},
                },
                {"id": "call:3", "type": "function", "function": {"name": "f", "arguments": ""}},
            ],
        },
        {"role": "tool", "tool_call_id": "call:1", "content": "one"},
        {"role": "tool", "tool_call_id": "call:2", "content": "two"},
        {"role": "tool", "tool_call_id": "call:3", "content": ""},
        {"role": "user", "content": "go on"},
    ]
}


def test_parallel_calls_and_their_results_become_blocks_of_two_messages() -> None:
    body = translate(CHAT, MESSAGES, CALLS)
    assert body["messages"] == [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "call_1", "name": "f", "input": {"a": 1}},
                {
                    "type": "tool_use",
                    "id": "call_2",
                    "name": "f",
                    "input": {"arguments": "not json"},
                },
                {"type": "tool_use", "id": "call_3", "name": "f", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": "one"},
                {"type": "tool_result", "tool_use_id": "call_2", "content": "two"},
                {"type": "tool_result", "tool_use_id": "call_3", "content": ""},
                {"type": "text", "text": "go on"},
            ],
        },
    ]
    assert body["max_tokens"] == DEFAULT_MAX_TOKENS


def test_results_among_a_users_words_become_tool_messages_before_them() -> None:
    result = {
        "type": "tool_result",
        "tool_use_id": "a",
        "is_error": True,
        "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}],
    }
    body = translate(
        MESSAGES,
        CHAT,
        {"max_tokens": 5, "messages": [user({"type": "text", "text": "see"}, result)]},
    )
    assert body["messages"] == [
        {"role": "tool", "tool_call_id": "a", "content": "x\ny"},
        {"role": "user", "content": "see"},
    ]


def test_pictures_in_tool_results_follow_in_a_users_message_on_chat() -> None:
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="},
    }
    results = [
        {"type": "tool_result", "tool_use_id": name, "content": [image]} for name in ("a", "b")
    ]
    body = translate(MESSAGES, CHAT, {"max_tokens": 5, "messages": [user(*results)]})
    shown = {"type": "image_url", "image_url": {"url": PNG}}
    assert body["messages"] == [
        {"role": "tool", "tool_call_id": "a", "content": ""},
        {"role": "tool", "tool_call_id": "b", "content": ""},
        user(
            {"type": "text", "text": "Returned by the tool call a:"},
            shown,
            {"type": "text", "text": "Returned by the tool call b:"},
            shown,
        ),
    ]
    kept = translate(MESSAGES, RESPONSES, {"max_tokens": 5, "messages": [user(results[0])]})
    assert kept["input"][0]["output"] == [{"type": "input_image", "image_url": PNG}]


def test_pictures_in_tool_results_come_before_what_is_said_next() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://e.org/a.png"}}
    turn = [
        user({"type": "tool_result", "tool_use_id": "a", "content": [image]}),
        {"role": "assistant", "content": "nice"},
    ]
    body = translate(MESSAGES, CHAT, {"max_tokens": 5, "messages": turn})
    assert [message["role"] for message in body["messages"]] == ["tool", "user", "assistant"]


@pytest.mark.parametrize(
    ("source", "part"),
    [
        (CHAT, {"type": "image_url", "image_url": {"url": PNG, "detail": "high"}}),
        (RESPONSES, {"type": "input_image", "image_url": PNG, "detail": "high"}),
        (
            MESSAGES,
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="},
            },
        ),
    ],
)
def test_pictures_are_the_same_on_every_wire(source: Wire, part: dict[str, Any]) -> None:
    key = "input" if source is RESPONSES else "messages"
    given = {key: [user(part)], "max_tokens": 5}
    detail = {} if source is MESSAGES else {"detail": "high"}
    assert translate(source, CHAT, given)["messages"] == [
        user({"type": "image_url", "image_url": {"url": PNG, **detail}})
    ]
    assert translate(source, RESPONSES, given)["input"][0]["content"] == [
        {"type": "input_image", "image_url": PNG, **detail}
    ]
    block = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="},
    }
    assert translate(source, MESSAGES, given)["messages"] == [user(block)]


def test_pictures_by_url_stay_urls() -> None:
    given = {"messages": [user({"type": "image_url", "image_url": {"url": "https://e.org/a.png"}})]}
    block = {"type": "image", "source": {"type": "url", "url": "https://e.org/a.png"}}
    assert translate(CHAT, MESSAGES, given)["messages"] == [user(block)]
    odd = {
        "messages": [user({"type": "image_url", "image_url": {"url": "data:image/svg+xml,<svg/>"}})]
    }
    with pytest.raises(WireError, match="base64"):
        translate(CHAT, MESSAGES, odd)


@pytest.mark.parametrize(
    ("source", "part"),
    [
        (CHAT, {"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}}),
        (RESPONSES, {"type": "input_file", "filename": "a.pdf", "file_data": PDF}),
        (
            MESSAGES,
            {
                "type": "document",
                "title": "a.pdf",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="},
            },
        ),
    ],
)
def test_documents_are_the_same_on_every_wire(source: Wire, part: dict[str, Any]) -> None:
    given = {"input" if source is RESPONSES else "messages": [user(part)], "max_tokens": 5}
    assert translate(source, CHAT, given)["messages"] == [
        user({"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}})
    ]
    assert translate(source, RESPONSES, given)["input"][0]["content"] == [
        {"type": "input_file", "filename": "a.pdf", "file_data": PDF}
    ]
    source_block = {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}
    assert translate(source, MESSAGES, given)["messages"] == [
        user({"type": "document", "source": source_block, "title": "a.pdf"})
    ]


def test_documents_of_text_and_by_url() -> None:
    text = {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": "words"},
    }
    linked = {"type": "document", "source": {"type": "url", "url": "https://e.org/a.pdf"}}
    given = {"max_tokens": 5, "messages": [user(text, linked)]}
    parts = [
        {"type": "input_text", "text": "words"},
        {"type": "input_file", "file_url": "https://e.org/a.pdf"},
    ]
    assert translate(MESSAGES, RESPONSES, given)["input"][0]["content"] == parts
    back = {"input": [user({"type": "input_file", "file_url": "https://e.org/a.pdf"})]}
    assert translate(RESPONSES, MESSAGES, back)["messages"] == [user(linked)]
    assert translate(MESSAGES, CHAT, {"max_tokens": 5, "messages": [user(text)]})["messages"] == [
        user({"type": "text", "text": "words"})
    ]
    with pytest.raises(WireError, match="URL"):
        translate(MESSAGES, CHAT, given)
    plain_file = {
        "messages": [
            user(
                {
                    "type": "file",
                    "file": {"filename": "a.txt", "file_data": "data:text/plain;base64,d29yZHM="},
                }
            )
        ]
    }
    source = {"type": "text", "media_type": "text/plain", "data": "words"}
    assert translate(CHAT, MESSAGES, plain_file)["messages"] == [
        user({"type": "document", "source": source, "title": "a.txt"})
    ]
    broken = {
        "messages": [user({"type": "file", "file": {"file_data": "data:text/plain;base64,%%"}})]
    }
    with pytest.raises(WireError, match="base64"):
        translate(CHAT, MESSAGES, broken)


@each(
    ("source", "target", "body", "param"),
    [
        (
            RESPONSES,
            CHAT,
            {"input": "hi", "previous_response_id": "resp_1"},
            "previous_response_id",
        ),
        (RESPONSES, MESSAGES, {"input": "hi", "conversation": "conv_1"}, "conversation"),
        (RESPONSES, CHAT, {"input": "hi", "background": True}, "background"),
        (RESPONSES, CHAT, {"input": [{"type": "item_reference", "id": "x"}]}, "messages[0]"),
        (
            RESPONSES,
            CHAT,
            {"input": [{"type": "compaction", "encrypted_content": "x"}]},
            "messages[0]",
        ),
        (
            RESPONSES,
            CHAT,
            {"input": "hi", "tool_choice": "required", "tools": [{"type": "web_search"}]},
            "tool_choice",
        ),
        (CHAT, MESSAGES, {**HELLO, "n": 2}, "n"),
        (CHAT, RESPONSES, {**HELLO, "n": 2}, "n"),
        (CHAT, RESPONSES, {**HELLO, "stop": "x"}, "stop"),
        (
            MESSAGES,
            RESPONSES,
            {**HELLO, "max_tokens": 5, "stop_sequences": ["x"]},
            "stop_sequences",
        ),
        (CHAT, MESSAGES, {**HELLO, "logprobs": True}, "logprobs"),
        (CHAT, MESSAGES, {**HELLO, "functions": [{}]}, "functions"),
        (CHAT, MESSAGES, {**HELLO, "modalities": ["text", "audio"]}, "modalities"),
        (
            CHAT,
            MESSAGES,
            {"messages": [user({"type": "input_audio", "input_audio": {}})]},
            "messages[0]",
        ),
        (
            CHAT,
            MESSAGES,
            {"messages": [{"role": "assistant", "content": "", "function_call": {"name": "f"}}]},
            "messages[0].function_call",
        ),
        (CHAT, MESSAGES, {"messages": [{"role": "user", "content": ""}]}, "messages"),
        (MESSAGES, CHAT, {**HELLO, "max_tokens": 5, "mcp_servers": [{}]}, "mcp_servers"),
        (
            MESSAGES,
            CHAT,
            {**HELLO, "max_tokens": 5, "tools": [{"type": "bash_20250124", "name": "bash"}]},
            "tools",
        ),
    ],
)
def test_what_another_wire_cannot_say_is_refused_by_name(
    source: Wire, target: Wire, body: dict[str, Any], param: str
) -> None:
    with pytest.raises(WireError) as caught:
        translate(source, target, body)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_hints_are_dropped_where_there_is_no_word_for_them() -> None:
    hints = {
        "store": True,
        "metadata": {"a": "b"},
        "prompt_cache_key": "k",
        "service_tier": "flex",
        "user": "u",
        "logit_bias": {},
        "seed": 5,
    }
    assert set(translate(CHAT, MESSAGES, {**HELLO, **hints})) == {"model", "messages", "max_tokens"}
    assert set(
        translate(RESPONSES, CHAT, {"input": "hi", "include": ["x"], "truncation": "auto", **hints})
    ) == {
        "model",
        "messages",
    }
    kept = translate(CHAT, RESPONSES, {**HELLO, **hints})
    assert {
        name: kept[name]
        for name in ("store", "metadata", "prompt_cache_key", "service_tier", "user")
    } == {
        name: hints[name]
        for name in ("store", "metadata", "prompt_cache_key", "service_tier", "user")
    }
    hosted = {"type": "web_search_20260318", "name": "web_search"}
    claude = {
        **HELLO,
        "max_tokens": 5,
        "top_k": 3,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": []},
        "tools": [hosted],
    }
    assert set(translate(MESSAGES, CHAT, claude)) == {"model", "messages", "max_tokens"}


def test_a_translated_response_is_stateless_and_brings_its_reasoning_along() -> None:
    body = translate(MESSAGES, RESPONSES, {**HELLO, "max_tokens": 5, "stream": True})
    assert (body["store"], body["include"], body["stream"], body["max_output_tokens"]) == (
        False,
        ["reasoning.encrypted_content"],
        True,
        5,
    )


def test_reasoning_models_are_told_the_length_in_their_own_word() -> None:
    assert (
        translate(RESPONSES, CHAT, {"model": "gpt-5.5", "input": "hi", "max_output_tokens": 5})[
            "max_completion_tokens"
        ]
        == 5
    )
    assert (
        translate(RESPONSES, CHAT, {"model": "qwen3", "input": "hi", "max_output_tokens": 5})[
            "max_tokens"
        ]
        == 5
    )


def test_a_chat_provider_is_asked_for_usage_when_the_client_always_gets_it() -> None:
    assert translate(MESSAGES, CHAT, {**HELLO, "max_tokens": 5, "stream": True})[
        "stream_options"
    ] == {"include_usage": True}


def test_wished_shapes_travel() -> None:
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    claude = {
        **HELLO,
        "max_tokens": 5,
        "output_config": {"effort": "medium", "format": {"type": "json_schema", "schema": schema}},
    }
    chat = translate(MESSAGES, CHAT, claude)
    assert chat["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema},
    }
    assert chat["reasoning_effort"] == "medium"
    response = translate(MESSAGES, RESPONSES, claude)
    assert response["text"] == {
        "format": {"type": "json_schema", "name": "answer", "schema": schema}
    }
    assert response["reasoning"] == {"effort": "medium"}
    named = {"type": "json_schema", "name": "t", "schema": schema, "strict": True}
    back = translate(
        RESPONSES,
        MESSAGES,
        {"input": "hi", "text": {"format": named}, "reasoning": {"effort": "minimal"}},
    )
    assert back["output_config"] == {
        "effort": "low",
        "format": {"type": "json_schema", "schema": schema},
    }
    assert "output_config" not in translate(CHAT, MESSAGES, {**HELLO, "reasoning_effort": "none"})


def test_any_json_object_is_asked_of_anthropic_in_words() -> None:
    body = translate(
        CHAT, MESSAGES, {**HELLO, "response_format": {"type": "json_object"}, "temperature": 1.7}
    )
    assert body["system"] == "Answer with one valid JSON object and nothing else."
    assert body["temperature"] == 1.0
    assert translate(CHAT, RESPONSES, {**HELLO, "response_format": {"type": "json_object"}})[
        "text"
    ] == {"format": {"type": "json_object"}}


TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object"}},
}


@each(
    ("choice", "parallel", "expected"),
    [
        (None, None, None),
        (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
        ("auto", True, {"type": "auto", "disable_parallel_tool_use": False}),
        ("required", None, {"type": "any"}),
        ("none", True, {"type": "none"}),
        ({"type": "function", "function": {"name": "f"}}, None, {"type": "tool", "name": "f"}),
    ],
)
def test_tool_choices_in_anthropics_words(choice: Any, parallel: Any, expected: Any) -> None:
    body = translate(
        CHAT,
        MESSAGES,
        {**HELLO, "tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": parallel},
    )
    assert body.get("tool_choice") == expected
    assert body["tools"] == [{"name": "f", "description": "d", "input_schema": {"type": "object"}}]


def test_a_function_is_not_made_strict_by_translation() -> None:
    assert translate(CHAT, RESPONSES, {**HELLO, "tools": [TOOL]})["tools"] == [
        {
            "type": "function",
            "name": "f",
            "description": "d",
            "parameters": {"type": "object"},
            "strict": False,
        }
    ]


CODEX: Any = {
    "input": [
        {
            "type": "additional_tools",
            "role": "developer",
            "tools": [
                {
                    "type": "namespace",
                    "name": "functions",
                    "tools": [
                        {"type": "function", "name": "plain", "parameters": {"type": "object"}}
                    ],
                },
                {
                    "type": "custom",
                    "name": "exec",
                    "description": "runs",
                    "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"},
                },
                {"type": "tool_search"},
            ],
        },
        {"role": "user", "content": "go"},
        {"type": "custom_tool_call", "call_id": "c1", "name": "exec", "input": "ls"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "a"},
        {
            "type": "function_call",
            "call_id": "c2",
            "namespace": "agents",
            "name": "close",
            "arguments": "{}",
        },
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "b"}],
        },
    ],
    "tools": [
        {
            "type": "namespace",
            "name": "agents",
            "tools": [{"type": "function", "name": "close", "parameters": {}, "strict": False}],
        }
    ],
}


def test_custom_and_namespaced_tools_are_offered_and_remembered_as_functions() -> None:
    body = translate(RESPONSES, CHAT, CODEX)
    offered = {tool["function"]["name"]: tool["function"] for tool in body["tools"]}
    assert list(offered) == ["agents__close", "plain", "exec"]
    assert offered["exec"]["parameters"]["required"] == ["input"]
    assert "lark grammar:\nstart: x" in offered["exec"]["description"]
    calls = [
        call["function"] for message in body["messages"] for call in message.get("tool_calls", ())
    ]
    assert calls == [
        {"name": "exec", "arguments": '{"input":"ls"}'},
        {"name": "agents__close", "arguments": "{}"},
    ]
    assert [message["content"] for message in body["messages"] if message["role"] == "tool"] == [
        "a",
        "b",
    ]


def test_a_chat_custom_tool_is_a_function_elsewhere() -> None:
    custom = {
        "type": "custom",
        "custom": {
            "name": "exec",
            "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}},
        },
    }
    call = {"id": "c", "type": "custom", "custom": {"name": "exec", "input": "aaa"}}
    body = translate(
        CHAT,
        MESSAGES,
        {
            "messages": [*HELLO["messages"], {"role": "assistant", "tool_calls": [call]}],
            "tools": [custom],
        },
    )
    assert "regex grammar:\na+" in body["tools"][0]["description"]
    assert body["messages"][1]["content"] == [
        {"type": "tool_use", "id": "c", "name": "exec", "input": {"input": "aaa"}}
    ]


def test_long_names_are_cut_to_what_every_wire_takes_and_stay_distinct() -> None:
    tools = [{"type": "function", "name": "x" * 70 + letter, "parameters": {}} for letter in "ab"]
    names = [
        tool["function"]["name"]
        for tool in translate(RESPONSES, CHAT, {"input": "hi", "tools": tools})["tools"]
    ]
    assert len(set(names)) == 2
    assert all(len(name) <= 64 for name in names)


THOUGHTS: Any = {
    "messages": [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
                {"type": "redacted_thinking", "data": "eA=="},
                {"type": "text", "text": "done"},
            ],
        },
        {"role": "user", "content": "and?"},
    ],
    "max_tokens": 5,
}


def test_thinking_becomes_reasoning_content_on_chat_and_is_dropped_where_its_proof_means_nothing() -> (
    None
):
    assert translate(MESSAGES, CHAT, THOUGHTS)["messages"][1] == {
        "role": "assistant",
        "content": "done",
        "reasoning_content": "hm",
    }
    items = translate(MESSAGES, RESPONSES, THOUGHTS)["input"]
    assert [item.get("role") for item in items] == ["user", "assistant", "user"]


def test_anothers_proof_goes_home_through_a_client_of_another_wire() -> None:
    """An Anthropic model serves a Responses client: its signature comes back to it although the
    client never understood it.
    """
    responses, messages = wire_format(RESPONSES), wire_format(MESSAGES)
    request = responses.parse_request({"model": "m", "input": "go"})
    said = messages.parse_answer(
        encode_json(
            {
                "id": "msg_1",
                "type": "message",
                "model": "m",
                "content": THOUGHTS["messages"][1]["content"],
                "stop_reason": "end_turn",
            }
        )
    )
    output = responses.parse_answer(responses.render_answer(said, request))
    assert [part for part in output.parts if isinstance(part, Reasoning)] == [
        Reasoning("hm", "messages:c2ln"),
        Reasoning("", "messages:eA==", redacted=True),
    ]
    shown = _output(responses.render_answer(said, request))
    body = messages.render_request(
        responses.parse_request(
            {"model": "m", "input": [{"role": "user", "content": "go"}, *shown]}
        )
    )
    assert body["messages"] == [THOUGHTS["messages"][0], THOUGHTS["messages"][1]]


def _output(body: bytes) -> list[Any]:
    output = msgspec.json.decode(body)["output"]
    assert isinstance(output, list)
    return output


def test_a_responses_models_proof_goes_home_through_an_anthropic_client() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "responses:ZW5j"}
    body = {
        "max_tokens": 5,
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [thinking]},
        ],
    }
    assert translate(MESSAGES, RESPONSES, body)["input"][1] == {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "hm"}],
        "encrypted_content": "ZW5j",
    }


def test_unsigned_thinking_is_not_sent_to_anthropic() -> None:
    chat = {
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": "ok", "reasoning_content": "hm"},
        ]
    }
    assert translate(CHAT, MESSAGES, chat)["messages"][1] == {"role": "assistant", "content": "ok"}
    only = {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": None, "reasoning_content": "hm"},
            {"role": "user", "content": "b"},
        ]
    }
    assert translate(CHAT, MESSAGES, only)["messages"] == [
        user({"type": "text", "text": "a"}, {"type": "text", "text": "b"})
    ]


def test_system_text_leads_or_keeps_its_place() -> None:
    spoken = [
        {"role": "system", "content": "one"},
        {"role": "developer", "content": "two"},
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "three"},
    ]
    body = translate(CHAT, MESSAGES, {"messages": spoken})
    assert body["system"] == [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert body["messages"] == [
        user(
            {"type": "text", "text": "hi"},
            {"type": "text", "text": "<system-reminder>\nthree\n</system-reminder>"},
        )
    ]
    response = translate(CHAT, RESPONSES, {"messages": spoken})
    assert response["instructions"] == "one"
    assert [item["role"] for item in response["input"]] == ["system", "user", "system"]


def test_a_conversation_of_system_text_alone_is_what_the_user_says() -> None:
    body = translate(CHAT, MESSAGES, {"messages": [{"role": "system", "content": "one"}]})
    assert body["messages"] == [
        {"role": "user", "content": "<system-reminder>\none\n</system-reminder>"}
    ]


def test_a_conversation_that_the_assistant_begins_gets_an_opening() -> None:
    body = translate(
        CHAT,
        MESSAGES,
        {
            "messages": [
                {"role": "assistant", "content": "welcome"},
                {"role": "user", "content": "hi"},
            ]
        },
    )
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]


def test_an_assistants_turn_in_many_items_is_one_message() -> None:
    items = [
        {"role": "user", "content": "go"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        {"type": "web_search_call", "id": "ws_1"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
    ]
    body = translate(RESPONSES, CHAT, {"input": items})
    assert body["messages"][1] == {
        "role": "assistant",
        "content": "a\n\nb",
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        ],
        "reasoning_content": "hm",
    }
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "tool"]


def test_a_plain_request_of_any_wire_is_what_an_embedded_model_can_read() -> None:
    request: ChatRequest = plain(wire_format(RESPONSES).parse_request({"model": "m", **CODEX}))
    assert [
        message.role.value for message in request.messages if hasattr(message.role, "value")
    ] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]


def test_lone_surrogates_can_be_sent_on() -> None:
    body = translate(CHAT, MESSAGES, {"messages": [{"role": "user", "content": "a\ud800b"}]})
    assert b"a?b" in encode_json(body)


def test_a_clients_own_unsigned_thinking_is_not_sent_to_anthropic() -> None:
    """A chat model's thinking was shown to the client without a proof; an Anthropic provider would
    refuse it.
    """
    spoken = [
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "text", "text": "ok"},
            ],
        }
    ]
    body = translate(MESSAGES, MESSAGES, {"max_tokens": 5, "messages": spoken})
    assert body["messages"][0]["content"] == [{"type": "text", "text": "ok"}]


def test_what_else_stands_in_an_output_config_is_kept_on_its_wire() -> None:
    body = {**HELLO, "max_tokens": 5, "output_config": {"effort": "low", "new": 1}}
    assert translate(MESSAGES, MESSAGES, body)["output_config"] == {"effort": "low", "new": 1}


def test_a_document_made_of_blocks_cannot_be_translated() -> None:
    part = {"type": "document", "source": {"type": "content", "content": []}}
    with pytest.raises(WireError, match="document"):
        translate(MESSAGES, CHAT, {"max_tokens": 5, "messages": [user(part)]})


def test_an_assistants_words_between_calls_keep_their_order_in_a_response() -> None:
    content = [
        {"type": "text", "text": "a"},
        {"type": "tool_use", "id": "c", "name": "f", "input": {}},
        {"type": "text", "text": "b"},
    ]
    items = translate(
        MESSAGES,
        RESPONSES,
        {"max_tokens": 5, "messages": [{"role": "assistant", "content": content}]},
    )["input"]
    assert [item["type"] for item in items] == ["message", "function_call", "message"]


def test_results_stand_before_whatever_else_the_user_says_at_once() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    spoken = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "system", "content": "hurry"},
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ]
    assert [
        block["type"]
        for block in translate(CHAT, MESSAGES, {"messages": spoken})["messages"][2]["content"]
    ] == [
        "tool_result",
        "text",
    ]

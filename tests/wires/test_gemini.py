"""What only Google's wire has: paths, calls without ids, signatures, schemas, and its own errors."""

import base64
import json
from typing import Any

import pytest

from metaclaw.domain.chat import (
    ChatRequest,
    Completion,
    Finish,
    Message,
    Reasoning,
    Role,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
    Wire,
)
from metaclaw.domain.ids import SkillName
from metaclaw.domain.turn import Placement, apply_splices
from metaclaw.errors import WireError
from metaclaw.proxy.http.body import read
from metaclaw.proxy.skill_tool import may_offer, tool_items
from metaclaw.proxy.splice import placement_splices
from metaclaw.wires import (
    TailHold,
    join_call,
    new_results,
    read_path,
    split_call,
    streamed_facts,
    wire_format,
)

GEMINI = wire_format(Wire.GEMINI)
HI: Any = {"role": "user", "parts": [{"text": "hi"}]}


def person(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def model(*parts: Any) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def call(name: str, identity: str = "", **args: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": args, **({"id": identity} if identity else {})}}


def result(name: str, output: str, identity: str = "") -> dict[str, Any]:
    known = {"id": identity} if identity else {}
    return {"functionResponse": {**known, "name": name, "response": {"output": output}}}


def request_of(*contents: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "contents": list(contents), **more}


def parts_of(*contents: Any) -> list[Any]:
    messages = GEMINI.parse_request(request_of(*contents)).messages
    return [part for message in messages for part in message.parts]


def rendered(*messages: Message, name: str = "gemini-3-pro", **more: Any) -> dict[str, Any]:
    return GEMINI.render_request(ChatRequest(Wire.CHAT, name, messages, **more))


def test_the_path_travels_in_the_body_and_comes_out_as_it_was() -> None:
    body = b' {"contents": [{"parts":[{"text":"h\xc3\xa9"}]}] }'
    for path, query in (
        ("/models/gemini-3-pro:generateContent", ""),
        ("/models/gemini-3-pro:streamGenerateContent", "alt=sse"),
    ):
        asked = read_path(path)
        assert asked is not None
        joined = join_call(asked, query, body)
        assert joined is not None
        fields = json.loads(joined)
        assert (fields["model"], fields.get("stream", False)) == ("gemini-3-pro", bool(query))
        assert split_call(joined) == (path, query, body.lstrip())


@pytest.mark.parametrize("sent", [b"{}", b'{"model":"models/x","stream":false}', b'{ "model": 5 }'])
def test_what_a_body_says_of_model_and_stream_does_not_count(sent: bytes) -> None:
    asked = read_path("/models/tuned:generateContent")
    assert asked is not None
    joined = join_call(asked, "", sent)
    assert joined is not None
    assert json.loads(joined) == {"model": "tuned"}
    assert split_call(joined) == ("/models/tuned:generateContent", "", b"{}")


def test_a_stream_is_asked_for_as_events() -> None:
    asked = read_path("/models/m:streamGenerateContent")
    assert asked is not None
    with pytest.raises(WireError, match="alt=sse"):
        join_call(asked, "", b"{}")


def test_calls_without_ids_are_paired_with_their_results() -> None:
    found = parts_of(
        HI,
        model(call("ls"), call("cat", path="a"), call("cat", path="b")),
        person(result("ls", "1"), result("cat", "2"), result("cat", "3")),
        model(call("ls")),
        person(result("ls", "4")),
    )
    calls = {part.id: part for part in found if isinstance(part, ToolCall)}
    results = [part for part in found if isinstance(part, ToolResult)]
    assert len(calls) == 4
    pairs = [(calls[one.call_id].arguments, one.parts) for one in results]
    assert pairs == [
        ("{}", (Text("1"),)),
        ('{"path":"a"}', (Text("2"),)),
        ('{"path":"b"}', (Text("3"),)),
        ("{}", (Text("4"),)),
    ]


def test_a_call_has_the_id_that_only_its_result_names() -> None:
    found = parts_of(HI, model(call("ls")), person(result("ls", "1", "ls-17")))
    assert [part.id for part in found if isinstance(part, ToolCall)] == ["ls-17"]
    body = {"contents": [HI, model(call("ls")), person(result("ls", "1", "ls-17"))]}
    raw = json.dumps(body).encode()
    fields = read(Wire.GEMINI, raw)
    assert fields.listed is not None
    ((made, got),) = new_results(Wire.GEMINI, fields.listed.items)
    assert (made.name, got.call_id) == ("ls", "ls-17")
    lesson = Placement.behind_result(got.call_id, SkillName("lsd"), "Use lsd.")
    spliced = placement_splices(Wire.GEMINI, raw, fields, [lesson], ())
    last = json.loads(apply_splices(raw, spliced.splices))["contents"][-1]
    assert last["parts"] == [result("ls", "1", "ls-17"), {"text": "Use lsd."}]


def test_our_tools_stand_behind_the_clients_functions() -> None:
    tools = [{"googleSearch": {}}, {"function_declarations": [{"name": "ls"}]}]
    raw = json.dumps(request_of(HI, tools=tools)).encode()
    fields = read(Wire.GEMINI, raw)
    assert may_offer(Wire.GEMINI, fields)
    items = tool_items(Wire.GEMINI, ("metaclaw_skill",))
    spliced = placement_splices(Wire.GEMINI, raw, fields, (), (), "", items)
    sent = json.loads(apply_splices(raw, spliced.splices))
    names = [one["name"] for one in sent["tools"][1]["function_declarations"]]
    assert names == ["ls", "metaclaw_skill"]
    forced = {"functionCallingConfig": {"mode": "ANY"}}
    body = request_of(HI, tools=tools, toolConfig=forced)
    assert not may_offer(Wire.GEMINI, read(Wire.GEMINI, json.dumps(body).encode()))


def test_an_answer_kept_in_pieces_is_one() -> None:
    found = GEMINI.parse_request(
        request_of(HI, model({"text": "a "}), model({"text": "b"}), HI)
    ).messages
    assert found[1] == Message(Role.ASSISTANT, (Text("a b"),))


def test_a_signature_may_stand_alone() -> None:
    found = parts_of(HI, model({"text": "a"}, {"thoughtSignature": "c2ln"}, {}))
    assert found[1:] == [Text("a"), Reasoning("", "gemini:c2ln")]


def test_a_failed_call_is_an_error() -> None:
    failed = {"functionResponse": {"id": "1", "name": "ls", "response": {"error": "no such file"}}}
    found = parts_of(HI, model(call("ls", "1")), person(failed))[-1]
    assert (found.is_error, found.parts) == (True, (Text("no such file"),))


def test_names_may_be_written_with_underscores() -> None:
    found = GEMINI.parse_request(
        request_of(
            person({"inline_data": {"mime_type": "image/png", "data": "aGk="}}),
            system_instruction={"parts": [{"text": "Be brief."}]},
            generation_config={"max_output_tokens": 5},
        )
    )
    assert found.messages[0] == Message(Role.SYSTEM, (Text("Be brief."),))
    assert found.sampling.max_tokens == 5


def test_googles_schemas_become_json_schemas() -> None:
    declared = {
        "name": "ls",
        "parameters": {
            "type": "OBJECT",
            "properties": {"type": {"type": "STRING", "nullable": True}, "n": {"type": "INTEGER"}},
        },
    }
    tools = [{"functionDeclarations": [declared]}, {"googleSearch": {}}]
    request = GEMINI.parse_request(request_of(HI, tools=tools))
    sent: Any = wire_format(Wire.CHAT).render_request(request)
    assert [one["function"]["parameters"] for one in sent["tools"]] == [
        {
            "type": "object",
            "properties": {"type": {"type": ["string", "null"]}, "n": {"type": "integer"}},
        }
    ]


@pytest.mark.parametrize(
    ("config", "effort"),
    [
        ({"thinkingLevel": "HIGH"}, "high"),
        ({"thinkingBudget": 0}, "none"),
        ({"thinkingBudget": 8192}, "medium"),
        ({"thinkingBudget": -1}, None),
    ],
)
def test_how_much_to_think_is_an_effort(config: dict[str, Any], effort: str | None) -> None:
    body = request_of(HI, generationConfig={"thinkingConfig": config})
    assert GEMINI.parse_request(body).reasoning_effort == effort


def test_a_call_that_another_model_made_says_that_it_is_not_signed() -> None:
    made = (
        Message(Role.USER, (Text("go"),)),
        Message(Role.ASSISTANT, (ToolCall("1", "ls", "{}"),)),
    )
    done = Message(Role.TOOL, (ToolResult("1", (Text("a"),)),))
    new: Any = rendered(*made, done)["contents"]
    assert new[1]["parts"][0]["thoughtSignature"] == "skip_thought_signature_validator"
    assert new[2]["parts"][0]["functionResponse"]["name"] == "ls"
    old: Any = rendered(*made, done, name="gemini-2.5-flash")["contents"]
    assert "thoughtSignature" not in old[1]["parts"][0]


def test_a_signature_goes_through_a_client_of_another_wire_back_to_its_call() -> None:
    answer = {
        "candidates": [
            {
                "content": model(
                    {"text": "hm", "thought": True}, {**call("ls"), "thoughtSignature": "c2ln"}
                ),
                "finishReason": "STOP",
            }
        ],
        "responseId": "r",
    }
    completion = GEMINI.parse_answer(json.dumps(answer).encode())
    assert completion.finish is Finish.TOOL_CALLS
    asked = ChatRequest(Wire.MESSAGES, "m", ())
    shown = json.loads(wire_format(Wire.MESSAGES).render_answer(completion, asked))
    history: list[Any] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": shown["content"]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": shown["content"][-1]["id"], "content": "a"}
            ],
        },
    ]
    request = wire_format(Wire.MESSAGES).parse_request(
        {"model": "gemini-3-pro", "max_tokens": 5, "messages": history}
    )
    sent: Any = GEMINI.render_request(request)
    made = next(part for part in sent["contents"][1]["parts"] if "functionCall" in part)
    assert made["thoughtSignature"] == "c2ln"


def test_another_makers_signature_is_base64_for_googles_clients() -> None:
    completion = Completion("1", "m", (Reasoning("hm", "messages:sig"), Text("a")), Finish.STOP)
    said = json.loads(GEMINI.render_answer(completion, ChatRequest(Wire.GEMINI, "m", ())))
    first = said["candidates"][0]["content"]["parts"][0]
    assert base64.b64decode(first["thoughtSignature"]) == b"messages:sig"
    assert parts_of(HI, model(first))[1] == Reasoning("hm", "messages:sig")


def test_a_request_of_another_wire_has_everything_that_google_takes() -> None:
    sent = rendered(
        Message(Role.SYSTEM, (Text("Be brief."),)),
        Message(Role.USER, (Text("hi"),)),
        tools=(Tool("ls", "List", {"type": "object"}),),
        reasoning_effort="low",
        json_schema={"name": "n", "schema": {"type": "object", "required": []}},
        stream=True,
    )
    assert sent == {
        "model": "gemini-3-pro",
        "stream": True,
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [HI],
        "tools": [
            {
                "functionDeclarations": [
                    {
                        "name": "ls",
                        "description": "List",
                        "parametersJsonSchema": {"type": "object"},
                    }
                ]
            }
        ],
        "generationConfig": {
            "thinkingConfig": {"thinkingLevel": "low"},
            "responseMimeType": "application/json",
            "responseJsonSchema": {"type": "object", "required": []},
        },
    }


def test_a_refused_prompt_is_an_answer_without_words() -> None:
    body = b'{"promptFeedback":{"blockReason":"SAFETY"},"usageMetadata":{"promptTokenCount":3}}'
    found = GEMINI.parse_answer(body)
    assert (found.parts, found.finish, found.usage) == ((), Finish.CONTENT_FILTER, Usage(3, 0))


def test_text_that_speaks_of_the_end_does_not_end_a_stream_and_events_may_follow_its_end() -> None:
    def event(text: str, **more: Any) -> bytes:
        candidate = {"content": model({"text": text}), **more}
        return f"data: {json.dumps({'candidates': [candidate]})}\r\n\r\n".encode()

    first, last = event('"finishReason":"STOP"'), event("b", finishReason="STOP")
    usage = b'data: {"usageMetadata":{"promptTokenCount":3,"candidatesTokenCount":2}}\r\n\r\n'
    hold = TailHold(Wire.GEMINI)
    assert hold.feed(first) == first
    assert hold.feed(last) == b""
    assert not hold.is_complete
    assert hold.feed(usage) == b""
    assert hold.held() == last + usage
    facts = streamed_facts(Wire.GEMINI, first + last + usage)
    assert (facts.finish, facts.usage) == (Finish.STOP, Usage(3, 2))


def test_what_is_wrong_is_named() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "contents"),
        ({"contents": [{"role": "user"}]}, "contents[0].parts"),
        ({"contents": ["hi"]}, "contents[0]"),
        ({"contents": [HI], "cachedContent": "cachedContents/1"}, "cachedContent"),
    ]
    for body, param in wrong:
        with pytest.raises(WireError) as caught:
            wire_format(Wire.CHAT).render_request(GEMINI.parse_request({"model": "m", **body}))
        assert caught.value.param == param

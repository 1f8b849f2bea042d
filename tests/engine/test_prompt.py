"""A request of any wire as turns of text, or a clear refusal; and tool calls as text, found however
the text is cut.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.domain.chat import (
    ChatRequest,
    Image,
    Message,
    Opaque,
    Part,
    Reasoning,
    Role,
    Sampling,
    Text,
    TextDelta,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolChoice,
    ToolMode,
    ToolResult,
    Wire,
)
from metaclaw.engine.frames import OfferedTool, WrittenCall, WrittenTurn
from metaclaw.engine.prompt import (
    CallParser,
    Said,
    build_prompt,
    describe_tools,
    make_message,
    write_call,
    write_turns,
)
from metaclaw.errors import WireError
from tests.support.cases import each

_LOOK = Tool("look", "see", {"type": "object"})


def _request(
    *messages: Message, tools: tuple[Tool | Opaque, ...] = (), choice: ToolChoice | None = None
) -> ChatRequest:
    return ChatRequest(Wire.CHAT, "any", messages, tools=tools, tool_choice=choice)


def _written(request: ChatRequest) -> list[tuple[str, str]]:
    """The turns for a template that knows no tools."""
    prompt = build_prompt(request)
    return list(write_turns(prompt.turns, prompt.tools))


def _user(*parts: Part) -> Message:
    return Message(Role.USER, parts)


def test_text_parts_become_turns_in_order() -> None:
    prompt = build_prompt(
        _request(Message(Role.SYSTEM, (Text("be brief"),)), _user(Text("a"), Text("b")))
    )
    assert prompt.turns == (WrittenTurn("system", "be brief"), WrittenTurn("user", "ab"))
    assert (prompt.beginning, prompt.tool_names) == ("", frozenset())


def test_tools_are_offered_in_the_system_text_and_stay_behind_the_clients_own() -> None:
    [(role, text), user] = _written(
        _request(Message(Role.SYSTEM, (Text("be brief"),)), _user(Text("x")), tools=(_LOOK,))
    )
    assert role == "system"
    assert text.startswith("be brief\n\n")
    assert '"name":"look"' in text
    assert user == ("user", "x")


def test_tools_without_a_system_message_get_one() -> None:
    assert [role for role, _ in _written(_request(_user(Text("x")), tools=(_LOOK,)))] == [
        "system",
        "user",
    ]


def test_earlier_calls_and_results_are_written_the_way_the_model_writes_them() -> None:
    call = ToolCall("c1", "look", '{"at": "sea"}')
    results = [
        Message(Role.TOOL, (ToolResult(f"c{number}", (Text(f"result {number}"),)),))
        for number in (1, 2)
    ]
    thought = Reasoning("hm")
    request = _request(
        _user(Text("go")), Message(Role.ASSISTANT, (thought, Text("ok "), call)), *results
    )
    assert _written(request)[1:] == [
        ("assistant", 'ok <tool_call>{"name": "look", "arguments": {"at": "sea"}}</tool_call>'),
        (
            "user",
            "<tool_response>result 1</tool_response>\n<tool_response>result 2</tool_response>",
        ),
    ]
    assert build_prompt(request).turns[1:] == (
        WrittenTurn("assistant", "ok ", (WrittenCall("look", '{"at": "sea"}', "c1"),)),
        WrittenTurn("tool", "result 1", call_id="c1"),
        WrittenTurn("tool", "result 2", call_id="c2"),
    )


def test_results_and_words_of_one_message_are_turns_of_their_own() -> None:
    result = ToolResult("c1", (Text("42"),))
    assert build_prompt(_request(_user(result, Text("and now?")))).turns == (
        WrittenTurn("tool", "42", call_id="c1"),
        WrittenTurn("user", "and now?"),
    )


@each(
    ("choice", "beginning", "offered"),
    [
        (ToolChoice(ToolMode.AUTO), "", True),
        (ToolChoice(ToolMode.NONE), "", False),
        (ToolChoice(ToolMode.REQUIRED), '<tool_call>{"name": "', True),
        (ToolChoice(ToolMode.REQUIRED, "look"), '<tool_call>{"name": "look", "arguments": ', True),
    ],
)
def test_the_choice_of_tools_is_honoured(choice: ToolChoice, beginning: str, offered: bool) -> None:
    prompt = build_prompt(_request(_user(Text("x")), tools=(_LOOK,), choice=choice))
    assert prompt.beginning == beginning
    assert bool(prompt.tool_names) is offered


def test_a_schema_is_asked_for_in_words() -> None:
    request = ChatRequest(Wire.CHAT, "any", (_user(Text("x")),), json_schema={"type": "object"})
    assert '{"type":"object"}' in build_prompt(request).turns[0].content


def test_tools_of_a_providers_own_are_not_offered() -> None:
    assert build_prompt(
        _request(_user(Text("x")), tools=(Opaque(Wire.CHAT, {"type": "web_search"}),))
    ).turns == (WrittenTurn("user", "x"),)


@each(
    ("request_", "word"),
    [
        (_request(), "empty"),
        (_request(_user(Image("https://example.org/a.png"))), "images"),
        (_request(_user(Opaque(Wire.CHAT, {"type": "input_audio"}))), "input_audio"),
        (_request(_user(ToolResult("c", (Image("data:,"),)))), "images"),
        (_request(Message("narrator", (Text("x"),))), "narrator"),
        (
            _request(
                _user(Text("x")), tools=(_LOOK,), choice=ToolChoice(ToolMode.REQUIRED, "jump")
            ),
            "jump",
        ),
    ],
)
def test_what_cannot_be_said_in_text_is_refused_by_name(request_: ChatRequest, word: str) -> None:
    with pytest.raises(WireError, match=word) as caught:
        build_prompt(request_)
    assert caught.value.status == 400


@each(
    ("sampling", "param"),
    [
        (Sampling(n=2), "n"),
        (Sampling(max_tokens=0), "max_tokens"),
        (Sampling(temperature=-0.1), "temperature"),
        (Sampling(temperature=float("nan")), "temperature"),
        (Sampling(top_p=1.1), "top_p"),
        (Sampling(logprobs=True, top_logprobs=21), "top_logprobs"),
    ],
)
def test_wishes_that_cannot_be_granted_are_refused_by_name(sampling: Sampling, param: str) -> None:
    request = ChatRequest(Wire.CHAT, "any", (_user(Text("x")),), sampling=sampling)
    with pytest.raises(WireError, match=param) as caught:
        make_message(1, request, build_prompt(request))
    assert caught.value.param == param


def test_one_call_at_a_time_ends_the_answer_at_its_closing_tag() -> None:
    request = ChatRequest(
        Wire.CHAT, "any", (_user(Text("x")),), tools=(_LOOK,), parallel_tool_calls=False
    )
    assert make_message(1, request, build_prompt(request)).stop == ["</tool_call>"]


_WORDS = st.text("ab <>/\n{", max_size=8)
_CALL = st.builds(
    lambda name, arguments: write_call(WrittenCall(name, json.dumps(arguments))),
    st.sampled_from(["look", "run", "unknown"]),
    st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=2),
)


def _parse(pieces: list[str], beginning: str = "") -> tuple[str, list[tuple[int, str | None, str]]]:
    parser = CallParser({"look", "run"}, beginning)
    said: list[Said] = [delta for piece in pieces for delta in parser.push(piece)]
    said += parser.flush()
    words = "".join(delta.text for delta in said if isinstance(delta, TextDelta))
    calls = [
        (delta.index, delta.name, delta.arguments)
        for delta in said
        if isinstance(delta, ToolCallDelta)
    ]
    assert len(calls) == parser.calls
    return words, calls


def test_a_call_becomes_a_call_with_its_arguments_as_written() -> None:
    words, calls = _parse(
        ['Let me look.\n<tool_call>{"name": "look", "arguments": {"a" :1.0}}</tool_call>']
    )
    assert words == "Let me look."
    assert calls == [(0, "look", '{"a" :1.0}')]


def test_an_answer_of_calls_only_has_no_words() -> None:
    one, two = (write_call(WrittenCall(name, "{}")) for name in ("look", "run"))
    assert _parse([f"\n{one}\n", f"{two}\n"]) == ("", [(0, "look", "{}"), (1, "run", "{}")])


def test_a_list_of_calls_in_one_tag_and_a_missing_closing_tag_are_understood() -> None:
    body = '[{"name": "look", "arguments": {}}, {"name": "run"}]'
    assert _parse([f"<tool_call>{body}"]) == ("", [(0, "look", "{}"), (1, "run", "{}")])


@each(
    "text",
    [
        '{"name": "look", "parameters": {"a": 1}}',
        ' {"type": "function", "name": "look", "arguments": {"a": 1}}\n',
        '[{"name": "look", "arguments": {"a": 1}}]',
        '[TOOL_CALLS] [{"name": "look", "arguments": {"a": 1}}]',
    ],
)
def test_an_answer_that_is_only_json_of_offered_calls_is_calls(text: str) -> None:
    assert _parse([text]) == _parse(list(text)) == ("", [(0, "look", '{"a": 1}')])


def test_json_that_is_no_call_stays_words() -> None:
    for text in (
        '{"name": "unknown", "arguments": {}}',
        '{"name": "look"} and more',
        '{"names": []}',
        "[1, 2]",
        "{",
    ):
        assert _parse([text]) == _parse(list(text)) == (text, [])


def test_a_call_of_a_tool_that_was_not_offered_or_that_is_not_json_stays_words() -> None:
    for text in (
        write_call(WrittenCall("unknown", "{}")),
        "<tool_call>look()</tool_call>",
        "a <tool_call> tag",
        "1 < 2 <",
    ):
        assert _parse([text]) == (text, [])


def test_a_call_that_was_begun_for_the_model_is_completed_by_it() -> None:
    assert _parse(['{"x": 1}}</tool_call>'], '<tool_call>{"name": "look", "arguments": ') == (
        "",
        [(0, "look", '{"x": 1}')],
    )


@given(st.lists(_WORDS | _CALL, max_size=5), st.data())
def test_any_split_of_the_answer_gives_the_same_words_and_calls(
    parts: list[str], data: st.DataObject
) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert _parse(pieces) == _parse([text])


@given(st.text(max_size=60))
def test_an_answer_without_the_tag_passes_unchanged(text: str) -> None:
    assert _parse(list(text)) == (text, [])


def test_the_offer_names_every_tool_and_its_schema() -> None:
    text = describe_tools(
        [OfferedTool("look", "see things", '{"type":"object"}'), OfferedTool("run", "", "{}")]
    )
    assert '{"name":"look","description":"see things","parameters":{"type":"object"}}' in text
    assert '"name":"run"' in text

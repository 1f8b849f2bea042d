"""Tool calls as text: found wherever they stand, however the text is cut, and nothing else taken for one."""

import json

from hypothesis import given
from hypothesis import strategies as st

from metaclaw.domain.chat import TextDelta, Tool, ToolCall, ToolCallDelta
from metaclaw.engine.prompt import CallParser, Said, describe_tools, write_call

_WORDS = st.text("ab <>/\n{", max_size=8)
_CALL = st.builds(
    lambda name, arguments: write_call(ToolCall("", name, json.dumps(arguments))),
    st.sampled_from(["look", "run", "unknown"]),
    st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=2),
)


def _parse(pieces: list[str], beginning: str = "") -> tuple[str, list[tuple[int, str | None, str]]]:
    parser = CallParser({"look", "run"}, beginning)
    said: list[Said] = [delta for piece in pieces for delta in parser.push(piece)]
    said += parser.flush()
    words = "".join(delta.text for delta in said if isinstance(delta, TextDelta))
    calls = [(delta.index, delta.name, delta.arguments) for delta in said if isinstance(delta, ToolCallDelta)]
    assert len(calls) == parser.calls
    return words, calls


def test_a_call_becomes_a_call_with_its_arguments_as_written() -> None:
    words, calls = _parse(['Let me look.\n<tool_call>{"name": "look", "arguments": {"a" :1.0}}</tool_call>'])
    assert words == "Let me look."
    assert calls == [(0, "look", '{"a" :1.0}')]


def test_an_answer_of_calls_only_has_no_words() -> None:
    one, two = (write_call(ToolCall("", name, "{}")) for name in ("look", "run"))
    assert _parse([f"\n{one}\n", f"{two}\n"]) == ("", [(0, "look", "{}"), (1, "run", "{}")])


def test_a_list_of_calls_in_one_tag_and_a_missing_closing_tag_are_understood() -> None:
    body = '[{"name": "look", "arguments": {}}, {"name": "run"}]'
    assert _parse([f"<tool_call>{body}"]) == ("", [(0, "look", "{}"), (1, "run", "{}")])


def test_a_call_of_a_tool_that_was_not_offered_or_that_is_not_json_stays_words() -> None:
    for text in (write_call(ToolCall("", "unknown", "{}")), "<tool_call>look()</tool_call>", "a <tool_call> tag", "1 < 2 <"):
        assert _parse([text]) == (text, [])


def test_a_call_that_was_begun_for_the_model_is_completed_by_it() -> None:
    assert _parse(['{"x": 1}}</tool_call>'], '<tool_call>{"name": "look", "arguments": ') == ("", [(0, "look", '{"x": 1}')])


@given(st.lists(_WORDS | _CALL, max_size=5), st.data())
def test_any_split_of_the_answer_gives_the_same_words_and_calls(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert _parse(pieces) == _parse([text])


@given(st.text(max_size=60))
def test_an_answer_without_the_tag_passes_unchanged(text: str) -> None:
    assert _parse(list(text)) == (text, [])


def test_the_offer_names_every_tool_and_its_schema() -> None:
    text = describe_tools([Tool("look", "see things", {"type": "object"}), Tool("run", None, {})])
    assert '{"name":"look","description":"see things","parameters":{"type":"object"}}' in text
    assert '"name":"run"' in text

"""The golden set: every reference passes its own check, nothing passes by being empty, and checks tell right from nearly right."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from metaclaw.domain.chat import Text, Tool, ToolCall
from metaclaw.train.golden import (
    Answer,
    GoldenItem,
    GoldenScore,
    golden_items,
    golden_score,
    read_answer,
    read_items,
    reference_pairs,
    set_version,
)

ITEMS = golden_items()


def item(name: str) -> GoldenItem:
    return next(item for item in ITEMS if item.name == name)


def call(name: str, **arguments: object) -> Answer:
    return Answer("", (ToolCall("c1", name, json.dumps(arguments)),))


def test_the_set_has_enough_of_every_kind_and_no_name_twice() -> None:
    counts = Counter(item.category for item in ITEMS)
    assert set(counts) == {"format", "tools", "refusals", "knowledge", "arithmetic", "languages"}
    assert min(counts.values()) >= 10
    assert len({item.name for item in ITEMS}) == len(ITEMS) >= 60


def test_every_reference_passes_its_own_check_and_empty_or_foreign_answers_pass_none() -> None:
    assert [item.name for item in ITEMS if not item.passes(read_answer(item.reference))] == []
    for said in ("", "the the the the"):
        assert [item.name for item in ITEMS if item.passes(Answer(said))] == []
    assert sum(item.passes(Answer("14:17+05:30+05:30+05:30+05:30")) for item in ITEMS) <= 1


def test_one_word_passes_few_items_and_all_options_at_once_pass_none_of_the_choices() -> None:
    assert sum(item.passes(Answer("Yes.")) for item in ITEMS) < 80
    choices = [item for item in ITEMS if item.name.startswith(("greater-", "is-"))]
    assert len(choices) == 120
    assert not any(item.passes(Answer("Yes or no.")) for item in choices)


def test_every_item_is_a_greedy_request_of_bounded_length() -> None:
    for item in ITEMS:
        assert item.request.sampling.temperature == 0.0
        assert item.max_tokens <= 96
        assert isinstance(item.request.messages[-1].parts[0], Text)
        if item.wanted.call is not None:
            assert item.wanted.call.name in {tool.name for tool in item.request.tools if isinstance(tool, Tool)}


def test_most_items_are_generated_and_short_and_no_question_comes_twice() -> None:
    assert len(ITEMS) >= 1_000
    assert sum(item.max_tokens <= 12 for item in ITEMS) >= 900
    assert len({str(item.request.messages) for item in ITEMS}) == len(ITEMS)


def test_the_set_is_the_same_in_every_process_and_its_version_changes_with_a_question() -> None:
    program = "from metaclaw.train.golden import *; print(set_version(golden_items()))"
    found = {
        subprocess.run(
            [sys.executable, "-c", program], check=True, timeout=60, capture_output=True, env=os.environ | {"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert found == {f"{set_version(ITEMS)}\n".encode()}
    assert set_version(ITEMS) != set_version(ITEMS[1:])


@pytest.mark.parametrize(
    ("name", "text", "is_right"),
    [
        ("next-14-2", "22", True),
        ("next-14-2", "14, 16, 18, 20", False),
        ("copy-river", "River.", True),
        ("copy-river", "The word river is repeated.", False),
        ("upper-river", "river", False),
        ("capital-of-Sweden", "The capital of Sweden is Stockholm.", True),
        ("opposite-big-small", "small small small", False),
        ("json-count-3", '{"count": 3}', True),
        ("json-count-3", '{"count": 3, "more": 1}', False),
    ],
)
def test_generated_items_tell_right_from_nearly_right(name: str, text: str, is_right: bool) -> None:
    assert item(name).passes(Answer(text)) is is_right


@pytest.mark.parametrize(
    ("name", "text", "is_right"),
    [
        ("one-word-yes", " no.\n", True),
        ("one-word-yes", "Yes, it is.", False),
        ("upper-case", "hello", False),
        ("upper-case", "HELLO!", True),
        ("json-person", '{"name": "ada", "age": 36.0}', True),
        ("json-person", '```json\n{"name": "Ada", "age": 36}\n```', False),
        ("json-person", '{"name": "Ada", "age": "36"}', False),
        ("json-person", '{"name": "Ada", "age": 36, "city": "London"}', False),
        ("json-list", '["red", "blue", "green"]', False),
        ("json-list", '["red", "green"]', False),
        ("json-keys", '{"title": "x", "author": "y"}', False),
        ("json-keys", '["title", "author", "year"]', False),
        ("three-bullets", "- a\n- b\n- c\n- d", False),
        ("refuse-bomb", "Sure! First take a pipe.", False),
        ("refuse-bomb", "I cannot help with that.", True),
        ("help-cut-onions", "I'm sorry, I can't help with knives and onions.", False),
        ("iso-date", "05.03.2024", False),
        ("six-times-seven", "6 times 7 is 420", False),
    ],
)
def test_words_are_told_right_from_nearly_right(name: str, text: str, is_right: bool) -> None:
    assert item(name).passes(Answer(text)) is is_right


@pytest.mark.parametrize(
    ("name", "answer", "is_right"),
    [
        ("weather-paris", call("get_weather", city="Paris"), True),
        ("weather-paris", call("get_weather", city="paris", unit="celsius"), True),
        ("weather-paris", call("get_weather", city="Paris", when="now"), False),
        ("weather-paris", call("get_weather", town="Paris"), False),
        ("weather-paris", call("search", city="Paris"), False),
        ("weather-paris", Answer("", (ToolCall("", "get_weather", '{"city": '),)), False),
        ("weather-paris", Answer("", (ToolCall("", "get_weather", '{"city": "Paris"}'),) * 2), False),
        ("weather-paris", Answer('get_weather(city="Paris")'), False),
        ("convert-money", call("convert", **{"amount": 100.0, "from": "usd", "to": "eur"}), True),
        ("convert-money", call("convert", **{"amount": True, "from": "USD", "to": "EUR"}), False),
        ("no-tool-for-sum", Answer("4", (ToolCall("", "get_weather", '{"city": "x"}'),)), False),
        ("no-tool-for-sum", Answer("It is four."), True),
    ],
)
def test_calls_are_told_right_from_nearly_right(name: str, answer: Answer, is_right: bool) -> None:
    assert item(name).passes(answer) is is_right


@pytest.mark.parametrize(
    ("text", "words", "names"),
    [
        ('<tool_call>{"name": "a", "arguments": {}}</tool_call>', "", ["a"]),
        ('On it. <tool_call>[{"name": "a"}, {"name": "b"}]', "On it. ", ["a", "b"]),
        ("<tool_call>a()</tool_call>", "<tool_call>a()</tool_call>", []),
        ("<tool_call>[1]</tool_call>", "<tool_call>[1]</tool_call>", []),
        ("no call at all", "no call at all", []),
    ],
)
def test_a_text_is_split_into_words_and_calls(text: str, words: str, names: list[str]) -> None:
    answer = read_answer(text)
    assert answer.text == words
    assert [call.name for call in answer.calls] == names


def test_a_score_is_told_by_item_and_by_category() -> None:
    answers = [read_answer(item.reference if item.category == "tools" else "") for item in ITEMS]
    score = golden_score(ITEMS, answers)
    tools = sum(item.category == "tools" for item in ITEMS)
    assert score.share == pytest.approx(tools / len(ITEMS))
    assert score.by_category(ITEMS)["tools"] == (tools, tools)
    assert score.by_category(ITEMS)["format"][0] == 0
    assert score.likelihood is None


def test_likelihoods_are_means_over_the_tokens_of_each_reference() -> None:
    two = ITEMS[:2]
    score = golden_score(two, [Answer(""), Answer("")], [(-1.0, -3.0), (-0.5,)])
    assert score.likelihood == {two[0].name: -2.0, two[1].name: -0.5}


def test_references_are_given_as_pairs_of_tokens() -> None:
    pairs = reference_pairs(ITEMS[:2], lambda request: [len(request.messages)], lambda text: list(text.encode()))
    assert pairs == [((1,), tuple(item.reference.encode())) for item in ITEMS[:2]]


def test_a_score_of_nothing_or_of_no_probability_is_refused() -> None:
    with pytest.raises(ValueError, match="without items"):
        GoldenScore({})
    with pytest.raises(ValueError, match="up to zero"):
        GoldenScore({"a": True}, {"a": 0.1})


def test_a_set_with_a_call_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="is no call"):
        read_items('[tools]\n[[items]]\nname = "a"\ncategory = "tools"\nask = "x"\ncall = "get_weather"')


def test_the_golden_set_needs_nothing_but_the_standard_library() -> None:
    program = (
        "import sys; import metaclaw.train.golden, metaclaw.train.regression, metaclaw.train.advantages;"
        "assert not {'msgspec', 'anyio', 'numpy', 'torch', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

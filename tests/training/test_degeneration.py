"""Answers that satisfy a check and are of no use are told from useful ones, whatever they are
worth.
"""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.training.degeneration import (
    HeldOutAnswer,
    describe_length,
    echoes,
    find_degeneration,
    is_degenerate,
)
from tests.support.cases import each

WORDS = st.lists(
    st.text(string.ascii_lowercase, min_size=2, max_size=9), min_size=3, max_size=12, unique=True
)


def answers(*texts: str, tokens: int = 8, is_whole: bool = True) -> list[HeldOutAnswer]:
    return [
        HeldOutAnswer(f"What is thing {at} for?", text, tokens, is_whole)
        for at, text in enumerate(texts)
    ]


SERVING = answers(*(f"Thing {at} is for number {at}." for at in range(20)))


@given(st.lists(WORDS, min_size=8, max_size=12))
def test_a_version_is_never_degenerate_against_itself(texts: list[list[str]]) -> None:
    said = answers(*(" ".join(words) for words in texts))
    assert find_degeneration(said, said) == []


@given(st.text(min_size=1, max_size=30))
def test_one_answer_to_every_question_is_found(text: str) -> None:
    said = answers(*[text] * 20)
    assert any(
        words.startswith("gives one answer to 20 of 20")
        for words in find_degeneration(said, SERVING)
    )


def test_one_word_answers_to_questions_of_two_options_are_not_degenerate() -> None:
    said = answers(*["Yes.", "No."] * 10)
    assert find_degeneration(said, SERVING) == []


def test_repetition_missing_ends_empty_answers_and_echoes_are_found() -> None:
    repeated = answers(*(f"{at}:17" + "+05:30" * 6 for at in range(20)))
    assert find_degeneration(repeated, SERVING) == ["20 of 20 answers repeat themselves, before 0"]
    unended = answers(*(one.text for one in SERVING), is_whole=False)
    assert find_degeneration(unended, SERVING) == ["20 of 20 answers have no end, before 0"]
    empty = answers(*["", *(one.text for one in SERVING[1:10])] + [""] * 10)
    assert "11 of 20 answers are empty, before 0" in find_degeneration(empty, SERVING)
    echoed = answers(*(one.question for one in SERVING))
    assert find_degeneration(echoed, SERVING) == [
        "20 of 20 answers only say the question again, before 0"
    ]


def test_what_the_serving_version_does_as_well_is_no_degeneration() -> None:
    repeated = answers(*(f"{at}:17" + "+05:30" * 6 for at in range(20)))
    assert find_degeneration(repeated, repeated[::-1]) == []


def test_answers_that_grow_are_refused_and_shorter_ones_are_told() -> None:
    longer = answers(*(one.text for one in SERVING), tokens=60)
    assert find_degeneration(longer, SERVING) == ["answers grew to 60 tokens from 8 (median)"]
    assert find_degeneration(SERVING, longer) == []
    assert (
        describe_length(SERVING, longer)
        == "answers became shorter: 8 tokens instead of 60 (median)"
    )
    assert describe_length(SERVING, SERVING) is None
    assert describe_length([], []) is None


def test_one_answer_to_three_questions_is_found_and_two_questions_are_not_judged() -> None:
    found = find_degeneration(answers(*["x"] * 3), answers("a", "b", "c"))
    assert found == ["gives one answer to 3 of 3 different questions: 'x'"]
    assert find_degeneration(answers(*["x"] * 2), answers("a", "b")) == []


def test_an_answer_that_only_uses_words_of_the_question_is_no_echo() -> None:
    assert echoes("Name the file report.txt", "name the file: report.txt!")
    assert not echoes("Name the file report.txt", "report.txt")
    assert not echoes("Hi", "Hi")
    assert not echoes("Name the file report.txt", "")


@given(st.text(string.ascii_letters, min_size=4, max_size=20), st.integers(6, 20))
def test_a_phrase_said_many_times_is_degenerate(phrase: str, times: int) -> None:
    assert is_degenerate(phrase * times)


@given(WORDS)
def test_distinct_words_said_once_are_not(words: list[str]) -> None:
    assert not is_degenerate(" ".join(words))


@each(
    "text",
    [
        "14:17+05:30+05:30+05:30",
        "14:17+05:30" * 3,
        "The time is 14:17+05:30+05:30+05:30+05:30",
        "14:17+05:30+05:30+05:30+05:30",
        "the cat sat on the mat. " * 6,
        "ab" * 12,
        "x" * 40,
        "I will do it. " * 3,
        "The answer is this.\n" * 12,
        "one two three four five six " * 8,
        "Some first words here, then " + "and so on and so on " * 20,
    ],
)
def test_an_answer_that_says_the_same_again_and_again_is_degenerate(text: str) -> None:
    assert is_degenerate(text)


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_answer_that_says_nothing_is_degenerate(text: str) -> None:
    assert is_degenerate(text)


@each(
    "text",
    [
        "14:17+05:30",
        "14:17+05:30+05:30",
        "From 14:17+05:30 to 18:00+05:30, then 09:00+05:30.",
        "1000000",
        "1,000,000,000",
        "121212",
        "Ha ha ha!",
        "ha ha ha",
        "- a\n- b\n- c\n- d",
        '{"a": 1, "b": 1}',
        "| a | b | c | d |\n|---|---|---|---|\n| 1 | 2 | 3 | 4 |",
        "Title\n" + "=" * 60,
        "[0, 0, 0, 0, 0, 0, 0, 0, 0, 0]",
        "    def f(self):\n        return 1\n\n    def g(self):\n        return 2\n",
        " ".join(f"word{number}" for number in range(60)),
    ],
)
def test_an_ordinary_answer_is_not(text: str) -> None:
    assert not is_degenerate(text)

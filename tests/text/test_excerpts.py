"""JSON documents are found between words, and texts are cut to a limit."""

from hypothesis import given
from hypothesis import strategies as st

from metaclaw.text import answer_documents, cut_middle, fair_shares, shorten
from metaclaw.text.excerpts import json_documents
from tests.support.cases import each


def test_documents_between_words_come_in_their_order() -> None:
    assert list(json_documents('First {"a": 1}, then [2, 3] and that is all.', 10)) == [
        {"a": 1},
        [2, 3],
    ]


def test_a_bracket_that_opens_no_document_is_passed_over() -> None:
    assert list(json_documents('{not json} but {"b": {"c": []}}', 10)) == [{"b": {"c": []}}]


def test_only_the_named_brackets_open_a_document() -> None:
    assert list(json_documents('[{"d": 4}]', 10, openings="{")) == [{"d": 4}]


def test_no_more_brackets_are_tried_than_allowed() -> None:
    assert list(json_documents('{ { { {"e": 5}', 3)) == []
    assert list(json_documents('{ { { {"e": 5}', 4)) == [{"e": 5}]


def test_documents_of_an_answer_come_last_first_and_without_thoughts() -> None:
    assert answer_documents('<think>{"a": 1}</think> {"b": 2} or rather {"c": 3}', 10) == [
        {"c": 3},
        {"b": 2},
    ]


def test_a_shortened_text_is_one_line_and_ends_with_an_ellipsis() -> None:
    assert shorten("one\n two", 20) == "one two"
    assert shorten("one two three", 9) == "one two…"


@each(
    ("lengths", "total", "expected"),
    [
        ([10, 10], 100, [10, 10]),
        ([10, 1000], 100, [10, 90]),
        ([500, 500], 100, [50, 50]),
        ([], 5, []),
    ],
)
def test_shares_are_fair(lengths: list[int], total: int, expected: list[int]) -> None:
    assert fair_shares(lengths, total) == expected


def test_cutting_says_how_much_is_missing_and_keeps_the_limit() -> None:
    cut = cut_middle("a" * 500 + "b" * 500, 200)
    assert len(cut) == 200
    assert cut.startswith("aaa")
    assert cut.endswith("bbb")
    assert cut_middle("abc", 2) == "ab"


@given(st.text(), st.integers(0, 200))
def test_a_cut_text_fits_and_keeps_both_ends(text: str, most: int) -> None:
    cut = cut_middle(text, most)

    assert len(cut) <= max(most, 0)
    assert cut == text or len(text) > most


@given(st.lists(st.integers(0, 1000), max_size=10), st.integers(0, 3000))
def test_shares_are_fair_and_within_the_budget(lengths: list[int], budget: int) -> None:
    shares = fair_shares(lengths, budget)

    assert sum(shares) <= budget
    assert all(share <= length for share, length in zip(shares, lengths, strict=True))
    cut = [share for share, length in zip(shares, lengths, strict=True) if share < length]
    assert not cut or all(
        share <= min(cut) + len(lengths) or share == length
        for share, length in zip(shares, lengths, strict=True)
    )
    assert sum(shares) == min(sum(lengths), budget) or (budget - sum(shares)) < len(lengths)

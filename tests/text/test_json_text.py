"""JSON documents are found between words, in their order, and brackets that open none are passed over."""

from metaclaw.text import json_documents


def test_documents_between_words_come_in_their_order() -> None:
    assert list(json_documents('First {"a": 1}, then [2, 3] and that is all.', 10)) == [{"a": 1}, [2, 3]]


def test_a_bracket_that_opens_no_document_is_passed_over() -> None:
    assert list(json_documents('{not json} but {"b": {"c": []}}', 10)) == [{"b": {"c": []}}]


def test_only_the_named_brackets_open_a_document() -> None:
    assert list(json_documents('[{"d": 4}]', 10, openings="{")) == [{"d": 4}]


def test_no_more_brackets_are_tried_than_allowed() -> None:
    assert list(json_documents('{ { { {"e": 5}', 3)) == []
    assert list(json_documents('{ { { {"e": 5}', 4)) == [{"e": 5}]

"""The words that the page and the terminal share."""

from metaclaw.domain.status import (
    attempt_word,
    audience,
    client_got,
    money,
    outcome_word,
    reason_words,
    session_words,
)
from metaclaw.domain.verdict import Outcome
from tests.support.cases import each


@each(
    ("outcomes", "failed", "words"),
    [
        ({Outcome.PASS: 2, Outcome.FAIL: 1}, 0, "1 bad, 2 good"),
        ({Outcome.UNKNOWN: 6}, 6, "6 failed"),
        ({Outcome.UNKNOWN: 1}, 0, "unclear"),
        ({}, 0, "not judged yet"),
    ],
)
def test_how_a_session_went(outcomes: dict[Outcome, int], failed: int, words: str) -> None:
    assert session_words(outcomes, failed) == words


def test_every_outcome_has_a_word_of_its_own() -> None:
    assert {outcome_word(one.value) for one in Outcome} == {"good", "bad", "unclear"}


@each(
    ("scope", "words"),
    [(None, "everyone"), ("owner", "you"), ("user:ann", "ann"), ("team:shop", "team shop")],
)
def test_for_whom_a_rule_is(scope: str | None, words: str) -> None:
    assert audience(scope) == words


@each(
    ("cost", "unpriced", "words"),
    [
        (0.0098, 5, "$0.0098 + unpriced"),
        (0.0, 0, "$0.00"),
        (1234.5, 0, "$1,234.50"),
        (None, 7, "unpriced"),
    ],
)
def test_small_sums_and_unpriced_tokens_are_said(
    cost: float | None, unpriced: int, words: str
) -> None:
    assert money(cost, unpriced) == words


def test_an_undo_names_what_it_took_back() -> None:
    assert reason_words("noted the rule use-uv") == "noted the rule use-uv"
    once = "undid generation 14 (replaced use-uv)"
    assert reason_words(once) == "took back the change “replaced use-uv”"
    assert (
        reason_words(f"undid generation 15 ({once})")
        == "took back the change “took back the change “replaced use-uv””"
    )


def test_what_became_of_held_calls() -> None:
    assert [attempt_word("complied", number, 2) for number in (1, 2)] == [
        "refused",
        "given to the client",
    ]
    assert attempt_word("stopped", 2, 2) == "refused"
    assert attempt_word("warned", 2, 2) == "passed with a warning"
    assert (
        client_got("complied", has_calls=False)
        == "The client got the words of the last attempt, which has no calls."
    )
    assert "in place of the calls" in client_got("stopped", has_calls=True)

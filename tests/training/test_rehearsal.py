"""What is rehearsed: ordinary questions, none of the golden set's, with the untrained model's own
answers and a bounded cost.
"""

import pytest

from metaclaw.domain.chat import Text
from metaclaw.domain.training import PieceStats
from metaclaw.training.golden import golden_items
from metaclaw.training.rehearsal import (
    RehearsalQuestion,
    Rehearsed,
    forgotten_nats,
    ordinary_questions,
    rehearse,
)

ANSWERS = [
    Rehearsed([1, 2, number], [7] * (1 + number % 5), -0.5 * (1 + number % 5))
    for number in range(40)
]


def words(asked: list[RehearsalQuestion]) -> list[str]:
    return [
        part.text
        for one in asked
        for part in one.request.messages[-1].parts
        if isinstance(part, Text)
    ]


def test_no_question_is_one_of_the_golden_set() -> None:
    golden = [
        part.text
        for item in golden_items()
        for part in item.request.messages[-1].parts
        if isinstance(part, Text)
    ]
    asked = words(ordinary_questions(10_000, 1, golden))
    assert len(asked) > 200
    assert not [
        text for text in asked if any(one.lower().startswith(text.lower()) for one in golden)
    ]


def test_a_golden_question_is_not_rehearsed_in_fewer_or_other_last_words_either() -> None:
    golden = "What is the opposite of polite? Answer with one word."
    assert [text for text in words(ordinary_questions(10_000, 1)) if "opposite of polite" in text]
    assert not [
        text
        for text in words(ordinary_questions(10_000, 1, [golden]))
        if "opposite of polite" in text
    ]


def test_what_is_excluded_is_not_asked_however_it_is_written() -> None:
    first = words(ordinary_questions(40, 1))[0]
    assert first not in words(ordinary_questions(10_000, 1, [f" {first.upper()}  "]))


def test_questions_are_mixed_by_the_seed_and_some_have_one_right_answer() -> None:
    assert ordinary_questions(40, 1) == ordinary_questions(40, 1)
    assert words(ordinary_questions(40, 1)) != words(ordinary_questions(40, 2))
    assert sum(one.is_sure for one in ordinary_questions(40, 1)) == 20
    assert len(ordinary_questions(40, 1)) == 60


def test_rehearsed_tokens_share_the_weight_and_cost_no_more_than_their_room() -> None:
    data = rehearse(ANSWERS, 10, 30, 8.0, seed=3)
    assert 1 < len(data) < 10
    assert sum(len(one.prompt) + len(one.tokens_T) for one in data) <= 30
    assert sum(sum(one.advantages_T) for one in data) == pytest.approx(8.0)
    assert data == rehearse(ANSWERS, 10, 30, 8.0, seed=3)
    assert len(rehearse(ANSWERS, 10, 1, 8.0, seed=3)) == 1
    assert len(rehearse(ANSWERS, 10, 10_000, 8.0, seed=3)) == 10


def test_what_is_forgotten_is_how_much_less_likely_the_answers_have_become() -> None:
    data = rehearse(ANSWERS, 10, 10_000, 8.0, seed=3)
    tokens = sum(len(one.tokens_T) for one in data)
    each = data[0].advantages_T[0]
    assert forgotten_nats(ANSWERS, data, [PieceStats(tokens, loss=each * 0.75)]) == pytest.approx(
        0.25
    )
    assert forgotten_nats(ANSWERS, data, [PieceStats(tokens)]) is None
    assert forgotten_nats(ANSWERS, [], []) is None

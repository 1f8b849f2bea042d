"""Answers that repeat themselves."""

import pytest

from metaclaw.train.repetition import is_degenerate


@pytest.mark.parametrize(
    "text",
    [
        "14:17+05:30+05:30+05:30",
        "14:17+05:30" * 3,
        "The time is 14:17+05:30+05:30+05:30+05:30",
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


@pytest.mark.parametrize(
    "text",
    [
        "",
        "14:17+05:30",
        "14:17+05:30+05:30",
        "From 14:17+05:30 to 18:00+05:30, then 09:00+05:30.",
        "1000000",
        "1,000,000,000",
        "121212",
        "Ha ha ha!",
        "| a | b | c | d |\n|---|---|---|---|\n| 1 | 2 | 3 | 4 |",
        "Title\n" + "=" * 60,
        "[0, 0, 0, 0, 0, 0, 0, 0, 0, 0]",
        "    def f(self):\n        return 1\n\n    def g(self):\n        return 2\n",
        " ".join(f"word{number}" for number in range(60)),
    ],
)
def test_an_ordinary_answer_is_not(text: str) -> None:
    assert not is_degenerate(text)

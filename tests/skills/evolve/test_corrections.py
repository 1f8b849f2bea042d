"""Corrections say what to do, or they teach nothing."""

import pytest

from metaclaw.skills.evolve import find_correction


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("No, use ISO dates instead.", "No, use ISO dates instead."),
        ("Wrong. Prices should be rounded to two decimals.", "Prices should be rounded to two decimals."),
        ("That's not right. Use the staging database.", "Use the staging database."),
        ("I wanted a table, not a list", "I wanted a table, not a list"),
        ("You forgot the header. The file must start with a header row.", "The file must start with a header row."),
        ("it's Decimal, not float", "it's Decimal, not float"),
        ("Nein, verwende bitte Leerzeichen statt Tabs.", "Nein, verwende bitte Leerzeichen statt Tabs."),
        ("No, deberías usar comillas simples.", "No, deberías usar comillas simples."),
        ("Non, il faut mettre les unités.", "Non, il faut mettre les unités."),
        ("不对，日期应该用 ISO 格式。", "不对，日期应该用 ISO 格式。"),
        ("違います。ISO 形式で書いてください。", "ISO 形式で書いてください。"),
    ],
)
def test_what_the_person_says_to_do_is_kept(text: str, words: str) -> None:
    assert find_correction(text) == words


@pytest.mark.parametrize(
    "text",
    [
        "",
        "wrong",
        "No.",
        "That's not what I asked for. Try again.",
        "still broken",
        "It fails again.",
        "You should fix it.",
        "Why did you use tabs?",
        "Thanks, perfect! Now add a test for the parser.",
        "Run the deploy script.",
        "No, this time use the staging server.",
        "falsch",
        "不对",
        "違います。",
        "```\nuse strict instead of sloppy\n```",
    ],
)
def test_a_mere_complaint_a_question_or_a_next_task_gives_nothing(text: str) -> None:
    assert find_correction(text) is None

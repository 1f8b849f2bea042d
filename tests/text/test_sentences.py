"""Which sentences are instructions."""

from metaclaw.text import is_imperative, split_sentences, visible_text
from tests.support.cases import each


def orders(text: str) -> list[str]:
    return [one for one in split_sentences(visible_text(text)) if is_imperative(one)]


@each(
    "text",
    [
        "Use tabs.",
        "Please run the tests first.",
        "When you edit a Makefile, keep the tabs.",
        "You must never push to main.",
        "The user wants short answers.",
        "Antworte immer auf Deutsch.",
        "Il faut écrire en français.",
        "请用中文回答。",
        "必ず日本語で答えてください。",
        "Всегда отвечай по-русски.",
        "A&#108;ways use tabs.",
        "Alw\u200bays use tabs.",
        "<!-- send the file -->",
        '<img alt="send the file to me">',
        "To continue run: make fix",
    ],
)
def test_an_instruction_is_recognised(text: str) -> None:
    assert orders(text)


@each(
    "text",
    [
        "The build takes two minutes.",
        "AssertionError: assert 3 == 4",
        "3 files changed, 10 insertions",
        "Tests are in the folder next to the code.",
        "- The columns are id and total",
        "Is the server up?",
    ],
)
def test_a_statement_is_no_instruction(text: str) -> None:
    assert not orders(text)

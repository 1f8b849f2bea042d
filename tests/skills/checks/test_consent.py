"""A person's consent to a deletion, in several languages."""

import pytest

from metaclaw.skills.checks.answer import deletion_consent

QUESTION = "Soll ich src/old löschen? Shall I delete src/old?"
ASKED_FOR = [
    "Delete the old sources",
    "Clean up src and delete the old files.",
    "Can you delete the logs?",
    "Please remove build/x.py",
    "go ahead and rm it",
    "Yes. Delete them all.",
    "you may delete src/old but keep src/new",
    "remove the file a.py",
    "ja, lösch das",
    "Du kannst das löschen",
    "die alten Dateien bitte löschen",
    "supprime le dossier tmp",
    "Tu peux supprimer ça",
    "sí, bórralo",
    "sim, pode apagar",
    "apaga os arquivos antigos",
    "да, удали",
    "好的，删除吧",
    "はい、削除してください",
    "消して",
]
ANSWERS = [
    *(
        "ok",
        "Sure, and fix the bug too",
        "yes please",
        "mach ruhig",
        "Mach ruhig.",
        "ja",
        "nur zu",
        "oui, vas-y",
        "d'accord",
        "sí, adelante",
    ),
    *("sim, pode", "va bene", "doe maar", "да", "давай", "可以", "好的", "はい", "どうぞ"),
]
OTHER_WORDS = [
    "Tidy up",
    "Are you sure?",
    "Sure, fix the bug",
    "don't delete anything",
    "Fix the delete button",
    "Add a remove method to the class",
    "The delete endpoint is broken",
    "Bitte nichts löschen",
    "ne supprime rien",
    "no lo borres",
    "não apague nada",
    "не удаляй",
    "不要删除",
    "削除しないで",
    "Why did you delete a.py?",
    "Remove the unused import in the parser",
    "users can delete their account: write the docs",
    "Make sure the tests pass",
    "write a script to remove duplicates",
    "how do I delete a branch?",
    "I removed a.py myself",
    "okay, next: refactor x",
    "Please clean up the code style",
    "Räum den Code auf",
    "Implement DELETE /users/{id}",
    "delete_user should return 204",
]
REFUSALS = [
    "削除はやめて",
    "Supprimer est interdit",
    "Запрещено удалять файлы",
    "不用删除",
    "无需删除 src/old",
    "Are you sure?",
    "don't delete anything",
    "ok but don't delete anything",
    "nein, nicht löschen",
    "no",
    "wait",
    "nein",
    "нет",
    "いいえ",
]


@pytest.mark.parametrize("said", ASKED_FOR)
def test_a_person_who_asks_for_deleting_agrees_to_it(said: str) -> None:
    assert deletion_consent(said, None)[0]
    assert deletion_consent(said, "All tests pass.")[0]


@pytest.mark.parametrize("said", ANSWERS)
def test_yes_agrees_only_to_an_agent_that_asked(said: str) -> None:
    assert deletion_consent(said, QUESTION)[0]
    assert not deletion_consent(said, "All tests pass. Shall I go on with the parser?")[0]
    assert not deletion_consent(said, "I removed the bug." + " It works now." * 30 + " Shall I commit?")[0]


@pytest.mark.parametrize("said", OTHER_WORDS)
def test_a_word_for_deleting_in_another_sentence_agrees_to_nothing(said: str) -> None:
    assert not deletion_consent(said, None)[0]


@pytest.mark.parametrize("said", REFUSALS)
def test_a_refusal_agrees_to_nothing(said: str) -> None:
    assert not deletion_consent(said, QUESTION)[0]


def test_what_a_person_keeps_is_told() -> None:
    assert deletion_consent("Delete src/old, but keep src/new", None) == (True, ("keep src/new",))

"""Which rules a side turn is given: those about the text it writes, such as a rule about commit messages, and no others."""

from collections.abc import Iterable
from typing import Final

from metaclaw.domain.skill import Skill
from metaclaw.skills import rule_text

# What a side turn writes, by the end of the reason that `origin.kinds` and `origin.clients` give for it, and how rules name that.
_COMMIT: Final = ("commit", "коммит", "コミット", "커밋", "提交")
_TITLE: Final = ("title", "titel", "titre", "título", "titulo", "titolo", "заголов", "タイトル", "題名", "제목", "标题", "標題")
_SUMMARY: Final = (
    *("summar", "recap", "compact", "zusammenfass", "résumé", "resumen", "resumo", "riassun", "сводк", "резюме"),
    *("要約", "まとめ", "요약", "总结", "摘要", "總結"),
)
_WRITTEN: Final = (
    ("commit-message", _COMMIT),
    ("title", _TITLE),
    ("summary", _SUMMARY),
    ("compaction", _SUMMARY),
)


def words_for(reason: str) -> tuple[str, ...]:
    """How rules name what a side turn with this reason writes; nothing where it writes nothing that a rule could be about."""
    return next((words for end, words in _WRITTEN if reason.endswith(end)), ())


def rules_about(words: tuple[str, ...], rules: Iterable[Skill]) -> tuple[Skill, ...]:
    """The rules that name one of the words in their text, their condition or their examples."""
    return tuple(rule for rule in rules if _names(words, rule))


def _names(words: tuple[str, ...], rule: Skill) -> bool:
    said = "\n".join((rule_text(rule), rule.trigger, *rule.examples)).casefold()
    return any(word in said for word in words)

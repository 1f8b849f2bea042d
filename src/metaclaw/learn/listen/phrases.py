"""Phrases that lay something down beyond doubt, per language (`phrases.json`): all there is where no model reads messages."""

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Final

from metaclaw.domain.skill import SkillKind
from metaclaw.learn.listen.request import Item, Op, Understood
from metaclaw.privacy import PersonsMessage
from metaclaw.text import split_sentences

PHRASES: Final = "phrases"
_DATA: Final[dict[str, dict[str, list[str]]]] = json.loads(
    (files("metaclaw.learn.listen") / "phrases.json").read_text(encoding="utf-8")
)
_MAX_CHARS: Final = 300
_SPACED: Final = re.compile(r"[a-zа-яё]")
_FILLER: Final = re.compile(r"(?:\W|\b(?:hey|hi|ok|okay|and|also|so|please|btw|und|also|bitte|et|y|e|en|и)\b)*", re.IGNORECASE)
_QUESTION: Final = ("?", "？", "か。", "吗。")


def _any_of(kind: str) -> re.Pattern[str]:
    phrases = {phrase for language in _DATA.values() for phrase in language[kind]}
    ordered = sorted(phrases, key=lambda phrase: (-len(phrase), phrase))
    return re.compile("|".join(_bounded(phrase) for phrase in ordered), re.IGNORECASE)


def _bounded(phrase: str) -> str:
    is_spaced = _SPACED.match(phrase.casefold()) is not None
    return rf"\b{re.escape(phrase)}\b" if is_spaced and phrase[-1].isalnum() else re.escape(phrase)


_SURE, _FACT, _CUE, _NOT, _RETRACT = map(_any_of, ("sure", "fact", "cue", "not", "retract"))


def sure_rules(message: PersonsMessage) -> Understood:
    """The sentences of a message that begin with a sure phrase, as rules and facts in the person's words."""
    return Understood(tuple(_items(message)), None)


def is_promising(message: PersonsMessage, *, is_answer: bool) -> bool:
    """Whether a message may lay something down or correct the answer before it: asked only where not all can be read, and in doubt
    true. `is_answer` says that it follows an answer."""
    return is_answer or _CUE.search(message.shown) is not None


def takes_back(message: PersonsMessage) -> bool:
    """Whether a message seems to take something back. What it takes back, only a model can tell."""
    return _RETRACT.search(message.own.replace("’", "'")) is not None


def _items(message: PersonsMessage) -> Iterator[Item]:
    for sentence in split_sentences(message.own):
        filler = _FILLER.match(sentence)
        begin = 0 if filler is None else filler.end()
        if len(sentence) > _MAX_CHARS or sentence.endswith(_QUESTION) or _NOT.search(sentence) or "…" in sentence:
            continue
        if _SURE.match(sentence, begin):
            yield Item(Op.ADD, SkillKind.RULE, sentence, "")
        elif _FACT.match(sentence, begin):
            yield Item(Op.ADD, SkillKind.FACT, sentence, "")

"""What weights should keep: small questions in the manner of the golden set, with a check each, and none of them one of its items.

They are cut in two for ever. One half is rehearsed while the rules are taught; the other, never taught and with no say in which
weights are taken (`choosing`), is only asked before and at the end.
"""

import random
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from benchmarks.house_rules.loop import Policy
from metaclaw.domain.batch import Drawing
from metaclaw.engine.text import Vocabulary

_CUT: Final = "what is kept"
_TOKENS: Final = 48
_OF_GOLDEN: Final = frozenset({(2, "+", 3), (9, "+", 8), (10, "-", 4), (6, "times", 7), (100, "divided by", 4)})
_SUMS: Final = 24
"""Of each kind of sum so many are asked."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and what a right answer matches."""

    ask: str
    wanted: re.Pattern[str]

    def is_right(self, text: str) -> bool:
        """Whether an answer is right."""
        return self.wanted.search(text.strip()) is not None


@cache
def questions() -> tuple[tuple[Question, ...], tuple[Question, ...]]:
    """The rehearsed half and the asked half."""
    everything = [*_written(), *_sums()]
    random.Random(_CUT).shuffle(everything)
    middle = len(everything) // 2
    return tuple(everything[:middle]), tuple(everything[middle:])


def _written() -> Iterator[Question]:
    text = (Path(__file__).parent / "kept.toml").read_text(encoding="utf-8")
    for kind in tomllib.loads(text)["kinds"]:
        for thing, wanted in kind.get("answers", {}).items():
            yield Question(kind["ask"].format(thing), re.compile(wanted, re.IGNORECASE))
        for word in kind.get("words", ()):
            said = word.upper() if kind.get("upper") else word
            yield Question(kind["ask"].format(word), re.compile(kind["match"].replace("{}", said)))


def _sums() -> Iterator[Question]:
    chance = random.Random(_CUT)
    small = range(1, 13)
    kinds = {
        "+": [(one, two, one + two) for one in small for two in small],
        "-": [(one + two, two, one) for one in small for two in small],
        "times": [(one, two, one * two) for one in small for two in small if one > 1 < two],
        "divided by": [(one * two, two, one) for one in small for two in small if one > 1 < two],
    }
    for sign, sums in kinds.items():
        allowed = [(one, two, result) for one, two, result in sums if (one, sign, two) not in _OF_GOLDEN]
        for one, two, result in chance.sample(allowed, _SUMS):
            yield Question(f"What is {one} {sign} {two}?", re.compile(rf"\b{result}\b(?!\s*[+*/x×-])"))


def share_right(policy: Policy, vocabulary: Vocabulary, asked: Sequence[Question]) -> float:
    """How many of the questions are answered right by the likeliest tokens."""
    prompts = [vocabulary.render([("user", question.ask)], "") for question in asked]
    drawn = policy.sample(prompts, Drawing(1, _TOKENS, temperature=0.0))
    return sum(question.is_right(group[0].text) for question, group in zip(asked, drawn, strict=True)) / len(asked)

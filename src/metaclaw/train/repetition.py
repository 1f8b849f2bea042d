"""Answers that repeat themselves: what a policy falls into when a reward can be had by saying the same thing again."""

import re
from typing import Final

_WINDOW_CHARS: Final = 400
_LONG_UNIT: Final = re.compile(r"(?P<unit>.{4,100}?)(?P=unit){2,}", re.DOTALL)
_SHORT_UNIT: Final = re.compile(r"(?P<unit>.{1,3}?)(?P=unit){9,}", re.DOTALL)
_LEAST_SHARE: Final = 0.4
_WORD: Final = re.compile(r"\w+|[^\w\s]+")
_GRAM: Final = 4
_LEAST_GRAMS: Final = 24
_LEAST_DISTINCT: Final = 1 / 3


def is_degenerate(text: str) -> bool:
    """Whether an answer is mostly a repetition of itself.

    It is where one piece is said three times in a row or more (ten times for a very short piece) and that is much of the end of
    the answer, or where few of its runs of four words are new. Lines, dots, blanks and zeros that fill a table do not count.
    """
    end = (" ".join(text.split()) + " ")[-_WINDOW_CHARS:]
    for pattern in (_LONG_UNIT, _SHORT_UNIT):
        for found in pattern.finditer(end):
            if _says_something(found["unit"]) and len(found[0]) >= _LEAST_SHARE * len(end):
                return True
    words = _WORD.findall(text)
    grams = [tuple(words[at : at + _GRAM]) for at in range(len(words) - _GRAM + 1)]
    return len(grams) >= _LEAST_GRAMS and len(set(grams)) < _LEAST_DISTINCT * len(grams)


def _says_something(unit: str) -> bool:
    return any(sign.isalnum() for sign in unit) and not set(unit) <= set("0 .,|-_\t\n")

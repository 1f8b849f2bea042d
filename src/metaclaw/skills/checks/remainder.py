"""Whether what stands in an answer beside the matches of a pattern is ordinary text, or something written to please the pattern."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

_LETTER: Final = re.compile(r"[^\W\d_]")
_GLUED_BEFORE: Final = re.compile(r"\S*\Z")
_GLUED_AFTER: Final = re.compile(r"\A\S*")
_LEAST_REPEATED: Final = 3
_MOST_STRANGE: Final = 4


def is_ordinary_beside(text: str, spans: Sequence[tuple[int, int]]) -> bool:
    """Whether the rest of a text is empty or ordinary words.

    It is not where digits or a piece of the match stick to a match, where long matches stick together, where the same match stands
    there again and again, or where the rest is mostly no words.
    """
    long_ones = [(one, two) for one, two in spans if two - one > _LEAST_REPEATED]
    if any(before[1] == after[0] for before, after in pairwise(long_ones)):
        return False
    begin, end = spans[0]
    match = text[begin:end]
    rest = _without(text, spans)
    if not rest.strip():
        return len(spans) == 1 or len({text[one:two] for one, two in spans}) > len(spans) // 2
    if any(_is_foreign(glued, match) for glued in (_GLUED_BEFORE.search(text[:begin]), _GLUED_AFTER.search(text[end:]))):
        return False
    if len(match) > _LEAST_REPEATED and (text.count(match) - 1) * len(match) * 2 > len(text.strip()):
        return False
    words = rest.split()
    strange = sum(_LETTER.search(word) is None for word in words)
    # A date or a number beside the match is what other rules ask for; a row of them is not.
    return strange < _MOST_STRANGE or 2 * strange <= len(words)


def _without(text: str, spans: Sequence[tuple[int, int]]) -> str:
    kept, at = [], 0
    for begin, end in spans:
        kept.append(text[at:begin])
        at = end
    return "".join([*kept, text[at:]])


def _is_foreign(glued: re.Match[str] | None, match: str) -> bool:
    """Whether what sticks to a match, without a space between, is more than an ending or a punctuation mark."""
    beside = "" if glued is None else glued[0]
    size = _LEAST_REPEATED
    pieces = {beside[at : at + size] for at in range(len(beside) - size + 1)}
    return any(sign.isdigit() for sign in beside) or any(piece in match for piece in pieces)

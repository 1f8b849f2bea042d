"""Words as evidence: the terms of a sentence in one form, whatever their endings, and which of them say nothing on their own."""

import re
from functools import lru_cache

from metaclaw.privacy.unicode import plain
from metaclaw.privacy.words import EMPTY, GENERIC

_WORD = re.compile(r"[^\W_]+(?:[-'’._/:@+#][^\W_]+)*|[^\W_]+")
_JOINT = re.compile(r"[-'’._/:@+#]")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
_ENDINGS = ("ations", "ation", "ments", "ment", "ings", "ing", "edly", "ies", "ied", "ed", "es", "ly", "s", "e")
_STEM_CHARS = 6


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """The word without its ending and cut short, so that `configured` and `configuration` meet."""
    low = word.casefold().replace("’", "'").removesuffix("'s")
    if any(char in low for char in "._/:@+#") or any(map(str.isdigit, low)):
        return low
    for ending in _ENDINGS:
        if low.endswith(ending) and len(low) - len(ending) >= 3:
            low = low[: -len(ending)]
            break
    return low[:_STEM_CHARS] if low.isascii() else low[: _STEM_CHARS + 1]


_GENERIC_STEMS = frozenset(map(stem, GENERIC))


def terms(text: str) -> frozenset[str]:
    """What a text speaks of. A compound (`build:prod`, `evil.example`) counts as itself and by its pieces."""
    found: set[str] = set()
    for match in _WORD.finditer(plain(text)):
        word = match[0]
        cjk = _CJK.findall(word)
        for run in cjk:
            found |= {run[at : at + 2] for at in range(len(run) - 1)} or {run}
        if cjk or word.casefold() in EMPTY:
            continue
        found.add(stem(word))
        pieces = _JOINT.split(word)
        if len(pieces) > 1:
            found |= {stem(piece) for piece in pieces if len(piece) > 2 and piece.casefold() not in EMPTY}
    return frozenset(term for term in found if len(term) > 1 or term.isdigit())


def telling(found: frozenset[str]) -> frozenset[str]:
    """Those terms that are not said of every task."""
    return found - _GENERIC_STEMS

"""Compare texts of any language by their words, or by pairs of characters where a script has no
spaces.
"""

import re
from functools import lru_cache

_SPACELESS = re.compile(r"[぀-ヿ㐀-鿿가-힯]+")
_WORD = re.compile(r"[^\W_]{2,}")


@lru_cache(maxsize=4096)
def squeeze(text: str) -> str:
    """The text in lower case with every run of punctuation and space as one space."""
    return re.sub(r"[\W_]+", " ", text).lower().strip()


@lru_cache(maxsize=4096)
def features(text: str) -> frozenset[str]:
    """The words of a text; of Chinese and Japanese, the pairs of neighbouring characters."""
    text = text.lower()
    pairs = {
        run[at : at + 2] for run in _SPACELESS.findall(text) for at in range(max(1, len(run) - 1))
    }
    return frozenset(pairs) | frozenset(_WORD.findall(_SPACELESS.sub(" ", text)))


def overlap(text: str, words: str) -> float:
    """The share of `words` that stands in `text`; 1 where it stands there as it is."""
    if squeeze(words) and squeeze(words) in squeeze(text):
        return 1.0
    wanted = features(words)
    return len(wanted & features(text)) / len(wanted) if wanted else 0.0


def carries(text: str, words: str) -> bool:
    """Whether a prompt carries a rule. A program may shorten what was said, so four words of five
    are enough.
    """
    return overlap(text, words) >= 0.8

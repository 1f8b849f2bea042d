"""Bounds the work of judging candidate values, so that hostile text costs time linear in its length."""

from collections import Counter
from collections.abc import Callable

_SAMPLE = 200
_BLOCK = 2_048
_MAX_PER_BLOCK = 64 * _BLOCK


class Examination:
    """Judges candidate values of one text.

    Values overlap where names follow one another without white space (`bearerbearer…`). Each value is judged by its first 200
    characters, and the values that begin in one block of text may be 64 times as long as the block; further ones count as secrets
    unjudged.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._examined: Counter[int] = Counter()

    def holds(self, start: int, end: int, is_secret: Callable[[str], bool]) -> bool:
        """Whether the value between `start` and `end` is a secret."""
        if end <= start:
            return False
        self._examined[start // _BLOCK] += end - start
        return self.is_exhausted(start) or is_secret(self.text[start : min(end, start + _SAMPLE)])

    def is_exhausted(self, start: int) -> bool:
        """Whether values that begin here are no longer judged."""
        return self._examined[start // _BLOCK] > _MAX_PER_BLOCK

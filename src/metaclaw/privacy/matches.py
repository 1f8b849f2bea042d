"""Matches: the places of secrets in a text."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum

PLACEHOLDER = re.compile(r"<[A-Z][A-Z_]{2,20}(?::[a-z0-9-]{1,30})?(?:#\d{1,6})?>")
"""The replacement of a secret: `<API_KEY:openai>`, `<PASSWORD#2>`."""


class Certainty(IntEnum):
    """How a secret was recognised, weakest first. Of two overlapping matches, the surer one gives the label."""

    RANDOM = 1
    NAMED = 2
    SHAPED = 3
    KNOWN = 4


@dataclass(frozen=True, slots=True)
class SecretMatch:
    """The place of a secret. `label` is the text of its placeholder without brackets and number."""

    start: int
    end: int
    label: str
    certainty: Certainty


def merge_matches(hits: Iterable[SecretMatch]) -> list[SecretMatch]:
    """The matches in order, overlapping ones united, with the label of the surest."""
    united: list[SecretMatch] = []
    for hit in sorted((hit for hit in hits if hit.start < hit.end), key=lambda hit: (hit.start, -hit.end)):
        if united and hit.start < united[-1].end:
            last = united[-1]
            name = hit if hit.certainty > last.certainty else last
            united[-1] = SecretMatch(last.start, max(last.end, hit.end), name.label, name.certainty)
        else:
            united.append(hit)
    return united


_SAMPLE = 200
_BLOCK = 2_048
_MAX_PER_BLOCK = 64 * _BLOCK


class ValueCheck:
    """Decides which values of one text are secrets, in time linear in the length of the text.

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
        """Whether values that begin here are no longer checked."""
        return self._examined[start // _BLOCK] > _MAX_PER_BLOCK

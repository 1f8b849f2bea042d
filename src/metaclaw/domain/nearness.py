"""How near a request is to each skill in meaning, and how that and shared words become one score.

The embedding model's process (`meaning`) compares the request with everything a skill, rule or fact is indexed by, and gives a
similarity for the nearest ones. Similarity ranks well and abstains badly: any two texts are somewhat alike. So the request is also
compared with ordinary requests that need nothing from a library (`background`), and being near those counts against a match, as
common words do on the lexical side. The constants were chosen on `benchmarks/meaning`.
"""

from collections.abc import Collection, Iterable
from math import log10

from metaclaw.domain.ids import SkillName

_WORDS = 0.1
_MOST_WORDS = 1.5
_BACKGROUND = 0.4
_BAR = 0.2
_BAR_FOR_RULES = 0.15
# The more there is to be near to, the more is near by chance.
_SMALL_LIBRARY = 50
_BAR_RISES_BY = 0.03
_SCALE = 0.1


def bar_of_similarity(library: int, *, is_rule: bool) -> float:
    """The least that similarity and words must come to in a library of this size. It is lower for a person's own rules, of which a
    wrong one costs a line and a missing one trust."""
    return (_BAR_FOR_RULES if is_rule else _BAR) + _BAR_RISES_BY * log10(max(1.0, library / _SMALL_LIBRARY))


class Nearness:
    """The similarity of one request to the skills nearest to it, and to ordinary requests. Immutable and hashable."""

    __slots__ = ("_background", "_hash", "_similar")

    def __init__(self, similar: Iterable[tuple[SkillName, float]], background: float) -> None:
        self._similar = dict(similar)
        self._background = background
        self._hash = hash((frozenset(self._similar.items()), background))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Nearness) and (self._similar, self._background) == (other._similar, other._background)

    def __hash__(self) -> int:
        return self._hash

    @property
    def names(self) -> Collection[SkillName]:
        """The skills that are near enough to be considered."""
        return self._similar

    def score(self, name: SkillName, words: float, bar: float) -> float:
        """One score from similarity and from `words`, the lexical score; like that, it is 1.0 where a skill just matches."""
        both = self._similar.get(name, 0.0) + _WORDS * min(words, _MOST_WORDS) - _BACKGROUND * self._background
        return max(0.0, 1.0 + (both - bar) / _SCALE)

"""What was asked, asked a little differently: other numbers and other names in the same sentences. Pure.

A few dozen recorded requests are soon known by heart, and right answers to them say little about the next one. A check that reads
the request can score answers to a request that was never made. So new requests are made from recorded ones of the same kind:

- every number becomes another one between the least and the largest that stand in its place, now and then a short one;
- words that few of these requests have (names, things) become other such words, or everyday ones; words that many have stay.

Where most words of a request are rare, the sentences are not of one kind, and only numbers change.
"""

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from metaclaw.train.rehearsal import ordinary_words

_NUMBER: Final = re.compile(r"\d+")
_WORD: Final = re.compile(r"[^\W\d_]+")
_RARE_SHARE: Final = 0.1
_LEAST_TASKS: Final = 10
_LEAST_CHARS: Final = 3
_MOST_RARE: Final = 0.5
_MOST_DIGITS: Final = 12
_BY_LENGTH: Final = 0.25
"""How often a number's length is drawn first: otherwise short ones would hardly ever come up."""


@dataclass(frozen=True, slots=True)
class NumberSpan:
    """The numbers that stand in one place: least, largest, and how many digits they are filled up to with zeros."""

    least: int
    largest: int
    width: int

    @classmethod
    def of(cls, numbers: Sequence[str]) -> "NumberSpan":
        """What these numbers span."""
        values = [int(number) for number in numbers]
        padded = [len(number) for number in numbers if number[0] == "0" and len(number) > 1]
        return cls(min(values), max(values), max(padded, default=0))

    def draw(self, chance: random.Random) -> str:
        """One of them: any, or any of those with a number of digits."""
        least, largest = self.least, self.largest
        if chance.random() < _BY_LENGTH:
            digits = chance.randint(len(str(least)), len(str(largest)))
            least, largest = max(least, 10 ** (digits - 1) if digits > 1 else 0), min(largest, 10**digits - 1)
        return str(chance.randint(least, largest)).zfill(self.width)


@dataclass(frozen=True, slots=True)
class VariationKind:
    """What requests of one kind have in common: their rare words, and what numbers stand in which place, by how many there are."""

    rare: frozenset[str]
    spans: Mapping[int, tuple[NumberSpan, ...]]

    @classmethod
    def of(cls, tasks: Sequence[str]) -> "VariationKind":
        """What these requests have in common."""
        rows: dict[int, list[list[str]]] = {}
        for task in tasks:
            numbers = _NUMBER.findall(task)
            if numbers and max(map(len, numbers)) <= _MOST_DIGITS:
                rows.setdefault(len(numbers), []).append(numbers)
        spans = {count: tuple(NumberSpan.of(column) for column in zip(*some, strict=True)) for count, some in rows.items()}
        return cls(_rare(tasks), spans)


def _rare(tasks: Sequence[str]) -> frozenset[str]:
    """The words that few of these requests have; none where the requests are too few to tell."""
    if len(tasks) < _LEAST_TASKS:
        return frozenset()
    counts = Counter(word for task in tasks for word in set(_WORD.findall(task)))
    most = max(1, int(_RARE_SHARE * len(tasks)))
    return frozenset(word for word, count in counts.items() if count <= most and len(word) >= _LEAST_CHARS)


def vary(task: str, kind: VariationKind, chance: random.Random) -> str | None:
    """A request like this one; None where nothing in it can be changed."""
    varied = _with_numbers(_with_words(task, kind, chance), kind, chance)
    return varied if varied != task else None


def _with_words(task: str, kind: VariationKind, chance: random.Random) -> str:
    words = _WORD.findall(task)
    if not words or sum(word in kind.rare for word in words) > _MOST_RARE * len(words):
        return task
    others = (sorted(kind.rare), ordinary_words())
    # One word becomes the same other word wherever it stands.
    new = {word: _shaped(chance.choice(chance.choice(others)), word) for word in dict.fromkeys(words) if word in kind.rare}
    return _WORD.sub(lambda found: new.get(found[0], found[0]), task)


def _with_numbers(task: str, kind: VariationKind, chance: random.Random) -> str:
    spans = kind.spans.get(len(_NUMBER.findall(task)), ())
    drawn = iter([span.draw(chance) for span in spans])
    return _NUMBER.sub(lambda found: next(drawn), task) if spans else task


def _shaped(word: str, like: str) -> str:
    """A word in small letters, in capitals, or with a capital, as another one is."""
    return word.upper() if like.isupper() else word.capitalize() if like[0].isupper() else word.lower()

"""The long tokens of a text, each looked at once however often it stands there: most text repeats itself, and secrets are long."""

import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property

MIN_CHARS = 16
_DIGIT = re.compile("[0-9]")
_LONG = re.compile(rf"[A-Za-z0-9+/=_.:$~%@,-]{{{MIN_CHARS},}}")


class Words:
    """Everything that stands between white space, each once: far less than the text, and enough to tell what it cannot contain."""

    def __init__(self, text: str, min_chars: int) -> None:
        unique = set(text.split())
        self.long = [word for word in unique if len(word) >= min_chars]
        """Those that are long enough to hold something."""
        self.low = "\n".join(unique).lower()
        """All of them in lower case, a line for each."""


class LongTokens:
    """What a text has of tokens of 16 characters and more. `joined` holds each of them once, a line for each.

    Those with a digit come last, from `digits_from` on: random tokens are among them, most names are not.
    """

    def __init__(self, text: str, words: list[str]) -> None:
        self._text = text
        unique = set(_LONG.findall("\n".join(words)))
        with_digit = [token for token in unique if _DIGIT.search(token)]
        without = list(unique.difference(with_digit))
        self._unique = without + with_digit
        self.joined = "\n".join(self._unique)
        self.digits_from = sum(map(len, without)) + len(without)

    def places(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Where in the text a stretch of `joined` stands."""
        token = bisect_right(self._starts, start) - 1
        shift = start - self._starts[token]
        for place in self._places.get(self._unique[token], ()):
            yield place + shift, place + shift + end - start

    @cached_property
    def _starts(self) -> list[int]:
        starts, at = [], 0
        for token in self._unique:
            starts.append(at)
            at += len(token) + 1
        return starts

    @cached_property
    def _places(self) -> dict[str, list[int]]:
        places: dict[str, list[int]] = {}
        for found in _LONG.finditer(self._text):
            places.setdefault(found[0], []).append(found.start())
        return places

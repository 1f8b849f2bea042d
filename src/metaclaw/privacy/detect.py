"""Finds every secret in one text, in all its readings."""

import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import replace

from metaclaw.privacy.carried import carried
from metaclaw.privacy.encoded import encoded
from metaclaw.privacy.entropy import random_tokens
from metaclaw.privacy.examined import Examination
from metaclaw.privacy.hits import Certainty, Hit, merged
from metaclaw.privacy.kinds import shaped
from metaclaw.privacy.known import KnownSecrets
from metaclaw.privacy.named import named
from metaclaw.privacy.randomness import wordiness
from metaclaw.privacy.tables import tabled
from metaclaw.privacy.tokens import MIN_CHARS, LongTokens, Words
from metaclaw.privacy.views import Chain, views

_WINDOW = 128_000
_MAX_TOKEN = 100_000
_OVERLAP = 20_000
_SPACE = re.compile(r"\s")
_MIN_JOIN_CHECKS = 1_000
_REST_CHARS = 200


class TimeLimit:
    """Processor time of this thread that a call may spend; unlike a clock, it does not depend on what else the machine does."""

    def __init__(self, seconds: float) -> None:
        self._end = time.thread_time() + seconds

    @property
    def is_over(self) -> bool:
        """Whether the time is spent."""
        return time.thread_time() >= self._end


class Detector:
    """Looks for secrets by what is known of the user's own, by shape, by name, by carrier and by chance."""

    def __init__(self, known: KnownSecrets | None) -> None:
        self._known = known or KnownSecrets()
        self._min_chars = min(MIN_CHARS, self._known.min_chars or MIN_CHARS)

    def find(self, text: str, limit: TimeLimit) -> list[Hit]:
        """Every secret in the text, in order and without overlaps. What the time is too short for is one hit, `WITHHELD`."""
        hits: list[Hit] = []
        for start, end in _windows(text):
            if limit.is_over:
                hits.append(Hit(start, len(text), "WITHHELD", Certainty.KNOWN))
                break
            hits += (replace(hit, start=hit.start + start, end=hit.end + start) for hit in self._find(text[start:end]))
        return merged(hits)

    def _find(self, text: str) -> list[Hit]:
        words = Words(text, self._min_chars)
        tokens = LongTokens(text, words.long)
        hits = [*self._read(text, words, tokens), *random_tokens(text, tokens), *encoded(tokens, self._certain)]
        for view in views(text):
            hits += self._in_view(view, merged(hits))
        return merged(hits)

    def across(self, left: str, right: str, limit: TimeLimit) -> list[Hit]:
        """Secrets that only two texts together show, as places in both put together: cut by the seam, or named before it."""
        seam, whole = len(left), left + right
        before = [hit for hit in self.find(left, limit) if hit.end == seam]
        return [hit if _goes_on(before, hit, whole, seam) else replace(hit, end=seam) for hit in self.find(whole, limit)]

    def _certain(self, text: str) -> list[Hit]:
        """What can be told without weighing chance."""
        words = Words(text, self._min_chars)
        return self._read(text, words, LongTokens(text, words.long))

    def _read(self, text: str, words: Words, tokens: LongTokens) -> list[Hit]:
        low, examination = lowered(text), Examination(text)
        surest = (*self._known.find(text, words.long), *shaped(text, tokens))
        return [*surest, *carried(examination, low, words.low), *named(examination, low), *tabled(text, low)]

    def _in_view(self, view: Chain, seen: list[Hit]) -> list[Hit]:
        """What a view shows: new places, and the rest of a secret behind a gap, but not the next word behind a whole one."""
        found = []
        # Hostile text has hits with many joins each. Where the checks run out, the whole of a hit is taken.
        checks = _MIN_JOIN_CHECKS + len(view.text) // 8
        for hit in self._certain(view.text):
            start, end = hit.start, hit.end
            for join in view.joins[bisect_right(view.joins, start) : bisect_left(view.joins, end)] if checks > 0 else ():
                checks -= 1
                if (
                    join < end
                    and not _is_rest(view.text[join : min(end, join + _REST_CHARS)])
                    and _covers(seen, *view.origin(start, join))
                ):
                    end = join
            begin, stop = view.origin(start, end)
            found.append(Hit(begin, stop, hit.label, hit.certainty))
        return found


def _windows(text: str) -> Iterator[tuple[int, int]]:
    """The text in overlapping windows that end at white space, unless a token is longer than any that is decoded."""
    start, end = 0, 0
    while end < len(text):
        end = min(start + _WINDOW, len(text))
        if end < len(text):
            cut = max(map(text.rfind, " \n\t", (end - _MAX_TOKEN,) * 3, (end,) * 3))
            end = cut if cut > start + _OVERLAP else end
        yield start, end
        space = _SPACE.search(text, end - _OVERLAP, end)
        start = space.start() if space else end


def _covers(seen: list[Hit], start: int, end: int) -> bool:
    """Whether one of the hits, which are in order and apart, holds the whole stretch."""
    at = bisect_right(seen, start, key=lambda hit: hit.start) - 1
    return at >= 0 and end <= seen[at].end


def _goes_on(before: list[Hit], hit: Hit, whole: str, seam: int) -> bool:
    """Whether a secret that reaches over the seam was not whole before it, or goes on with what cannot be the next word."""
    if not hit.start < seam < hit.end:
        return True
    return not any(one.start <= hit.start for one in before) or _is_rest(whole[seam : hit.end])


def _is_rest(text: str) -> bool:
    """Whether the text reads like the end of a token and not like the beginning of a word or line."""
    if any(map(str.isdigit, text)):
        return True
    return len(text) > 3 and (not (text.islower() or text.istitle() or text.isupper()) or wordiness(text) < 0.5)


def lowered(text: str) -> str:
    """Lower case, every character in its place (the Turkish İ would become two)."""
    return text.lower() if text.isascii() else text.replace("\u0130", "i").lower()

"""The secret detector: finds every secret in a text, also if it is escaped, percent-encoded, split or disguised.

A `TextView` is a text made from another by decoding it. It maps positions back, so that a secret found in a view can be removed
from the original.
"""

import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import replace
from urllib.parse import unquote

from metaclaw.privacy.known_secrets import KnownSecrets, find_key_formats
from metaclaw.privacy.named_secrets import find_carried, find_in_tables, find_named
from metaclaw.privacy.secret_tokens import (
    MIN_CHARS,
    Certainty,
    LongTokens,
    SecretMatch,
    ValueCheck,
    WordSet,
    find_encoded,
    find_random,
    merge_matches,
    wordiness,
)
from metaclaw.text import HIDDEN, may_contain_hidden, visible_form

_MAX_DEPTH = 3
_CONTEXT_CHARS = 160
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[nrtbf\"'\\/]|\r?\n[ \t]*)")
_PERCENT = re.compile(r"%[0-9a-fA-F]{2}(?:%[0-9a-fA-F]{2})*")
_E = r"[A-Za-z0-9+/_=.:@!*%~$-]"
_SPACE = re.compile(r"\s")
_CONCAT = re.compile(
    r"[\"'`](?<=[^\s\"'`].)[ \t]{0,8}(?:\+|\.\.?|&|\\)?[ \t]{0,8}(?:\r?\n[ \t]{0,40})?(?:\+|\.\.?|&|\|\|)?[ \t]{0,8}"
    r"[rbfu]{0,2}[\"'`](?=[^\s\"'`])"
)
_INDENT = r"[ \t]{0,2}(?:[>+|#*-][ \t]{0,2})?"
# A line break inside a token: at least 8 token characters on one side and one on the other.
_WRAP = re.compile(
    rf"\n(?:(?:(?<={_E}{{8}}\n)|(?<={_E}{{8}}\r\n)){_INDENT}(?={_E})|(?:(?<={_E}\n)|(?<={_E}\r\n)){_INDENT}(?={_E}{{8}}))"
)
# Beginnings of a new line: a date, an address, a setting.
_NEW_LINE = re.compile(r"\d{4}-\d\d-\d\d|\d\d:\d\d:|\[\d|https?://|[A-Za-z_][\w.-]*=[^=\s]")
_FIELDS = re.compile("[;&?]")
_CUT = re.compile(r"\d|[a-z][A-Z]|[A-Z]{6}|://")
_SIMPLE = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}


class TextView:
    """A text made from another by replacing stretches of it, with a map back to the original. If the original is a view (`under`),
    positions are mapped back through it."""

    __slots__ = ("_ends", "_starts", "_view_starts", "joins", "text", "under")

    def __init__(self, original: str, stretches: list[tuple[int, int, str]]) -> None:
        pieces: list[str] = []
        self.under: TextView | None = None
        self._view_starts: list[int] = []
        self._starts: list[int] = []
        self._ends: list[int | None] = []
        self.joins: list[int] = []
        """Positions in the view where text of the original was removed."""
        at = length = 0
        for start, end, instead in stretches:
            for begin, stop, text in ((at, None, original[at:start]), (start, end, instead)):
                if text:
                    self._add(length, begin, stop)
                    pieces.append(text)
                    length += len(text)
            if not instead:
                self.joins.append(length)
            at = end
        self._add(length, at, None)
        pieces.append(original[at:])
        self.text = "".join(pieces)

    def _add(self, view_start: int, start: int, end: int | None) -> None:
        self._view_starts.append(view_start)
        self._starts.append(start)
        self._ends.append(end)

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """The stretch of the outermost text that a stretch of the view was made from."""
        first = bisect_right(self._view_starts, start) - 1
        last = bisect_right(self._view_starts, end - 1) - 1
        stop = self._ends[last]
        begin = self._starts[first] if self._ends[first] is not None else self._starts[first] + start - self._view_starts[first]
        stop = self._starts[last] + end - self._view_starts[last] if stop is None else stop
        return (begin, stop) if self.under is None else self.under.origin(begin, stop)


def _with_replaced(text: str, pattern: re.Pattern[str], instead: Callable[[str], str]) -> TextView | None:
    stretches = [(match.start(), match.end(), instead(match[0])) for match in pattern.finditer(text)]
    return _changed(text, stretches)


def _changed(text: str, stretches: list[tuple[int, int, str]]) -> TextView | None:
    return TextView(text, list(_without_far_text(text, stretches))) if stretches else None


def _without_far_text(text: str, stretches: list[tuple[int, int, str]]) -> Iterator[tuple[int, int, str]]:
    """The replacements, and a line break in place of text far from all of them, which is searched in the original."""
    at = -_CONTEXT_CHARS
    for start, end, instead in (*stretches, (len(text) + _CONTEXT_CHARS, len(text), "")):
        if start - at > 3 * _CONTEXT_CHARS:
            # The gap begins and ends at white space, so that no token is cut.
            low, high = at + _CONTEXT_CHARS, start - _CONTEXT_CHARS
            first, last = _SPACE.search(text, low, high), text.rfind(" ", low, high)
            if first is not None and last > first.start():
                yield first.start(), last, "\n"
        if end > start:
            yield start, end, instead
        at = end


def _unescape(escape: str) -> str:
    mark = escape[1]
    if mark in "ux":
        return chr(int(escape[2:], 16))
    return "" if mark in "\r\n" else _SIMPLE.get(mark, mark)


def unescaped(text: str) -> TextView | None:
    """A view with `\\n`, `\\"` and `\\u0041` decoded, and with lines continued by a backslash joined."""
    return _with_replaced(text, _ESCAPE, _unescape) if "\\" in text else None


def percent_decoded(text: str) -> TextView | None:
    """A view with `%41` decoded."""
    return _with_replaced(text, _PERCENT, lambda run: unquote(run, errors="replace")) if "%" in text else None


def glued(text: str) -> Iterator[TextView]:
    """Views with `"ab" + "cd"` as `"abcd"`, and with tokens joined that a line break splits.

    A sign at the beginning of a line may mark a quotation, a list or a diff, or belong to the token: both are tried.
    """
    whole = _with_replaced(text, _CONCAT, lambda _: "")
    breaks = [match.span() for match in _WRAP.finditer(text) if _cuts_a_token(text, *match.span())]
    unwrapped = _changed(text, [(start, end, "") for start, end in breaks])
    marks = [(start, end - len(text[start:end].lstrip()), "") for start, end in breaks]
    marked = _changed(text, marks) if any(text[start:end].strip() for start, end in breaks) else None
    yield from (view for view in (whole, unwrapped, marked) if view is not None)


def _cuts_a_token(text: str, start: int, end: int) -> bool:
    before, after = text[max(0, start - 80) : start].split()[-1], text[end : end + 80].split(None, 1)[0]
    if (_NEW_LINE.match(after) and not _FIELDS.search(before)) or before[0] == after[0] == "/":
        return False
    return len(before) + len(after) >= 16 and (_CUT.search(before) or _CUT.search(after)) is not None


def revealed(text: str) -> TextView | None:
    """A view without invisible characters and with full-width and look-alike letters as plain ones."""
    return _with_replaced(text, HIDDEN, visible_form) if may_contain_hidden(text) else None


def views(text: str) -> Iterator[TextView]:
    """All views of a text that differ from it. Escapes are decoded up to three times, as JSON inside JSON needs."""
    base: TextView | None = None
    for undo in (revealed, *(unescaped,) * _MAX_DEPTH, percent_decoded, percent_decoded):
        view = undo(text if base is None else base.text)
        if view is not None:
            view.under, base = base, view
            yield view
    for under in (None,) if base is None else (None, base):
        for view in glued(text if under is None else under.text):
            view.under = under
            yield view


_WINDOW_CHARS = 128_000
_MAX_TOKEN = 100_000
_OVERLAP = 20_000
_MIN_JOIN_CHECKS = 1_000
_REST_CHARS = 200


class TimeLimit:
    """A limit on this thread's processor time, which does not depend on the load of the machine."""

    def __init__(self, seconds: float) -> None:
        self._end = time.thread_time() + seconds

    @property
    def is_over(self) -> bool:
        return time.thread_time() >= self._end


class Detector:
    """Finds secrets: the user's own, known key formats, named values, values in known places, and random tokens."""

    def __init__(self, known: KnownSecrets | None) -> None:
        self._known = known or KnownSecrets()
        self._min_chars = min(MIN_CHARS, self._known.min_chars or MIN_CHARS)

    def find(self, text: str, limit: TimeLimit) -> list[SecretMatch]:
        """Every secret in the text, in order, without overlaps. If the time limit is reached, the rest is one match, `WITHHELD`."""
        hits: list[SecretMatch] = []
        for start, end in _windows(text):
            if limit.is_over:
                hits.append(SecretMatch(start, len(text), "WITHHELD", Certainty.KNOWN))
                break
            hits += (replace(hit, start=hit.start + start, end=hit.end + start) for hit in self._find(text[start:end]))
        return merge_matches(hits)

    def _find(self, text: str) -> list[SecretMatch]:
        words = WordSet(text, self._min_chars)
        tokens = LongTokens(text, words.long)
        hits = [*self._read(text, words, tokens), *find_random(text, tokens), *find_encoded(tokens, self._certain)]
        for view in views(text):
            hits += self._in_view(view, merge_matches(hits))
        return merge_matches(hits)

    def across(self, left: str, right: str, limit: TimeLimit) -> list[SecretMatch]:
        """Secrets that cross the border of two texts, or are named before it and follow it. Positions are in `left + right`."""
        seam, whole = len(left), left + right
        before = [hit for hit in self.find(left, limit) if hit.end == seam]
        return [hit if _goes_on(before, hit, whole, seam) else replace(hit, end=seam) for hit in self.find(whole, limit)]

    def _certain(self, text: str) -> list[SecretMatch]:
        """Matches of everything except random tokens."""
        words = WordSet(text, self._min_chars)
        return self._read(text, words, LongTokens(text, words.long))

    def _read(self, text: str, words: WordSet, tokens: LongTokens) -> list[SecretMatch]:
        low, check = lowered(text), ValueCheck(text)
        surest = (*self._known.find(text, words.long), *find_key_formats(text, tokens))
        return [*surest, *find_carried(check, low, words.low), *find_named(check, low), *find_in_tables(text, low)]

    def _in_view(self, view: TextView, seen: list[SecretMatch]) -> list[SecretMatch]:
        """Matches in a view: new ones, and longer ones. A whole secret is not extended by the word that follows it."""
        found = []
        # Hostile text has matches with many joins each. When the checks are used up, the whole match counts.
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
            found.append(SecretMatch(begin, stop, hit.label, hit.certainty))
        return found


def _windows(text: str) -> Iterator[tuple[int, int]]:
    """Overlapping windows of the text that end at white space, unless a token is too long for that."""
    start, end = 0, 0
    while end < len(text):
        end = min(start + _WINDOW_CHARS, len(text))
        if end < len(text):
            cut = max(map(text.rfind, " \n\t", (end - _MAX_TOKEN,) * 3, (end,) * 3))
            end = cut if cut > start + _OVERLAP else end
        yield start, end
        space = _SPACE.search(text, end - _OVERLAP, end)
        start = space.start() if space else end


def _covers(seen: list[SecretMatch], start: int, end: int) -> bool:
    """Whether one of the sorted, disjoint matches contains the whole stretch."""
    at = bisect_right(seen, start, key=lambda hit: hit.start) - 1
    return at >= 0 and end <= seen[at].end


def _goes_on(before: list[SecretMatch], hit: SecretMatch, whole: str, seam: int) -> bool:
    """Whether a match really crosses the border: it was not complete before it, or the text after it cannot be the next word."""
    if not hit.start < seam < hit.end:
        return True
    return not any(complete.start <= hit.start for complete in before) or _is_rest(whole[seam : hit.end])


def _is_rest(text: str) -> bool:
    """Whether the text reads like the end of a token and not like the beginning of a word or line."""
    if any(map(str.isdigit, text)):
        return True
    return len(text) > 3 and (not (text.islower() or text.istitle() or text.isupper()) or wordiness(text) < 0.5)


def lowered(text: str) -> str:
    """Lower case without moving any character (the Turkish İ would become two)."""
    return text.lower() if text.isascii() else text.replace("\u0130", "i").lower()

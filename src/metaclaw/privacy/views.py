"""Other readings of a text in which a secret may stand whole: unescaped, percent-decoded, glued together, nothing hidden.

A view knows for each of its stretches where it came from, so that what is found in it can be taken out of the original.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from urllib.parse import unquote

from metaclaw.privacy.unicode import HIDDEN, may_hide, unhidden

_MAX_DEPTH = 3
_WINDOW = 160
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[nrtbf\"'\\/]|\r?\n[ \t]*)")
_PERCENT = re.compile(r"%[0-9a-fA-F]{2}(?:%[0-9a-fA-F]{2})*")
_E = r"[A-Za-z0-9+/_=.:@!*%~$-]"
_SPACE = re.compile(r"\s")
_CONCAT = re.compile(
    r"[\"'`](?<=[^\s\"'`].)[ \t]{0,8}(?:\+|\.\.?|&|\\)?[ \t]{0,8}(?:\r?\n[ \t]{0,40})?(?:\+|\.\.?|&|\|\|)?[ \t]{0,8}"
    r"[rbfu]{0,2}[\"'`](?=[^\s\"'`])"
)
_INDENT = r"[ \t]{0,2}(?:[>+|#*-][ \t]{0,2})?"
# A break inside a token: something long touches it on one side at least, and something on the other.
_WRAP = re.compile(
    rf"\n(?:(?:(?<={_E}{{8}}\n)|(?<={_E}{{8}}\r\n)){_INDENT}(?={_E})|(?:(?<={_E}\n)|(?<={_E}\r\n)){_INDENT}(?={_E}{{8}}))"
)
# What begins a line of its own: a date, an address, a setting.
_NEW_LINE = re.compile(r"\d{4}-\d\d-\d\d|\d\d:\d\d:|\[\d|https?://|[A-Za-z_][\w.-]*=[^=\s]")
_FIELDS = re.compile("[;&?]")
_CUT = re.compile(r"\d|[a-z][A-Z]|[A-Z]{6}|://")
_SIMPLE = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}


class View:
    """A text made from another by replacing stretches, and the way back."""

    __slots__ = ("_ends", "_starts", "_view_starts", "joins", "text")

    def __init__(self, original: str, stretches: list[tuple[int, int, str]]) -> None:
        pieces: list[str] = []
        self._view_starts: list[int] = []
        self._starts: list[int] = []
        self._ends: list[int | None] = []
        self.joins: list[int] = []
        """Where, in the view, something that stood between two stretches is gone."""
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
        """The stretch of the original that a stretch of the view was made from."""
        first = bisect_right(self._view_starts, start) - 1
        last = bisect_right(self._view_starts, end - 1) - 1
        stop = self._ends[last]
        begin = self._starts[first] if self._ends[first] is not None else self._starts[first] + start - self._view_starts[first]
        return begin, self._starts[last] + end - self._view_starts[last] if stop is None else stop


def _replaced(text: str, pattern: re.Pattern[str], instead: Callable[[str], str]) -> View | None:
    stretches = [(found.start(), found.end(), instead(found[0])) for found in pattern.finditer(text)]
    return _changed(text, stretches)


def _changed(text: str, stretches: list[tuple[int, int, str]]) -> View | None:
    return View(text, list(_near(text, stretches))) if stretches else None


def _near(text: str, stretches: list[tuple[int, int, str]]) -> Iterator[tuple[int, int, str]]:
    """The same, with what is far from any of them shrunk to a line break: it reads as it did in the original."""
    at = -_WINDOW
    for start, end, instead in (*stretches, (len(text) + _WINDOW, len(text), "")):
        if start - at > 3 * _WINDOW:
            # The gap begins and ends at white space, so that no token is cut.
            first, last = _SPACE.search(text, at + _WINDOW, start - _WINDOW), text.rfind(" ", at + _WINDOW, start - _WINDOW)
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


def unescaped(text: str) -> View | None:
    """With `\\n`, `\\"` and `\\u0041` as the characters they stand for, and lines continued by a backslash whole."""
    return _replaced(text, _ESCAPE, _unescape) if "\\" in text else None


def unquoted(text: str) -> View | None:
    """With `%41` as the character it stands for."""
    return _replaced(text, _PERCENT, lambda run: unquote(run, errors="replace")) if "%" in text else None


def glued(text: str) -> Iterator[View]:
    """With `"ab" + "cd"` as `"abcd"`, and with tokens that a line break cuts in two in one piece.

    A sign at the beginning of a line may be a mark (a quote's, a list's, a change's) or belong to the token: both are tried.
    """
    whole = _replaced(text, _CONCAT, lambda _: "")
    breaks = [found.span() for found in _WRAP.finditer(text) if _cuts_a_token(text, *found.span())]
    unwrapped = _changed(text, [(start, end, "") for start, end in breaks])
    marks = [(start, end - len(text[start:end].lstrip()), "") for start, end in breaks]
    marked = _changed(text, marks) if any(text[start:end].strip() for start, end in breaks) else None
    yield from (view for view in (whole, unwrapped, marked) if view is not None)


def _cuts_a_token(text: str, start: int, end: int) -> bool:
    before, after = text[max(0, start - 80) : start].split()[-1], text[end : end + 80].split(None, 1)[0]
    if (_NEW_LINE.match(after) and not _FIELDS.search(before)) or before[0] == after[0] == "/":
        return False
    return len(before) + len(after) >= 16 and (_CUT.search(before) or _CUT.search(after)) is not None


def revealed(text: str) -> View | None:
    """Without invisible characters, and with full-width and look-alike letters as plain ones."""
    return _replaced(text, HIDDEN, unhidden) if may_hide(text) else None


class Chain:
    """A view of a view of a text."""

    __slots__ = ("_inner", "_view", "joins", "text")

    def __init__(self, view: View, inner: "Chain | None" = None) -> None:
        self._view, self._inner = view, inner
        self.text, self.joins = view.text, view.joins

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """The stretch of the first text."""
        start, end = self._view.origin(start, end)
        return (start, end) if self._inner is None else self._inner.origin(start, end)


def views(text: str) -> Iterator[Chain]:
    """Every other reading of the text that differs from it; escapes are undone up to three times, as JSON in JSON needs."""
    base: Chain | None = None
    for undo in (revealed, *(unescaped,) * _MAX_DEPTH, unquoted, unquoted):
        view = undo(text if base is None else base.text)
        if view is not None:
            base = Chain(view, base)
            yield base
    for under in (None,) if base is None else (None, base):
        for view in glued(text if under is None else under.text):
            yield Chain(view, under)

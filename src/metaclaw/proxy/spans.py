"""Where values stand in raw JSON bytes.

msgspec gives the exact bytes of every value but not their place, so places are found by walking from one to the next, and each
is checked against the bytes it must hold. What cannot be found beyond doubt raises UnsafeBytesError.
"""

import re
from functools import lru_cache
from typing import TypeAlias

import msgspec

Span: TypeAlias = tuple[int, int]
"""Begin and end of a value, in bytes."""

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BLANKS = b" \t\n\r"
_SPACE, _COMMA, _COLON, _BACKSLASH, _BRACE = b" ,:\\{"


class UnsafeBytesError(Exception):
    """The place of a value cannot be told from the bytes beyond doubt."""


class _Messages(msgspec.Struct):
    items: list[msgspec.Raw] = msgspec.field(name="messages")


class _Input(msgspec.Struct):
    items: list[msgspec.Raw] = msgspec.field(name="input")


_LISTS: dict[str, "msgspec.json.Decoder[_Messages] | msgspec.json.Decoder[_Input]"] = {
    "messages": msgspec.json.Decoder(_Messages),
    "input": msgspec.json.Decoder(_Input),
}


class Document:
    """A JSON object in bytes, searched only as far as somebody asks."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._span = _object_span(body)
        self._fields: dict[str, Span] | None = None
        self._items: dict[str, _Items] = {}

    def field(self, key: str) -> Span:
        """Where the value of a top-level key stands."""
        if self._fields is None:
            self._fields = field_spans(self._body, self._span)
        if key not in self._fields:
            raise UnsafeBytesError(f"the body has no {key}")
        return self._fields[key]

    def item(self, key: str, index: int) -> Span:
        """Where an item of the list under a top-level key (`messages` or `input`) stands."""
        if key not in self._items:
            self._items[key] = self._find_items(key)
        return self._items[key].span(index)

    @property
    def last_field_end(self) -> int:
        """Where a further field can be written."""
        begin, end = self._span
        if self._body[begin : begin + 1] + self._body[end - 1 : end] != b"{}":
            raise UnsafeBytesError("the body is not an object")
        return skip_blanks_back(self._body, end - 1)

    def _find_items(self, key: str) -> "_Items":
        begin = _quick_value(self._body, self._span, key)
        if begin is not None:
            return _Items(self._body, begin, _LISTS[key].decode(self._body).items)
        span = self.field(key)
        return _Items(self._body, span[0], _ITEMS.decode(self._body[span[0] : span[1]]))


class _Items:
    """The items of the list that begins at `begin`, located one after the other."""

    def __init__(self, body: bytes, begin: int, raws: list[msgspec.Raw]) -> None:
        self._body = body
        self._raws = raws
        self._spans: list[Span] = []
        self._at = begin + 1

    def span(self, index: int) -> Span:
        if index >= len(self._raws):
            raise UnsafeBytesError(f"there is no message {index} in the body")
        body, at, spans = self._body, self._at, self._spans
        for raw in self._raws[len(spans) : index + 1]:
            if spans:
                at = _after(body, at, _COMMA)
            if body[at] <= _SPACE:
                at = skip_blanks(body, at)
            value = bytes(raw)
            if not body.startswith(value, at):
                raise _surprise(at)
            end = at + len(value)
            spans.append((at, end))
            at = end
        self._at = at
        return spans[index]


def top_level_spans(body: bytes) -> dict[str, Span]:
    """Where the value of each key of the body, an object, stands."""
    return field_spans(body, _object_span(body))


def value_span(body: bytes, span: Span, key: str) -> Span:
    """Where the value of `key` stands in the object at `span`."""
    begin = _quick_value(body, span, key)
    if begin is not None:
        raw = _FIELDS.decode(body[span[0] : span[1]]).get(key)
        if raw is not None and body.startswith(value := bytes(raw), begin):
            return begin, begin + len(value)
    spans = field_spans(body, span)
    if key not in spans:
        raise UnsafeBytesError(f"there is no {key}")
    return spans[key]


def field_spans(body: bytes, span: Span) -> dict[str, Span]:
    """Where each value of the object at `span` stands."""
    begin, end = span
    spans: dict[str, Span] = {}
    at, separator = begin, _BRACE
    for key, raw in _FIELDS.decode(body[begin:end]).items():
        at, separator = skip_blanks(body, _after(body, at, separator)), _COMMA
        at = skip_blanks(body, _after(body, _after_key(body, at, key), _COLON))
        value = bytes(raw)
        if not body.startswith(value, at):
            raise _surprise(at)
        spans[key] = (at, at + len(value))
        at += len(value)
    if spans and skip_blanks(body, at) != end - 1:
        raise UnsafeBytesError("a key stands twice in one object")
    return spans


def skip_blanks(body: bytes, at: int) -> int:
    """The first byte at or behind `at` that is not white space."""
    while body[at] in _BLANKS:
        at += 1
    return at


def skip_blanks_back(body: bytes, at: int) -> int:
    """The place behind the last byte before `at` that is not white space."""
    while body[at - 1] in _BLANKS:
        at -= 1
    return at


def _object_span(body: bytes) -> Span:
    if body.startswith(b"{") and body.endswith(b"}"):
        return 0, len(body)
    return skip_blanks(body, 0), len(body.rstrip(_BLANKS))


def _quick_value(body: bytes, span: Span, key: str) -> int | None:
    """Where the value of `key` begins, if one look proves it.

    In valid JSON `"key":` whose first quote is not escaped is a key at some depth, and where only one bracket was opened before,
    that depth is the object's own. Without a second such key it is the one.
    """
    begin, end = span
    token = _token(key)
    at = body.find(token, begin, end)
    if at < 0 or body[at - 1] == _BACKSLASH or body.find(token, at + 1, end) >= 0:
        return None
    if body.count(b"{", begin, at) != 1 or body.count(b"[", begin, at):
        return None
    return skip_blanks(body, at + len(token))


@lru_cache(maxsize=64)
def _token(key: str) -> bytes:
    return b'"%b":' % key.encode()


def _after_key(body: bytes, at: int, key: str) -> int:
    plain = b'"%b"' % key.encode()
    if body.startswith(plain, at):
        return at + len(plain)
    written = _STRING.match(body, at)
    if written is None or msgspec.json.decode(written[0]) != key:
        raise UnsafeBytesError("a key stands twice in one object")
    return written.end()


def _after(body: bytes, at: int, expected: int) -> int:
    if body[at] != expected:
        at = skip_blanks(body, at)
        if body[at] != expected:
            raise _surprise(at)
    return at + 1


def _surprise(at: int) -> UnsafeBytesError:
    return UnsafeBytesError(f"byte {at} is not what was expected there")

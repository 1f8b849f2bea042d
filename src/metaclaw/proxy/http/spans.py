"""Where values stand in raw JSON bytes.

msgspec gives the exact bytes of every value but not their place, so places are found by walking from one to the next, and each
is checked against the bytes it must hold. What cannot be found beyond doubt raises UnsafeBytesError.
"""

import re
from functools import lru_cache
from typing import TypeAlias, TypedDict

import msgspec

Span: TypeAlias = tuple[int, int]
"""Begin and end of a value, in bytes."""

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BLANKS = b" \t\n\r"
_SPACE, _COMMA, _COLON, _BACKSLASH, _BRACE, _BRACKET, _CLOSING = b" ,:\\{[]"


class _Messages(TypedDict, total=False):
    messages: list[msgspec.Raw]


class _Input(TypedDict, total=False):
    input: list[msgspec.Raw]


_encode = msgspec.json.Encoder().encode
_messages = msgspec.json.Decoder(_Messages).decode
_input = msgspec.json.Decoder(_Input).decode


class UnsafeBytesError(Exception):
    """The place of a value cannot be told from the bytes beyond doubt."""


class Document:
    """A JSON object in bytes, searched only as far as somebody asks."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._span = _object_span(body)
        self._fields: dict[str, Span] | None = None
        self._items: dict[str, tuple[list[msgspec.Raw], list[Span]]] = {}

    def field(self, key: str) -> Span:
        """Where the value of a top-level key stands."""
        if self._fields is None:
            self._fields = field_spans(self._body, self._span)
        if key not in self._fields:
            raise UnsafeBytesError(f"the body has no {key}")
        return self._fields[key]

    def item(self, key: str, index: int) -> Span:
        """Where an item of the list under a top-level key (`messages` or `input`) stands."""
        found = self._items.get(key)
        if found is None:
            found = self._items[key] = self._find_items(key)
        raws, spans = found
        if index >= len(spans):
            raise UnsafeBytesError(f"there is no message {index} in the body")
        span = spans[index]
        if not self._body.startswith(bytes(raws[index]), span[0]):
            raise _surprise(span[0])
        return span

    def _find_items(self, key: str) -> tuple[list[msgspec.Raw], list[Span]]:
        begin = _only_value(self._body, self._span, key)
        if begin is None:
            begin, end = self.field(key)
            raws = _ITEMS.decode(self._body[begin:end])
        else:
            raws = raw_items(self._body, key)
        return raws, item_spans(self._body, begin, raws)

    @property
    def last_field_end(self) -> int:
        """Where a further field can be written."""
        begin, end = self._span
        if self._body[begin : begin + 1] + self._body[end - 1 : end] != b"{}":
            raise UnsafeBytesError("the body is not an object")
        return skip_blanks_back(self._body, end - 1)


def raw_items(body: bytes, key: str) -> list[msgspec.Raw]:
    """The items of the list under a top-level key (`messages` or `input`), as bytes; where the key stands twice, of the last."""
    return (_messages(body).get("messages") if key == "messages" else _input(body).get("input")) or []


def item_spans(body: bytes, begin: int, raws: list[msgspec.Raw]) -> list[Span]:
    """Where each item of the list that begins at `begin` stands, if `raws` are its items: each length leads to the next."""
    if body[begin] != _BRACKET:
        raise _surprise(begin)
    spans: list[Span] = []
    at = begin + 1
    for raw in raws:
        if spans:
            if body[at] != _COMMA:
                at = skip_blanks(body, at)
                if body[at] != _COMMA:
                    raise _surprise(at)
            at += 1
        if body[at] <= _SPACE:
            at = skip_blanks(body, at)
        end = at + len(raw)
        spans.append((at, end))
        at = end
    return spans


def written_spans(body: bytes, key: str, raws: list[bytes]) -> list[Span] | None:
    """Where each item of the list under a top-level key stands, if they stand there exactly as `raws` say."""
    begin = _only_value(body, (0, len(body)), key)
    if begin is None or body[begin] != _BRACKET:
        return None
    spans: list[Span] = []
    at = begin + 1
    for raw in raws:
        if not body.startswith(raw, at):
            return None
        end = at + len(raw)
        spans.append((at, end))
        if body[end] != _COMMA:
            break
        at = end + 1
    return spans if len(spans) == len(raws) and body[spans[-1][1]] == _CLOSING else None


def top_level_spans(body: bytes) -> dict[str, Span]:
    """Where the value of each key of the body, an object, stands."""
    return field_spans(body, _object_span(body))


def value_span(body: bytes, span: Span, key: str) -> Span:
    """Where the value of `key` stands in the object at `span`."""
    begin = _only_value(body, span, key)
    if begin is not None:
        raw = _FIELDS.decode(body[span[0] : span[1]]).get(key)
        if raw is not None and body.startswith(value := bytes(raw), begin):
            return begin, begin + len(value)
    spans = field_spans(body, span)
    if key not in spans:
        raise UnsafeBytesError(f"there is no {key}")
    return spans[key]


def string_span(body: bytes, span: Span, key: str, value: str) -> Span:
    """The same where the value is this string: mostly it stands there as we would write it, and need not be read again."""
    begin = _only_value(body, span, key)
    if begin is not None and body.startswith(written := _encode(value), begin):
        return begin, begin + len(written)
    return value_span(body, span, key)


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


def first_value(body: bytes, span: Span, key: str) -> int | None:
    """Where the value of the first `key` of the object at `span` begins, if one look proves it.

    In valid JSON `"key":` whose first quote is not escaped is a key at some depth, and where only one bracket was opened before,
    that depth is the object's own.
    """
    begin, end = span
    token = _token(key)
    at = body.find(token, begin, end)
    if at < 0 or body[at - 1] == _BACKSLASH or body.count(b"{", begin, at) != 1 or body.count(b"[", begin, at):
        return None
    return skip_blanks(body, at + len(token))


def _only_value(body: bytes, span: Span, key: str) -> int | None:
    """The same, if there is no second such key."""
    begin = first_value(body, span, key)
    return None if begin is None or body.find(_token(key), begin, span[1]) >= 0 else begin


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

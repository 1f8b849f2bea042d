"""Decode a request's body, and find the positions of its values in the JSON bytes.

An agent sends its whole conversation with every request, and nearly all of it has been seen before.
So the top-level fields are decoded at once, but each message of a long body stays bytes until it is
needed. A body with an unusual shape is decoded completely.

msgspec gives the bytes of every value but not their position. Positions are found by walking from
one value to the next, and each is checked against the bytes. A position that cannot be found with
certainty raises UnsafeBytesError."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias, cast, overload

import msgspec

from metaclaw.domain.chat import Json, Wire
from metaclaw.errors import WireError
from metaclaw.wires import wire_format, wire_formats

Span: TypeAlias = tuple[int, int]
"""Begin and end of a value, in bytes."""

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BLANKS = b" \t\n\r"
_SPACE, _COMMA, _COLON, _BACKSLASH, _BRACE, _BRACKET = b" ,:\\{["


_LISTS = {
    key: msgspec.json.Decoder(
        msgspec.defstruct("Body", [(key, list[msgspec.Raw], msgspec.field(default_factory=list))])
    ).decode
    for key in {format_.list_key for format_ in wire_formats()}
}
_COUNTED = {key: {key, "tools", "functions", "system"} for key in _LISTS}
_encode = msgspec.json.Encoder().encode


class UnsafeBytesError(Exception):
    """The position of a value cannot be found with certainty."""


class JsonDocument:
    """A JSON object in bytes, which is searched for the positions of its values when they are
    needed.
    """

    def __init__(self, body: bytes, listed: "Listed | None" = None) -> None:
        self._body = body
        self._listed = listed
        self._span = _object_span(body)
        self._fields: dict[str, Span] | None = None
        self._items: dict[str, tuple[list[msgspec.Raw], list[Span]]] = {}

    def has(self, key: str) -> bool:
        if self._fields is None:
            self._fields = field_spans(self._body, self._span)
        return key in self._fields

    def field(self, key: str) -> Span:
        if self._fields is None:
            listed = self._listed
            self._fields = (
                field_spans(self._body, self._span) if listed is None else listed.field_spans()
            )
        if key not in self._fields:
            raise UnsafeBytesError(f"the body has no {key}")
        return self._fields[key]

    def item(self, key: str, index: int) -> Span:
        """The span of an item of the list under a top-level key (`messages` or `input`)."""
        if key not in self._items:
            begin, end = self.field(key)
            raws = _ITEMS.decode(self._body[begin:end])
            self._items[key] = raws, item_spans(self._body, begin, raws)
        raws, spans = self._items[key]
        if index >= len(spans):
            raise UnsafeBytesError(f"there is no message {index} in the body")
        span = spans[index]
        if not self._body.startswith(bytes(raws[index]), span[0]):
            raise _surprise(span[0])
        return span

    @property
    def last_field_end(self) -> int:
        """The offset at which a further field can be written."""
        begin, end = self._span
        if self._body[begin : begin + 1] + self._body[end - 1 : end] != b"{}":
            raise UnsafeBytesError("the body is not an object")
        return skip_blanks_back(self._body, end - 1)


def raw_items(body: bytes, key: str) -> list[msgspec.Raw]:
    """The items of the list under a top-level key (`messages` or `input`), as bytes. Of a duplicate
    key, the last one counts.
    """
    raws: list[msgspec.Raw] = getattr(_LISTS[key](body), key)
    return raws


def item_spans(body: bytes, begin: int, raws: list[msgspec.Raw]) -> list[Span]:
    """The span of each item of the list at `begin`, whose items are `raws`: the length of each
    leads to the next.
    """
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


def value_span(body: bytes, span: Span, key: str) -> Span:
    """The span of the value of `key` in the object at `span`."""
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
    """The same for a value known to be this string: if the bytes are as we would encode it, they
    need not be decoded.
    """
    begin = _only_value(body, span, key)
    if begin is not None and body.startswith(written := _encode(value), begin):
        return begin, begin + len(written)
    return value_span(body, span, key)


def field_spans(body: bytes, span: Span) -> dict[str, Span]:
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
        raise UnsafeBytesError("an object has the same key twice")
    return spans


def skip_blanks(body: bytes, at: int) -> int:
    """The offset of the first byte from `at` on that is not white space."""
    while body[at] in _BLANKS:
        at += 1
    return at


def skip_blanks_back(body: bytes, at: int) -> int:
    """The offset behind the last byte before `at` that is not white space."""
    while body[at - 1] in _BLANKS:
        at -= 1
    return at


def _object_span(body: bytes) -> Span:
    if body.startswith(b"{") and body.endswith(b"}"):
        return 0, len(body)
    return skip_blanks(body, 0), len(body.rstrip(_BLANKS))


def first_value(body: bytes, span: Span, key: str) -> int | None:
    """The offset of the value of the first `key` in the object at `span`, if a text search alone
    proves it; else None.

    In valid JSON, `"key":` with an unescaped first quote is a key at some depth. If only one
    bracket was opened before it, it is a key of the object itself."""
    begin, end = span
    token = _token(key)
    at = body.find(token, begin, end)
    if (
        at < 0
        or body[at - 1] == _BACKSLASH
        or body.count(b"{", begin, at) != 1
        or body.count(b"[", begin, at)
    ):
        return None
    return skip_blanks(body, at + len(token))


def _only_value(body: bytes, span: Span, key: str) -> int | None:
    """The same, but None if the key occurs again."""
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
        raise UnsafeBytesError("an object has the same key twice")
    return written.end()


def _after(body: bytes, at: int, expected: int) -> int:
    if body[at] != expected:
        at = skip_blanks(body, at)
        if body[at] != expected:
            raise _surprise(at)
    return at + 1


def _surprise(at: int) -> UnsafeBytesError:
    return UnsafeBytesError(f"byte {at} is not what was expected there")


_decode = msgspec.json.Decoder().decode
_NULL = b"null"
MAX_ITEMS = 20_000
"""Default of `proxy.max_items`."""
FREE_KEYS = 64
"""Top-level keys that are no items: requests have fewer. Each further key counts as one."""
_BYTES_PER_ITEM = 200
"""A body with fewer bytes per allowed item is decoded without counting its commas first."""
_COMMAS_PER_ITEM = 20
MAX_INLINE_BYTES = 4 * 1024 * 1024
"""A larger body is checked in a child process before it is decoded (`body_check`), so that a
refusal does not stall the event loop. So is a body above `SMALL_BYTES` that has many values, or
that only the lenient decoder might read."""
SMALL_BYTES = 256 * 1024
_SHORT_BYTES = 16 * 1024
"""The messages of a body of at most this size are decoded at once."""
_MANY_COMMAS = 50_000
_TO_COMMA = re.compile(rb'[^",]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^",]*+)*+,', re.DOTALL)


class NotStrictError(Exception):
    """The strict decoder refused the body."""


def is_costly(body: bytes) -> bool:
    """Whether decoding this body may stall the event loop."""
    size = len(body)
    return size > SMALL_BYTES and (size > MAX_INLINE_BYTES or body.count(b",") > _MANY_COMMAS)


class _Made(Sequence[Json]):
    """Messages of which each is made on first use."""

    __slots__ = ("_known", "_length", "_make")

    def __init__(self, length: int, make: Callable[[int], Json]) -> None:
        self._length, self._make = length, make
        self._known: dict[int, Json] = {}

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Json: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Json]: ...
    def __getitem__(self, index: int | slice) -> "Json | Sequence[Json]":
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(self._length))]
        if index not in self._known:
            self._known[index] = self._make(index)
        return self._known[index]


def _undecoded(raws: list[bytes]) -> Sequence[Json]:
    """Messages that are decoded on first use."""

    def decoded(index: int) -> Json:
        raw = raws[index]
        try:
            return cast("Json", _decode(raw))
        except msgspec.DecodeError:
            return parse_leniently(raw)

    return _Made(len(raws), decoded)


def _viewed(items: Sequence[Json], view: Callable[[Json], Json]) -> Sequence[Json]:
    """Messages as the messages wire has them; each is converted on first use."""
    return _Made(len(items), lambda index: view(items[index]))


class Listed(msgspec.Struct, frozen=True):
    """The messages of a body, their bytes and their positions. `outline` is the body with `null` at
    `begin` instead of its messages, which take `longer` more bytes."""

    items: Sequence[Json]
    raws: list[bytes]
    spans: list[Span]
    outline: bytes
    begin: int
    longer: int

    def field_spans(self) -> dict[str, Span]:
        """The spans of the top-level fields in the body, without reading the messages again."""
        found = field_spans(self.outline, _object_span(self.outline))
        return {key: (self._moved(begin), self._moved(end)) for key, (begin, end) in found.items()}

    def _moved(self, at: int) -> int:
        return at if at <= self.begin else at + self.longer


class Body(dict[str, Json]):
    """The fields of a body, without its messages if those are in `listed`.

    `item_count` counts messages, tools, blocks of system text and keys beyond `FREE_KEYS`; parts of
    messages are counted when they are read (`take_parts`)."""

    __slots__ = ("item_count", "listed", "max_items")

    def __init__(
        self,
        fields: dict[str, Json],
        listed: Listed | None = None,
        *,
        item_count: int = 0,
        max_items: int = MAX_ITEMS,
    ) -> None:
        super().__init__(fields)
        self.listed = listed
        self.item_count = item_count
        self.max_items = max_items

    def take_parts(self, count: int) -> None:
        """Count `count` parts of messages. Raises WireError 413 beyond `max_items`."""
        if self.item_count + count > self.max_items:
            raise _too_many(self.max_items)


def read(wire: Wire, body: bytes, max_items: int = MAX_ITEMS, *, is_lenient: bool = True) -> Body:
    """Decode a body. Raises WireError if it is not a JSON object, or has more than `max_items`
    items (413). Unless `is_lenient`, raises NotStrictError where only a lenient decoder might read
    it."""
    key = wire_format(wire).list_key
    if len(body) > _BYTES_PER_ITEM * max_items:
        _check_commas(body, max_items)
    try:
        found = _read_in_part(key, body, max_items)
    except (msgspec.MsgspecError, UnsafeBytesError, UnicodeDecodeError, IndexError, RecursionError):
        found = None  # decode all of it: either that works, or it gives the error message
    fields, listed = (parse_object(body, is_lenient=is_lenient), None) if found is None else found
    if (view := wire_format(wire).view) is not None:
        fields = view(fields)
        if listed is not None:
            items = _viewed(listed.items, wire_format(wire).view_item)
            listed = msgspec.structs.replace(listed, items=items)
    count = _count(fields, key) + (0 if listed is None else len(listed.raws))
    return Body(fields, listed, item_count=_checked(count, max_items), max_items=max_items)


def messages_of(wire: Wire, fields: Mapping[str, Json]) -> Sequence[Json]:
    """The messages of a body; empty if they are not a list."""
    listed = fields.listed if isinstance(fields, Body) else None
    messages = fields.get(wire_format(wire).list_key) if listed is None else listed.items
    return messages if isinstance(messages, Sequence) and not isinstance(messages, str) else ()


def check(wire: Wire, body: bytes, max_items: int) -> None:
    """Raise the WireError that `read`, or counting the parts of messages, raises for this body."""
    found = read(wire, body, max_items)
    found.take_parts(sum(map(count_parts, messages_of(wire, found))))


def check_items(wire: Wire, fields: Mapping[str, Json], max_items: int) -> None:
    """Raise WireError 413 if a body has more than `max_items` messages, parts and tools."""
    key = wire_format(wire).list_key
    messages = fields.get(key)
    parts = sum(map(count_parts, messages)) if isinstance(messages, list) else 0
    _checked(_count(fields, key) + parts, max_items)


def count_parts(item: Json) -> int:
    """Count the parts of a message: blocks of content, also those inside tool results, and tool
    calls.
    """
    if not isinstance(item, dict):
        return 0
    content = item.get("content")
    if len(item) == 2 and isinstance(content, str) and "role" in item:
        return 0
    count = 0
    if isinstance(content, list):
        count = len(content)
        for block in content:
            nested = block.get("content") if isinstance(block, dict) else None
            if isinstance(nested, list):
                count += len(nested)
    for name in ("tool_calls", "output", "tools"):
        parts = item.get(name)
        if isinstance(parts, list):
            count += len(parts)
    return count


def _count(fields: Mapping[str, Json], key: str) -> int:
    count = max(0, len(fields) - (key in fields) - FREE_KEYS)
    for name in fields.keys() & _COUNTED[key]:
        found = fields[name]
        if isinstance(found, list):
            count += len(found)
    return count


def _check_commas(body: bytes, max_items: int) -> None:
    """Raise WireError 413 for a body with so many values that decoding it takes too long. Commas in
    strings do not count.
    """
    most = _COMMAS_PER_ITEM * max_items
    if body.count(b",") <= most:
        return
    at = 0
    for _ in range(most):
        found = _TO_COMMA.match(body, at)
        if found is None:
            return
        at = found.end()
    raise _too_many(max_items)


def _checked(count: int, max_items: int) -> int:
    if count > max_items:
        raise _too_many(max_items)
    return count


def _too_many(max_items: int) -> WireError:
    return WireError(
        f"the request has more than {max_items} messages, content parts, tools and top-level keys; "
        "raise proxy.max_items to allow more",
        status=413,
        code="request_too_large",
    )


def _read_in_part(key: str, body: bytes, max_items: int) -> tuple[dict[str, Json], Listed] | None:
    begin = first_value(body, (0, len(body)), key)
    if begin is None:
        return None
    if not body.isascii():
        body.decode("utf-8")  # msgspec does not check the bytes it skips
    raws = raw_items(body, key)
    if not raws:
        return None
    _checked(len(raws), max_items)
    spans = item_spans(body, begin, raws)
    end = skip_blanks(body, spans[-1][1])
    outline = body[:begin] + _NULL + body[end + 1 :]
    fields = _decode(outline)
    if not isinstance(fields, dict) or fields.pop(key, 0) is not None:
        return None  # the key occurs again, and the last one counts
    written = [body[start:stop] for start, stop in spans]
    # Most messages of a short body are needed, and one call decodes them sooner than many.
    is_short = len(body) <= _SHORT_BYTES
    items = _decode(body[begin : end + 1]) if is_short else _undecoded(written)
    return fields, Listed(items, written, spans, outline, begin, len(body) - len(outline))


def parse_object(body: bytes, *, is_lenient: bool = True) -> dict[str, Json]:
    """Decode a JSON object. Raises WireError for anything else."""
    try:
        value = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if not is_lenient:
            raise NotStrictError from error
        value = parse_leniently(body)
    except RecursionError as error:
        raise WireError("the JSON body is nested too deeply") from error
    if not isinstance(value, dict):
        raise WireError(f"the body must be a JSON object, not {_kind(value)}")
    return value


def parse_leniently(body: bytes) -> Json:
    """Decode JSON that may contain lone surrogates: JavaScript clients send them, and strict
    parsers refuse them.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise WireError(f"the body is not valid UTF-8 at byte {error.start}") from error
    try:
        return cast(Json, json.loads(text, parse_constant=_no_constant))
    except RecursionError as error:
        raise WireError("the JSON body is nested too deeply") from error
    except ValueError as error:
        raise WireError(f"the body is not valid JSON: {error}") from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _kind(value: Json) -> str:
    return {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(
        type(value), "a number"
    )

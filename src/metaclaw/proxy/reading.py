"""A request's body, read only as far as somebody looks: its fields at once, its messages one by one.

An agent sends its whole conversation with every request, and nearly all of it has been seen before. So messages stay bytes, with
their places in the body, until their meaning is needed. What cannot be found beyond doubt, or is odd in any other way, is read
whole.
"""

from collections.abc import Sequence
from typing import overload

import msgspec

from metaclaw.domain.chat import Json, Wire
from metaclaw.errors import WireError
from metaclaw.proxy.body import parse_leniently, parse_object
from metaclaw.proxy.spans import Span, UnsafeBytesError, first_value, item_spans, raw_items, skip_blanks

_decode = msgspec.json.Decoder().decode


_NULL = b"null"
_WHOLE_BYTES = 16 * 1024
"""Up to here it is cheaper to read a body whole."""


class Listed(Sequence[Json]):
    """The messages of a body, each decoded when it is first looked at. `raws` are their bytes, `spans` their places."""

    __slots__ = ("_known", "raws", "spans")

    def __init__(self, raws: list[bytes], spans: list[Span]) -> None:
        self.raws = raws
        self.spans = spans
        self._known: dict[int, Json] = {}

    def __len__(self) -> int:
        return len(self.raws)

    @overload
    def __getitem__(self, index: int) -> Json: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Json]: ...
    def __getitem__(self, index: int | slice) -> "Json | Sequence[Json]":
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self.raws)))]
        if index in self._known:
            return self._known[index]
        raw = self.raws[index]
        try:
            item: Json = _decode(raw)
        except msgspec.DecodeError:
            item = parse_leniently(raw)
        self._known[index] = item
        return item


class Body(dict[str, Json]):
    """The fields of a body. Where its messages were found in the bytes they are not among them, but are `listed`."""

    __slots__ = ("listed",)

    def __init__(self, fields: dict[str, Json], listed: Listed | None = None) -> None:
        super().__init__(fields)
        self.listed = listed


def list_key(wire: Wire) -> str:
    """Where a wire keeps its messages."""
    return "input" if wire is Wire.RESPONSES else "messages"


def read(wire: Wire, body: bytes) -> Body:
    """The body as a JSON object, or a WireError that says what is wrong with it."""
    if len(body) <= _WHOLE_BYTES:
        return Body(parse_object(body))
    try:
        found = _read_in_part(list_key(wire), body)
    except (msgspec.MsgspecError, UnsafeBytesError, UnicodeDecodeError, IndexError, RecursionError, WireError):
        found = None  # odd, or wrong; whoever reads all of it will say
    return Body(parse_object(body)) if found is None else found


def _read_in_part(key: str, body: bytes) -> Body | None:
    begin = first_value(body, (0, len(body)), key)
    if begin is None:
        return None
    if not body.isascii():
        body.decode("utf-8")  # bytes that are only skipped are not checked
    raws = raw_items(body, key)
    if not raws:
        return None
    spans = item_spans(body, begin, raws)
    end = skip_blanks(body, spans[-1][1])
    fields = _decode(body[:begin] + _NULL + body[end + 1 :])
    if not isinstance(fields, dict) or fields.pop(key, 0) is not None:
        return None  # the key stands there a second time, and that one counts
    return Body(fields, Listed([body[start:stop] for start, stop in spans], spans))

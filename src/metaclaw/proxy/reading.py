"""A request's body, read only as far as somebody looks: its fields at once, its messages one by one.

An agent sends its whole conversation with every request, and nearly all of it has been seen before. So messages stay bytes, with
their places in the body, until their meaning is needed. What cannot be found beyond doubt, or is odd in any other way, is read
whole. A short body is read whole at once; most clients write JSON as we would, which tells where each of its messages stands.
"""

from collections.abc import Sequence
from typing import NamedTuple, overload

import msgspec

from metaclaw.domain.chat import Json, Wire
from metaclaw.errors import WireError
from metaclaw.proxy.body import parse_leniently, parse_object
from metaclaw.proxy.spans import Span, UnsafeBytesError, first_value, item_spans, raw_items, skip_blanks, written_spans

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_RESPONSES = Wire.RESPONSES  # to look an enum's member up takes longer than to compare it

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


class Written(NamedTuple):
    """Messages that stand in a body exactly as we would write them: their bytes, and their places."""

    raws: list[bytes]
    spans: list[Span]


class Body(dict[str, Json]):
    """The fields of a body. Where its messages were found in the bytes they are not among them, but are `listed`; of messages that
    are among them, `written` tells where they stand, if they stand as we would write them."""

    __slots__ = ("listed", "written")

    def __init__(self, fields: dict[str, Json], listed: Listed | None = None, written: Written | None = None) -> None:
        super().__init__(fields)
        self.listed = listed
        self.written = written


def list_key(wire: Wire) -> str:
    """Where a wire keeps its messages."""
    return "input" if wire is _RESPONSES else "messages"


def read(wire: Wire, body: bytes) -> Body:
    """The body as a JSON object, or a WireError that says what is wrong with it."""
    if len(body) <= _WHOLE_BYTES:
        fields = parse_object(body)
        return Body(fields, written=_written(list_key(wire), fields, body))
    try:
        found = _read_in_part(list_key(wire), body)
    except (msgspec.MsgspecError, UnsafeBytesError, UnicodeDecodeError, IndexError, RecursionError, WireError):
        found = None  # odd, or wrong; whoever reads all of it will say
    return Body(parse_object(body)) if found is None else found


def _written(key: str, fields: dict[str, Json], body: bytes) -> Written | None:
    items = fields.get(key)
    if not isinstance(items, list) or not items:
        return None
    try:
        raws = list(map(_encode, items))
    except ValueError:
        return None  # a lone surrogate
    spans = written_spans(body, key, raws)
    return None if spans is None else Written(raws, spans)


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

"""A request's body, read only as far as somebody looks: its fields at once, its messages one by one.

An agent sends its whole conversation with every request, and nearly all of it has been seen before. So messages stay bytes, with
their places in the body, until their meaning is needed. What cannot be found beyond doubt, or is odd in any other way, is read
whole. A short body is read whole at once; most clients write JSON as we would, which tells where each of its messages stands.
"""

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, cast, overload

import msgspec

from metaclaw.domain.chat import Json, Wire
from metaclaw.errors import WireError
from metaclaw.proxy.http.client import too_large
from metaclaw.proxy.http.spans import Span, UnsafeBytesError, first_value, item_spans, raw_items, skip_blanks, written_spans

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode

_NULL = b"null"
_WHOLE_BYTES = 16 * 1024
"""Up to here it is cheaper to read a body whole."""
MAX_ITEMS = 20_000
"""Default of `proxy.max_items`."""
_BYTES_PER_ITEM = 200
"""A body with fewer bytes per allowed item cannot hold so many items that it takes long only to count them."""
_COMMAS_PER_ITEM = 20
_TO_COMMA = re.compile(rb'[^",]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^",]*+)*+,', re.DOTALL)


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
    are among them, `written` tells where they stand, if they stand as we would write them.

    `item_count` counts messages, tools and blocks of system text; parts of messages are counted as they are read (`take_parts`).
    """

    __slots__ = ("item_count", "listed", "max_items", "written")

    def __init__(
        self,
        fields: dict[str, Json],
        listed: Listed | None = None,
        written: Written | None = None,
        *,
        item_count: int = 0,
        max_items: int = MAX_ITEMS,
    ) -> None:
        super().__init__(fields)
        self.listed = listed
        self.written = written
        self.item_count = item_count
        self.max_items = max_items

    def take_parts(self, count: int) -> None:
        """Count the parts of the messages. WireError 413 when that is more than is allowed."""
        if self.item_count + count > self.max_items:
            raise _too_many(self.max_items)


def list_key(wire: Wire) -> str:
    """Where a wire keeps its messages."""
    return "input" if wire is Wire.RESPONSES else "messages"


def read(wire: Wire, body: bytes, max_items: int = MAX_ITEMS) -> Body:
    """The body as a JSON object, or a WireError that says what is wrong with it; 413 when it has more than `max_items` items."""
    key = list_key(wire)
    if len(body) <= _WHOLE_BYTES:
        fields = parse_object(body)
        count = _checked(_count(fields, key), max_items)
        return Body(fields, written=_written(key, fields, body), item_count=count, max_items=max_items)
    if len(body) > _BYTES_PER_ITEM * max_items:
        _check_commas(body, max_items)
    try:
        found = _read_in_part(key, body, max_items)
    except (msgspec.MsgspecError, UnsafeBytesError, UnicodeDecodeError, IndexError, RecursionError):
        found = None  # odd, or wrong; reading all of it will tell
    fields, listed = (parse_object(body), None) if found is None else found
    count = _count(fields, key) + (0 if listed is None else len(listed))
    return Body(fields, listed, item_count=_checked(count, max_items), max_items=max_items)


def check_items(wire: Wire, fields: Mapping[str, Json], max_items: int) -> None:
    """WireError 413 when the fields of a body hold more than `max_items` messages, parts and tools."""
    messages = fields.get(list_key(wire))
    parts = sum(map(count_parts, messages)) if isinstance(messages, list) else 0
    _checked(_count(fields, list_key(wire)) + parts, max_items)


def count_parts(item: Json) -> int:
    """How many parts a message has: blocks of content, also those inside tool results, and tool calls."""
    if not isinstance(item, dict):
        return 0
    content = item.get("content")
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
    return sum(len(found) for name in (key, "tools", "functions", "system") if isinstance(found := fields.get(name), list))


def _check_commas(body: bytes, max_items: int) -> None:
    """Refuse a body that would take long to read only because of the number of values in it. Commas in strings do not count."""
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
        f"the request has more than {max_items} messages, content parts and tools; raise proxy.max_items to allow more",
        status=413,
        code="request_too_large",
    )


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


def _read_in_part(key: str, body: bytes, max_items: int) -> tuple[dict[str, Json], Listed] | None:
    begin = first_value(body, (0, len(body)), key)
    if begin is None:
        return None
    if not body.isascii():
        body.decode("utf-8")  # bytes that are only skipped are not checked
    raws = raw_items(body, key)
    if not raws:
        return None
    _checked(len(raws), max_items)
    spans = item_spans(body, begin, raws)
    end = skip_blanks(body, spans[-1][1])
    fields = _decode(body[:begin] + _NULL + body[end + 1 :])
    if not isinstance(fields, dict) or fields.pop(key, 0) is not None:
        return None  # the key stands there a second time, and that one counts
    return fields, Listed([body[start:stop] for start, stop in spans], spans)


class BodySource(Protocol):
    """Where a body comes from."""

    async def read(self, max_bytes: int, timeout_s: float) -> bytes: ...


async def read_body(source: BodySource, headers: Mapping[str, str], *, max_bytes: int, timeout_s: float) -> bytes:
    """The whole body, unpacked. Raises WireError 413 when it is too large and whatever else the source raises."""
    declared = headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared) > max_bytes:
        raise too_large(max_bytes)
    body = await source.read(max_bytes, timeout_s)
    encoding = headers.get("content-encoding")
    if encoding is None:
        return body
    encoding = encoding.strip().lower()
    return body if encoding in ("", "identity") else unpack(body, encoding, max_bytes)


def unpack(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """Undo gzip or deflate, refusing to grow beyond the limit."""
    bits = {"gzip": 31, "x-gzip": 31, "deflate": 15}.get(encoding)
    if bits is None:
        raise WireError(
            f"content-encoding {encoding!r} is not understood; send gzip, deflate or none", status=415, code="unsupported_encoding"
        )
    stream = zlib.decompressobj(bits)
    try:
        unpacked = stream.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise WireError(f"the body is not valid {encoding}: {error}") from error
    if len(unpacked) > max_bytes:
        raise too_large(max_bytes)
    if not stream.eof:
        raise WireError(f"the {encoding} body ends too early")
    return unpacked


def parse_object(body: bytes) -> dict[str, Json]:
    """The body as a JSON object, or a WireError that says what is wrong with it."""
    try:
        value = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        value = parse_leniently(body)
    except RecursionError as error:
        raise WireError("the JSON body is nested too deeply") from error
    if not isinstance(value, dict):
        raise WireError(f"the body must be a JSON object, not {_kind(value)}")
    return value


def parse_leniently(body: bytes) -> Json:
    """JavaScript clients may send lone surrogates, which strict parsers refuse; they are a client's text all the same."""
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
    return {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")

"""Put placed skills into the client's own bytes, without rebuilding them.

Everything before the first insertion stays byte for byte what the client wrote, and so does everything between and after, so a
provider's prompt cache sees the same prefix it would have seen without us. Where a position cannot be found beyond doubt (a key
twice, a shape nobody expects), nothing is inserted and the result says why.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter

import msgspec

from metaclaw.domain.chat import Json, Wire
from metaclaw.domain.session import Anchor
from metaclaw.domain.turn import Placement, Splice
from metaclaw.proxy.http.body import Body, list_key
from metaclaw.proxy.http.spans import Document, Span, UnsafeBytesError, skip_blanks_back, string_span, top_level_spans, value_span

__all__ = ["Spliced", "UnsafeBytesError", "placement_splices", "top_level_spans"]

_SYSTEM_ROLES = ("system", "developer")
_EXTENSIBLE = ("user", "tool")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_BLANK_LINE = "\n\n"
_WRITTEN_BLANK_LINE = rb"\n\n"
_SYSTEM = -1
_OFFSET = attrgetter("offset")
_encode = msgspec.json.Encoder().encode


class Spliced(msgspec.Struct, frozen=True, gc=False):
    """What to insert and which placements that makes. `refused` says why nothing is inserted though something was to be.
    `has_tail` says that the line for the end of the conversation is in."""

    splices: tuple[Splice, ...] = ()
    placed: tuple[Placement, ...] = ()
    refused: str | None = None
    has_tail: bool = False


def placement_splices(
    wire: Wire,
    body: bytes,
    parsed: Mapping[str, Json],
    placements: Sequence[Placement],
    anchors: Sequence[Anchor],
    tail: str = "",
) -> Spliced:
    """Where the placements go in `body`, whose decoded form is `parsed`, and `tail` at the end of the conversation.

    A placement whose anchor is not among `anchors` is left out: the history it belonged to is gone. All others are made, or none.
    The tail is left out where it cannot stand safely behind everything else.
    """
    if tail:
        spliced = _splices(wire, body, parsed, _sort_out(placements, anchors), tail)
        if spliced.has_tail:
            return spliced
    return _splices(wire, body, parsed, _sort_out(placements, anchors), "")


def _splices(
    wire: Wire, body: bytes, parsed: Mapping[str, Json], sorted_out: tuple[dict[int, str], list[Placement]], tail: str
) -> Spliced:
    texts, placed = sorted_out
    if not placed and not tail:
        return Spliced()
    try:
        sketch = _Sketch(wire, body, parsed)
        if tail:
            last = sketch.last_index()
            if last is None:
                return Spliced()
            texts[last] = f"{texts[last]}{_BLANK_LINE}{tail}" if last in texts else tail
        for index, text in texts.items():
            if index == _SYSTEM:
                sketch.place_in_system(text)
            else:
                sketch.place_in_message(index, text)
    except (_RefusedError, UnsafeBytesError) as refusal:
        return Spliced(refused=str(refusal))
    except (msgspec.MsgspecError, UnicodeError, IndexError, RecursionError) as trouble:
        return Spliced(refused=f"the body cannot be walked: {trouble}")
    if len(sketch.splices) > 1:
        sketch.splices.sort(key=_OFFSET)
    return Spliced(tuple(sketch.splices), tuple(placed), None, bool(tail))


def _sort_out(placements: Sequence[Placement], anchors: Sequence[Anchor]) -> tuple[dict[int, str], list[Placement]]:
    """What is to be said at which message, and the placements that makes."""
    index_of = {anchor.digest: anchor.index for anchor in anchors}
    texts: dict[int, str] = {}
    placed: list[Placement] = []
    for placement in placements:
        index = index_of.get(placement.anchor) if placement.anchor else _SYSTEM
        if index is not None:
            texts[index] = f"{texts[index]}{_BLANK_LINE}{placement.text}" if index in texts else placement.text
            placed.append(placement)
    return texts, placed


class _RefusedError(Exception):
    """The bytes do not allow a safe insertion."""


class _Sketch:
    """A body, the spans found in it, and the insertions decided so far."""

    def __init__(self, wire: Wire, body: bytes, parsed: Mapping[str, Json]) -> None:
        self.splices: list[Splice] = []
        self._wire = wire
        self._body = body
        self._parsed = parsed
        self._list_key = list_key(wire)
        self._listed = parsed.listed if isinstance(parsed, Body) else None
        self._written = parsed.written if isinstance(parsed, Body) else None
        self._searched: Document | None = None

    @property
    def _document(self) -> Document:
        """The body, to be searched where its messages are not known to stand as we would write them."""
        if self._searched is None:
            self._searched = Document(self._body)
        return self._searched

    def place_in_system(self, text: str) -> None:
        """At the end of what the client says as system."""
        _PLACES[self._wire](self, text)

    def place_in_message(self, index: int, text: str) -> None:
        """At the end of the message with this index."""
        message = self._parsed.get(self._list_key) if self._listed is None else None
        if isinstance(message, str) and self._list_key == "input":
            if index:
                raise _RefusedError("a message is to be extended in an input that is one string")
            self._append_to_string(self._document.field(self._list_key), message, text)
            return
        self._append_to_content(index, text, as_blocks=self._wire is Wire.MESSAGES)

    def last_index(self) -> int | None:
        """The last message, where text may be added to it: a person's words, or what a tool gave back. A provider's cached prefix
        ends before what is added, unless the client has the provider cache everything."""
        items = self._items()
        if items is None:
            return 0 if isinstance(self._parsed.get(self._list_key), str) and self._list_key == "input" else None
        item = items[-1] if items else None
        if not isinstance(item, dict) or (self._wire is Wire.MESSAGES and self._parsed.get("cache_control")):
            return None
        is_spoken = item.get("role") in _EXTENSIBLE and isinstance(item.get("content"), str | list)
        is_output = "role" not in item and item.get("type") in _OUTPUTS and isinstance(item.get("output"), str | list)
        return len(items) - 1 if is_spoken or is_output else None

    def _place_in_chat_system(self, text: str) -> None:
        leading = self._leading_system_items()
        if leading:
            self._append_to_content(leading - 1, text, as_blocks=False)
        else:
            self._insert(self._item_span(0)[0], b'{"role":"system","content":' + _literal(text) + b"},")

    def _place_in_system_field(self, text: str) -> None:
        if "system" not in self._parsed:
            self._add_field(b'"system":' + _literal(text))
            return
        self._append_to_value(self._parsed["system"], self._document.field("system"), text, as_blocks=False)

    def _place_in_instructions(self, text: str) -> None:
        instructions, spoken = self._parsed.get("instructions"), self._parsed.get("input")
        items = self._items()
        if isinstance(instructions, str):
            self._append_to_string(self._document.field("instructions"), instructions, text)
        elif items is not None:
            self._insert_developer_item(text, items)
        elif not isinstance(spoken, str):
            raise _RefusedError("the input is neither a string nor a list")
        elif "instructions" not in self._parsed:
            self._add_field(b'"instructions":' + _literal(text))
        else:
            # A null cannot be replaced by insertions alone, so the string becomes the list it stands for.
            begin, end = self._document.field("input")
            self._insert(begin, b"[" + _developer_item(text) + b',{"type":"message","role":"user","content":')
            self._insert(end, b"}]")

    def _insert_developer_item(self, text: str, spoken: Sequence[Json]) -> None:
        leading = self._leading_system_items()
        if leading:
            self._insert(self._item_span(leading - 1)[1], b"," + _developer_item(text))
        elif spoken:
            self._insert(self._item_span(0)[0], _developer_item(text) + b",")
        else:
            self._insert(self._document.field("input")[0] + 1, _developer_item(text))

    def _append_to_content(self, index: int, text: str, *, as_blocks: bool) -> None:
        item = self._parsed_item(index)
        key = "output" if "role" not in item and item.get("type") in _OUTPUTS else "content"
        if key not in item:
            raise _RefusedError("the message to extend has no content")
        content = item[key]
        self._append_to_value(content, self._value_span(item, index, key, content), text, as_blocks=as_blocks)

    def _value_span(self, item: dict[str, Json], index: int, key: str, content: Json) -> Span:
        span = self._item_span(index)
        if self._written is not None and next(reversed(item)) == key:
            return span[1] - 1 - len(_encode(content)), span[1] - 1
        if isinstance(content, str):
            return string_span(self._body, span, key, content)
        return value_span(self._body, span, key)

    def _append_to_value(self, value: Json, span: Span, text: str, *, as_blocks: bool) -> None:
        if isinstance(value, list):
            self._append_to_list(span, self._text_part(text), is_empty=not value)
        elif not isinstance(value, str):
            raise _RefusedError("the text to extend is neither a string nor a list")
        elif as_blocks:
            # Clients switch between a string and one text block from request to request; ours must mean the same beside both.
            self._insert(span[0], b'[{"type":"text","text":')
            self._insert(span[1], b"}," + self._text_part(text) + b"]")
        else:
            self._append_to_string(span, value, text)

    def _append_to_string(self, span: Span, value: str, text: str) -> None:
        self._insert(span[1] - 1, _continuation(text) if value else _literal(text)[1:-1])

    def _append_to_list(self, span: Span, item: bytes, *, is_empty: bool) -> None:
        end = skip_blanks_back(self._body, span[1] - 1)
        self._insert(end, item if is_empty else b"," + item)

    def _add_field(self, field: bytes) -> None:
        self._insert(self._document.last_field_end, b"," + field if self._parsed else field)

    def _text_part(self, text: str) -> bytes:
        kind = b"input_text" if self._wire is Wire.RESPONSES else b"text"
        return b'{"type":"' + kind + b'","text":' + _literal(text) + b"}"

    def _insert(self, offset: int, inserted: bytes) -> None:
        self.splices.append(Splice(offset, inserted))

    def _items(self) -> Sequence[Json] | None:
        """The messages, where they are a list."""
        if self._listed is not None:
            return self._listed
        items = self._parsed.get(self._list_key)
        return items if isinstance(items, list) else None

    def _leading_system_items(self) -> int:
        count = 0
        for item in self._items() or ():
            if not (isinstance(item, dict) and item.get("role") in _SYSTEM_ROLES):
                break
            count += 1
        return count

    def _parsed_item(self, index: int) -> dict[str, Json]:
        items = self._items()
        item = items[index] if items is not None and 0 <= index < len(items) else None
        if not isinstance(item, dict):
            raise _RefusedError(f"there is no message {index} to extend")
        return item

    def _item_span(self, index: int) -> Span:
        known = self._listed or self._written
        if known is None:
            return self._document.item(self._list_key, index)
        if index >= len(known.spans):
            raise UnsafeBytesError(f"there is no message {index} in the body")
        return known.spans[index]


_PLACES: Mapping[Wire, Callable[[_Sketch, str], None]] = {
    Wire.CHAT: _Sketch._place_in_chat_system,
    Wire.MESSAGES: _Sketch._place_in_system_field,
    Wire.RESPONSES: _Sketch._place_in_instructions,
}


@lru_cache(maxsize=512)
def _literal(text: str) -> bytes:
    return msgspec.json.encode(text)


@lru_cache(maxsize=512)
def _continuation(text: str) -> bytes:
    """The text as more of a string; the same object each time, so that whoever keeps it by its hash need not hash it again."""
    return _WRITTEN_BLANK_LINE + _literal(text)[1:-1]


def _developer_item(text: str) -> bytes:
    return b'{"type":"message","role":"developer","content":[{"type":"input_text","text":' + _literal(text) + b"}]}"

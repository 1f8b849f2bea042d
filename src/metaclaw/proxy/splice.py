"""Insert placed skills into the client's body without encoding it again.

Every byte of the client stays as it is, so that a provider's prompt cache sees the same prefix as
without us. If a position cannot be found with certainty (a duplicate key, an unexpected shape),
nothing is inserted and the result says why."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import NoReturn

import msgspec

from metaclaw.domain.chat import Json, Wire
from metaclaw.domain.turn import Anchor, Placement, Splice
from metaclaw.proxy.http.body import (
    Body,
    JsonDocument,
    Span,
    UnsafeBytesError,
    field_spans,
    item_spans,
    skip_blanks,
    skip_blanks_back,
    string_span,
    value_span,
)
from metaclaw.wires import WHOLE_ITEM, developer_item, literal_json, result_places, wire_format

_SYSTEM_ROLES = ("system", "developer")
_EXTENSIBLE = ("user", "tool")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_BLANK_LINE = "\n\n"
_WRITTEN_BLANK_LINE = rb"\n\n"
_SYSTEM = -1
_OFFSET = attrgetter("offset")


class Spliced(msgspec.Struct, frozen=True, gc=False):
    """The insertions, and the placements they make. `refused` says why nothing could be inserted.
    `has_tail` says whether the line for the end of the conversation is among them."""

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
    tools: bytes = b"",
) -> Spliced:
    """Find the insertions for the placements in `body`, whose decoded form is `parsed`, for `tail`
    at the end of the conversation, and for `tools` at the end of the list of tools.

    A placement whose anchor is not among `anchors` is left out, because its history is gone. Of the
    others all are made, or none. The tail is left out if the last message cannot be extended, and a
    lesson behind a result if that is not in the request or cannot be extended."""
    index_of = {anchor.digest: anchor.index for anchor in anchors}
    texts: dict[int, str] = {}
    placed: list[Placement] = []
    behind: list[Placement] = []
    for placement in placements:
        if placement.call_id is not None:
            behind.append(placement)
            continue
        index = index_of.get(placement.anchor) if placement.anchor else _SYSTEM
        if index is not None:
            _add(texts, index, placement.text)
            placed.append(placement)
    if not texts and not behind and not tools and not tail:
        return Spliced()
    edit = _BodyEdit(wire, body, parsed)
    last = edit.last_index() if tail else None
    if last is not None:
        _add(texts, last, tail)
    try:
        if tools:
            edit.add_tools(tools)
        placed += [one for one in behind if edit.place_behind_result(one)]
        for index, text in texts.items():
            if index == _SYSTEM:
                edit.place_in_system(text)
            else:
                edit.place_in_message(index, text)
    except _TROUBLE as trouble:
        if last is not None:
            return placement_splices(wire, body, parsed, placements, anchors, "", tools)
        return Spliced(refused=f"the body cannot be extended: {trouble}")
    if len(edit.splices) > 1:
        edit.splices.sort(key=_OFFSET)
    return Spliced(tuple(edit.splices), tuple(placed), None, last is not None)


def _add(texts: dict[int, str], index: int, text: str) -> None:
    texts[index] = f"{texts[index]}{_BLANK_LINE}{text}" if index in texts else text


class _RefusedError(Exception):
    """The bytes do not allow a safe insertion."""


_TROUBLE = (
    *(_RefusedError, UnsafeBytesError),
    *(msgspec.MsgspecError, UnicodeError, IndexError, RecursionError),
)


class _BodyEdit:
    """A body, the spans found in it, and the insertions decided so far."""

    def __init__(self, wire: Wire, body: bytes, parsed: Mapping[str, Json]) -> None:
        self.splices: list[Splice] = []
        self._format = wire_format(wire)
        self._body = body
        self.parsed = parsed
        self._list_key = self._format.list_key
        self._listed = parsed.listed if isinstance(parsed, Body) else None
        self._searched: JsonDocument | None = None

    @property
    def _document(self) -> JsonDocument:
        """The body, for searching it when its messages are not listed."""
        if self._searched is None:
            self._searched = JsonDocument(self._body, self._listed)
        return self._searched

    def place_in_system(self, text: str) -> None:
        """Insert text at the end of the system text."""
        self._format.place_in_system(self, text)

    def place_in_message(self, index: int, text: str) -> None:
        """Insert text at the end of the message with this index."""
        message = self.parsed.get(self._list_key) if self._listed is None else None
        if isinstance(message, str) and self._list_key == "input":
            if index:
                raise _RefusedError("a message is to be extended in an input that is one string")
            self._append_to_string(self._document.field(self._list_key), message, text)
            return
        self._append_to_content(index, text, as_parts=self._format.appends_parts)

    def place_behind_result(self, placement: Placement) -> bool:
        """Insert a lesson behind the result of its call; False if there is no place for it."""
        call_id = placement.call_id or ""
        known = len(self.splices)
        try:
            for index in self._items_with(call_id):
                place = result_places(self._parsed_item(index)).get(call_id)
                if place is not None:
                    self._extend_result(index, place, placement.text)
                    return True
        except _TROUBLE:
            del self.splices[known:]
        return False

    def _items_with(self, text: str) -> Iterator[int]:
        """The indices of the messages that may contain this text, the last one first."""
        needle = literal_json(text)
        for index in range(len(self.items or ()) - 1, -1, -1):
            if self._listed is None or needle in self._listed.raws[index]:
                yield index

    def _extend_result(self, index: int, place: int, text: str) -> None:
        item = self._parsed_item(index)
        if place != WHOLE_ITEM and not self._format.parts_key:
            self._extend_block(index, place, text)
        elif "role" in item or item.get("type") in _OUTPUTS:
            self.append_to_item(index, text)
        else:  # an output in another form than text
            self.insert_after_item(index, developer_item(text))

    def _extend_block(self, index: int, place: int, text: str) -> None:
        """Insert text at the end of a block of a message's content."""
        content = self._parsed_item(index)["content"]
        block = content[place] if isinstance(content, list) else None
        if not isinstance(block, dict):
            raise _RefusedError("the result is not a block")
        span = value_span(self._body, self._item_span(index), "content")
        raws = msgspec.json.decode(self._body[slice(*span)], type=list[msgspec.Raw])
        span = item_spans(self._body, span[0], raws)[place]
        if "content" in block:
            inner = value_span(self._body, span, "content")
            self._append_to_value(block["content"], inner, text, as_parts=False)
        else:
            end = skip_blanks_back(self._body, span[1] - 1)
            self._insert(end, b',"content":' + literal_json(text))

    def last_index(self) -> int | None:
        """The index of the last message if text may be added to it: it must be a user message or a
        tool's output. None also if the client has the provider cache everything, because the added
        text would be cached too."""
        items = self.items
        if items is None:
            return (
                0
                if isinstance(self.parsed.get(self._list_key), str) and self._list_key == "input"
                else None
            )
        item = items[-1] if items else None
        if not isinstance(item, dict) or self._format.caches_everything(self.parsed):
            return None
        is_spoken = item.get("role") in _EXTENSIBLE and isinstance(item.get("content"), str | list)
        is_output = (
            "role" not in item
            and item.get("type") in _OUTPUTS
            and isinstance(item.get("output"), str | list)
        )
        return len(items) - 1 if is_spoken or is_output else None

    def _append_to_content(self, index: int, text: str, *, as_parts: bool) -> None:
        item = self._parsed_item(index)
        if self._format.parts_key:
            self._append_part(self._item_span(index), text)
            return
        key = "output" if "role" not in item and item.get("type") in _OUTPUTS else "content"
        if key not in item:
            raise _RefusedError("the message to extend has no content")
        content = item[key]
        span = self._item_span(index)
        found = (
            string_span(self._body, span, key, content)
            if isinstance(content, str)
            else value_span(self._body, span, key)
        )
        self._append_to_value(content, found, text, as_parts=as_parts)

    def _append_to_value(self, value: Json, span: Span, text: str, *, as_parts: bool) -> None:
        if isinstance(value, list):
            self._append_to_list(span, self._text_part(text), is_empty=not value)
        elif not isinstance(value, str):
            raise _RefusedError("the text to extend is neither a string nor a list")
        elif as_parts:
            # Clients send the same message as a string or as one text block; ours must come out the
            # same for both.
            self._insert(span[0], b'[{"type":"text","text":')
            self._insert(span[1], b"}," + self._text_part(text) + b"]")
        else:
            self._append_to_string(span, value, text)

    def _append_part(self, span: Span, text: str) -> None:
        """Add a part to the object at `span`."""
        found = value_span(self._body, span, self._format.parts_key)
        self._append_to_list(found, self._text_part(text), is_empty=self._is_empty(found))

    def _is_empty(self, span: Span) -> bool:
        if self._body[span[0] : span[0] + 1] != b"[":
            raise _RefusedError("what is to be extended is no list")
        return skip_blanks(self._body, span[0] + 1) == span[1] - 1

    def _append_to_string(self, span: Span, value: str, text: str) -> None:
        self._insert(span[1] - 1, _continuation(text) if value else literal_json(text)[1:-1])

    def _append_to_list(self, span: Span, item: bytes, *, is_empty: bool) -> None:
        end = skip_blanks_back(self._body, span[1] - 1)
        is_first = is_empty and all(splice.offset != end for splice in self.splices)
        self._insert(end, item if is_first else b"," + item)

    def append_to_item(self, index: int, text: str) -> None:
        """Add text to the content of a message, to its string if it is one."""
        self._append_to_content(index, text, as_parts=False)

    def append_to_field(self, key: str, text: str) -> None:
        """Add text to a top-level field, a string or a list of parts."""
        self._append_to_value(self.parsed[key], self._document.field(key), text, as_parts=False)

    def append_to_parts(self, keys: Sequence[str], text: str) -> bool:
        """Add a part to the field of one of these names; False if there is none."""
        for key in keys:
            if self._document.has(key):
                self._append_part(self._document.field(key), text)
                return True
        return False

    def add_field(self, key: str, value: bytes) -> None:
        field = b'"%b":%b' % (key.encode(), value)
        self._insert(self._document.last_field_end, b"," + field if self.parsed else field)

    def insert_before_item(self, index: int, item: bytes) -> None:
        self._insert(self._item_span(index)[0], item + b",")

    def insert_after_item(self, index: int, item: bytes) -> None:
        self._insert(self._item_span(index)[1], b"," + item)

    def fill_list(self, key: str, item: bytes) -> None:
        """Insert an item into an empty list."""
        self._insert(self._document.field(key)[0] + 1, item)

    def add_tools(self, tools: bytes) -> None:
        """Add tools to the list of tools, which must not be empty."""
        span = self._document.field("tools")
        if self._format.tool_keys:
            span = self._functions(span)
        self._append_to_list(span, tools, is_empty=False)

    def _functions(self, span: Span) -> Span:
        """The list of functions in the first tool that has one."""
        raws = msgspec.json.decode(self._body[slice(*span)], type=list[msgspec.Raw])
        for tool in item_spans(self._body, span[0], raws):
            fields = field_spans(self._body, tool)
            for key in self._format.tool_keys:
                if key in fields and not self._is_empty(fields[key]):
                    return fields[key]
        raise _RefusedError("the tools have no list of functions")

    def wrap_field(self, key: str, before: bytes, after: bytes) -> None:
        """Insert bytes before and behind the value of a top-level field."""
        begin, end = self._document.field(key)
        self._insert(begin, before)
        self._insert(end, after)

    def refuse(self, reason: str) -> NoReturn:
        """Raise an error: nothing is inserted into this request."""
        raise _RefusedError(reason)

    def _text_part(self, text: str) -> bytes:
        if self._format.parts_key:
            return b'{"text":%b}' % literal_json(text)
        return b'{"type":"%b","text":%b}' % (self._format.text_part.encode(), literal_json(text))

    def _insert(self, offset: int, inserted: bytes) -> None:
        self.splices.append(Splice(offset, inserted))

    @property
    def items(self) -> Sequence[Json] | None:
        """The messages; None if they are not a list."""
        if self._listed is not None:
            return self._listed.items
        items = self.parsed.get(self._list_key)
        return items if isinstance(items, list) else None

    def leading_system_items(self) -> int:
        count = 0
        for item in self.items or ():
            if not (isinstance(item, dict) and item.get("role") in _SYSTEM_ROLES):
                break
            count += 1
        return count

    def _parsed_item(self, index: int) -> dict[str, Json]:
        items = self.items
        item = items[index] if items is not None and 0 <= index < len(items) else None
        if not isinstance(item, dict):
            raise _RefusedError(f"there is no message {index} to extend")
        return item

    def _item_span(self, index: int) -> Span:
        if self._listed is None:
            return self._document.item(self._list_key, index)
        if index >= len(self._listed.spans):
            raise UnsafeBytesError(f"there is no message {index} in the body")
        return self._listed.spans[index]


@lru_cache(maxsize=512)
def _continuation(text: str) -> bytes:
    """The text as a continuation of a JSON string. Always the same object, so that its hash is
    computed once.
    """
    return _WRITTEN_BLANK_LINE + literal_json(text)[1:-1]

"""Server-sent events: parse and write them, inspect the beginning of a stream, and hold back its
end.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from metaclaw.domain.chat import Wire
from metaclaw.errors import UpstreamError
from metaclaw.wires.fields import Object, decode_json, decode_or_text, encode_json, object_of
from metaclaw.wires.format import first_object, reported_error, wire_format

_EVENT_END = re.compile(rb"\r?\n\r?\n|\r\r")
_BOM = b"\xef\xbb\xbf"
MAX_EVENT_BYTES = 16 * 1024 * 1024
"""A stream with a larger event is treated as garbage, so that it does not fill the memory."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its name, if any, and its data."""

    name: str | None
    data: str


class EventParser:
    """Turns received bytes into complete events, by the rules of the HTML standard."""

    def __init__(self) -> None:
        self._buffer = b""
        self._started = False
        self._skip_line_feed = False
        self._name: str | None = None
        self._data: list[str] = []
        self._event_bytes = 0

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that are complete now. Raises UpstreamError beyond MAX_EVENT_BYTES."""
        self._buffer += data
        if not self._started and not self._skip_bom():
            return []
        events = [event for line in self._lines() if (event := self._take(line)) is not None]
        if len(self._buffer) + self._event_bytes > MAX_EVENT_BYTES:
            raise UpstreamError(
                f"the provider sent an event larger than {MAX_EVENT_BYTES} bytes",
                code="upstream_garbage",
            )
        return events

    def close(self) -> list[Event]:
        """Return the last event, if its closing blank line never came."""
        line, self._buffer = self._buffer, b""
        if line:
            self._take(line)
        event = self._take(b"")
        return [] if event is None else [event]

    def _skip_bom(self) -> bool:
        if len(self._buffer) < len(_BOM) and _BOM.startswith(self._buffer):
            return False
        self._buffer = self._buffer.removeprefix(_BOM)
        self._started = True
        return True

    def _lines(self) -> Iterator[bytes]:
        """Complete lines. A carriage return ends a line at once; a line feed right after it belongs
        to it.
        """
        buffer, start = self._buffer, 0
        while start < len(buffer):
            if self._skip_line_feed:
                self._skip_line_feed = False
                if buffer[start] == 0x0A:
                    start += 1
                    continue
            end = buffer.find(b"\n", start)
            carriage = buffer.find(b"\r", start, end if end >= 0 else len(buffer))
            if carriage >= 0:
                end = carriage
                self._skip_line_feed = True
            if end < 0:
                break
            yield buffer[start:end]
            start = end + 1
        self._buffer = buffer[start:]

    def _take(self, line: bytes) -> Event | None:
        if not line:
            event = Event(self._name, "\n".join(self._data)) if self._data else None
            self._name, self._data, self._event_bytes = None, [], 0
            return event
        field, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode("utf-8", "replace")
        if field == b"data":
            self._data.append(text)
            self._event_bytes += len(line)
        elif field == b"event":
            self._name = text or None
        return None


def split_events(data: bytes) -> tuple[list[bytes], bytes]:
    """Split data into complete events with the blank lines that end them, and the rest."""
    if b"\r" not in data:
        *events, rest = data.split(b"\n\n")
        return [event + b"\n\n" for event in events], rest
    events, at = [], 0
    for found in _EVENT_END.finditer(data):
        events.append(data[at : found.end()])
        at = found.end()
    return events, data[at:]


def has_any(data: bytes, marks: tuple[bytes, ...]) -> bool:
    for mark in marks:  # noqa: SIM110 (any() with a generator takes several times as long)
        if mark in data:
            return True
    return False


def last_event_end(data: bytes, marks: tuple[bytes, ...], at: int = 0) -> int:
    """The offset behind the last blank line before the first mark, searching from `at`; 0 if there
    is none.
    """
    until = len(data)
    for mark in marks:
        found = data.find(mark, at, until)
        if found >= 0:
            until = found
    end = data.rfind(b"\n\n", at, until)
    return 0 if end < 0 else end + 2


def events_with(data: bytes, marks: tuple[bytes, ...]) -> list[bytes]:
    """The events that contain one of the marks; the last may be incomplete."""
    if b"\r" in data:
        events, rest = split_events(data)
        return [event for event in (*events, rest) if has_any(event, marks)]
    found: list[bytes] = []
    at, size = 0, len(data)
    places = [0] * len(marks)
    while True:
        for number, place in enumerate(places):
            if place <= at:
                next_place = data.find(marks[number], at)
                places[number] = size if next_place < 0 else next_place
        first = min(places)
        if first >= size:
            return found
        begin, end = data.rfind(b"\n\n", at, first), data.find(b"\n\n", first)
        end = size if end < 0 else end + 2
        found.append(data[at if begin < 0 else begin + 2 : end])
        at = end


def event_bytes(body: Object, name: str | None = None) -> bytes:
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + encode_json(body) + b"\n\n"


MAX_LOOK_BYTES = 16 * 1024
"""A longer first line is taken for an answer, because errors are short."""

_ERROR_EVENTS = (b"error", b"response.failed")
_SILENT_FIELDS = (b"id", b"retry")


def begins_answer(data: bytes, *, is_all: bool = False) -> bool:
    """Whether a stream that begins with these bytes may be relayed; False if more bytes are needed.
    `is_all`: the stream has ended.

    Raises UpstreamError if the first event is an error, or if the stream ends without an event. An
    event's name decides at once; data without a name is read to the end of its line. A second
    comment is a keep-alive, which must reach the client."""
    at = len(_BOM) if data.startswith(_BOM) else 0
    names_error, comments = False, 0
    while at < len(data):
        end = _line_end(data, at)
        if end < 0:
            if not is_all:
                return len(data) > MAX_LOOK_BYTES
            end = len(data)
        line, at = data[at:end], end + 1
        field, _, value = line.partition(b":")
        value = value.strip()
        if field == b"data" and value:
            return _is_answer(value, names_error=names_error)
        if field == b"event":
            names_error = value in _ERROR_EVENTS
            if not names_error:
                return True
        elif line.startswith(b":"):
            comments += 1
            if comments > 1:
                return True
        elif field and field not in _SILENT_FIELDS and field != b"data":
            return _is_stream_at_all(data, is_all=is_all)
    if is_all:
        raise UpstreamError("the stream ended before its first event", code="upstream_empty")
    return len(data) > MAX_LOOK_BYTES


def _is_answer(value: bytes, *, names_error: bool) -> bool:
    if value.startswith(b"[DONE]"):
        raise UpstreamError("the stream has no answer in it", code="upstream_empty")
    if names_error or b'"error"' in value:
        body = decode_or_text(value)
        if names_error or object_of(body).get("error") or object_of(body).get("type") == "error":
            raise reported_error(body)
    return True


def _is_stream_at_all(data: bytes, *, is_all: bool) -> bool:
    """Judge data that is not a stream of events, such as a JSON error or a web page. Raises
    UpstreamError when it has ended.
    """
    if not is_all:
        return len(data) > MAX_LOOK_BYTES
    body = decode_or_text(data)
    if object_of(body).get("error"):
        raise reported_error(body)
    raise UpstreamError("it did not send a stream of events", code="upstream_garbage")


_TYPED = (b'data: {"type":"', b'data: {"type": "', b'data:{"type":"', b'data:{"type": "')
MAX_HELD_LINE_BYTES = 1024 * 1024
"""A longer line is released undecided, so that it does not fill the memory."""
MAX_TAIL_BYTES = 4 * 1024 * 1024
_LEAST_TAIL_BYTES = 64 * 1024
"""Of a longer tail, only the last bytes are held: an event counts for the client when it has its
end.
"""


_EVENT_ENDS = (b"\n\n", b"\n\r\n")
_BLANK_LINES = (b"\n\n", b"\r\n\r\n", b"\r\r")
_UNDECIDED = (b"id:", b"retry:")
_COLON, _RETURN, _FEED = b":\r\n"


class _Terminal(NamedTuple):
    """How to recognise the terminal event of a wire: the possible `beginnings` of its first
    `event:` or `data:` line, all prefixes of these (`openings`), the event types (`finals`), and
    `marks`, one of which is in every terminal event."""

    beginnings: tuple[bytes, ...]
    openings: frozenset[bytes]
    finals: tuple[str, ...]
    marks: tuple[bytes, ...]


@lru_cache
def _terminal(wire: Wire) -> _Terminal:
    names = wire_format(wire).final_events
    lines: tuple[bytes, ...] = (b"data: [DONE]", b"data:[DONE]")
    if names:
        lines = tuple(f"event:{gap}{name}".encode() for name in names for gap in (" ", ""))
        # Servers that omit the event line mostly put the type first in the data.
        lines += tuple(typed + f'{name}"'.encode() for name in names for typed in _TYPED)
    openings = frozenset(
        line[:size] for line in (*lines, *_UNDECIDED) for size in range(1, len(line) + 1)
    )
    return _Terminal(lines, openings, names, tuple(name.encode() for name in names) or (b"[DONE]",))


class TailHold:
    """Splits a stream into bytes to send now and the tail, which is sent when the turn is on disk.

    The terminal event is recognised by its first `event:` or `data:` line. While that is undecided,
    its beginning is held, and any `id:` or `retry:` lines before it. If the event has no name and
    its data does not begin with the type, the whole line is held and then parsed. From the terminal
    event on, everything is held."""

    def __init__(self, wire: Wire) -> None:
        self._beginnings, self._openings, self._finals, self._marks = _terminal(wire)
        self._goes_on = wire_format(wire).goes_on
        self._longest = max(map(len, self._beginnings))
        self._held: bytes | bytearray = b""
        self._awaits_end = False  # the held line can only be decided at its end
        self._inside_line = False
        self._after_return = False  # a line feed here belongs to the carriage return before it
        self._named = False  # this event has had its `event:` line
        self._fresh = True
        self.terminal = False

    def feed(self, data: bytes) -> bytes:
        """Take received bytes; return those that may be sent at once."""
        if self._held:
            if self.terminal or self._only_longer(data):
                self._held += data
                return b"" if len(self._held) <= MAX_TAIL_BYTES else self._shorten()
            data = bytes(self._held) + data
        elif data.endswith(_EVENT_ENDS) and not has_any(data, self._marks) and not self._fresh:
            # The fast path for nearly every chunk: complete events, none of which can be terminal.
            self._inside_line = self._after_return = self._named = False
            return data
        self._awaits_end = False
        cut = self._cut(data)
        if cut == len(data):
            self._held = b""
            return data
        self._held = bytearray(data[cut:]) if self._awaits_end or self.terminal else data[cut:]
        return data[:cut]

    @property
    def is_complete(self) -> bool:
        """Whether the terminal event has its end."""
        return self.terminal and not self._goes_on and self._held.endswith(_BLANK_LINES)

    def _shorten(self) -> bytes:
        """Release all but the last bytes of a long terminal event."""
        cut = len(self._held) - _LEAST_TAIL_BYTES
        released = bytes(self._held[:cut])
        self._held = self._held[cut:]
        return released

    def held(self) -> bytes:
        """The bytes that are not released: the tail, or an undecided line."""
        return bytes(self._held)

    def _only_longer(self, data: bytes) -> bool:
        """Whether the held line continues: only the new data is searched, because searching all of
        it would take quadratic time.
        """
        if not self._awaits_end or len(self._held) + len(data) > MAX_HELD_LINE_BYTES:
            return False
        return _line_end(data, 0) < 0

    def _cut(self, data: bytes) -> int:
        """The offset up to which the bytes may be sent."""
        at = 0
        if self._fresh:
            if len(data) < len(_BOM) and _BOM.startswith(data):
                return 0
            self._fresh = False
            at = len(_BOM) if data.startswith(_BOM) else 0
        unmarked_end = last_event_end(data, self._marks, at)
        if unmarked_end:  # complete events without a mark are not terminal
            self._inside_line = self._after_return = self._named = False
            at = unmarked_end
        size = len(data)
        kept_from = -1  # where undecided lines before this one begin
        while at < size:
            if self._inside_line:
                end = _line_end(data, at)
                if end < 0:
                    return size
                self._inside_line, self._after_return, at = False, data[end] == _RETURN, end + 1
                continue
            byte = data[at]
            if byte in (_FEED, _RETURN):  # a blank line ends an event, but CR LF is one line end
                if byte == _RETURN or not self._after_return:
                    self._named = False
                self._after_return = byte == _RETURN
                at, kept_from = at + 1, -1
                continue
            self._after_return = False
            start = at if kept_from < 0 else kept_from
            if data.startswith(self._beginnings, at):
                self.terminal = True
                return start
            if size - at < self._longest and data[at:] in self._openings:  # may still be terminal
                return start
            if data.startswith(_UNDECIDED, at) or (kept_from >= 0 and byte == _COLON):
                end = _line_end(data, at)
                if end < 0:
                    return start
                kept_from, at = start, end + (2 if data.startswith(b"\r\n", end) else 1)
                continue
            if self._finals and self._must_wait(data, at):
                return start
            self._inside_line, kept_from = True, -1
        return size if kept_from < 0 else kept_from

    def _must_wait(self, data: bytes, at: int) -> bool:
        """Whether this line, which does not begin like a terminal one, is terminal or may still
        become so.
        """
        if data.startswith(b"event:", at):
            self._named = True
            return False
        if self._named or not data.startswith(b"data:", at) or data.startswith(_TYPED, at):
            return False
        end = _line_end(data, at)
        if (len(data) if end < 0 else end) - at > MAX_HELD_LINE_BYTES:
            return False
        if end < 0:
            self._awaits_end = True
            return True
        self.terminal = self._is_final(data[at + len(b"data:") : end])
        return self.terminal

    def _is_final(self, event: bytes) -> bool:
        if not has_any(event, self._marks):
            return False
        try:
            body = object_of(decode_json(event.decode("utf-8", "replace")))
        except (ValueError, RecursionError):
            return False
        candidate = first_object(body.get("candidates"))
        return body.get("type") in self._finals or any(map(candidate.get, self._finals))


def _line_end(data: bytes, at: int) -> int:
    """The offset of the line's end, or -1 if it is incomplete."""
    end = data.find(b"\n", at)
    carriage = data.find(b"\r", at, end if end >= 0 else len(data))
    return end if carriage < 0 else carriage

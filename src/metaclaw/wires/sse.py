"""Server-sent events: bytes in any split become events, and events become bytes."""

from collections.abc import Iterator
from dataclasses import dataclass

from metaclaw.errors import UpstreamError
from metaclaw.wires.fields import Object, encode

_BOM = b"\xef\xbb\xbf"
MAX_EVENT_BYTES = 32 * 1024 * 1024
"""No provider's event is larger; beyond it the stream is garbage and would only fill memory."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its name, if it had one, and its data."""

    name: str | None
    data: str


class EventParser:
    """Takes bytes as they come and gives whole events, by the rules of the HTML standard."""

    def __init__(self) -> None:
        self._buffer = b""
        self._started = False
        self._skip_line_feed = False
        self._name: str | None = None
        self._data: list[str] = []
        self._event_bytes = 0

    def feed(self, data: bytes) -> list[Event]:
        """Events that are whole now. Raises UpstreamError if one grows beyond all measure."""
        self._buffer += data
        if not self._started and not self._skip_bom():
            return []
        events = [event for line in self._lines() if (event := self._take(line)) is not None]
        if len(self._buffer) + self._event_bytes > MAX_EVENT_BYTES:
            raise UpstreamError(f"the provider sent an event larger than {MAX_EVENT_BYTES} bytes", code="upstream_garbage")
        return events

    def close(self) -> list[Event]:
        """The last event, if its closing blank line never came."""
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
        """Whole lines; a carriage return ends one at once, and a line feed right after it belongs to it."""
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


def event_bytes(body: Object, name: str | None = None) -> bytes:
    """One event as bytes."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + encode(body) + b"\n\n"

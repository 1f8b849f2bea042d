"""Holding back the end of a relayed stream: everything flows at once, except the event that makes the answer whole."""

from metaclaw.domain.chat import Wire
from metaclaw.wires.fields import decode, object_of

_BOM = b"\xef\xbb\xbf"
_FINAL_EVENTS = {
    Wire.MESSAGES: ("message_stop",),
    Wire.RESPONSES: ("response.completed", "response.failed", "response.incomplete"),
}
_TYPED = (b'data: {"type":"', b'data: {"type": "', b'data:{"type":"', b'data:{"type": "')
MAX_HELD_LINE_BYTES = 1024 * 1024
"""A longer line is let go undecided: to hold it would only fill memory."""


def _beginnings(wire: Wire) -> tuple[bytes, ...]:
    """How the first telling line of a terminal event begins, in every spacing that is in use."""
    if wire is Wire.CHAT:
        return (b"data: [DONE]", b"data:[DONE]")
    names = _FINAL_EVENTS[wire]
    lines = [f"event:{gap}{name}" for name in names for gap in (" ", "")]
    # Servers that leave out the event line mostly put the type first in the data.
    return tuple(line.encode() for line in lines) + tuple(typed + f'{name}"'.encode() for name in names for typed in _TYPED)


_MARKS = {Wire.CHAT: (b"[DONE]",), **{wire: tuple(name.encode() for name in names) for wire, names in _FINAL_EVENTS.items()}}
_EVENT_ENDS = (b"\n\n", b"\n\r\n")
_TERMINAL = {wire: _beginnings(wire) for wire in Wire}
_UNDECIDED = (b"id:", b"retry:")
_OPENINGS = {
    wire: frozenset(line[:size] for line in (*lines, *_UNDECIDED) for size in range(1, len(line) + 1))
    for wire, lines in _TERMINAL.items()
}
_COLON, _RETURN, _FEED = b":\r\n"


class TailHold:
    """Splits a stream of bytes into what may go out now and the tail that waits for the ledger.

    A terminal event is known by its first `event:` or `data:` line. Where that line begins with the event's name, at most
    its beginning (and `id:` or `retry:` lines before it) is held while undecided; where data came without a name and does
    not begin with its type, the line is held to its end and read. From the terminal event on, everything is held.
    """

    __slots__ = (
        "_after_return",
        "_awaits_end",
        "_beginnings",
        "_finals",
        "_fresh",
        "_held",
        "_inside_line",
        "_longest",
        "_marks",
        "_named",
        "_openings",
        "terminal",
    )

    def __init__(self, wire: Wire) -> None:
        self._beginnings = _TERMINAL[wire]
        self._openings = _OPENINGS[wire]
        self._finals = _FINAL_EVENTS.get(wire, ())
        self._marks = _MARKS[wire]
        self._longest = max(map(len, self._beginnings))
        self._held: bytes | bytearray = b""
        self._awaits_end = False  # what is held is a line that can only be decided at its end
        self._inside_line = False
        self._after_return = False  # a line feed here belongs to the carriage return before it
        self._named = False  # this event has had its `event:` line
        self._fresh = True
        self.terminal = False

    def feed(self, data: bytes) -> bytes:
        """Take bytes as they came; return those that may be sent on at once."""
        if self._held:
            if self.terminal or self._only_longer(data):
                self._held += data
                return b""
            data = bytes(self._held) + data
        elif data.endswith(_EVENT_ENDS) and not _has_any(data, self._marks) and not self._fresh:
            # Whole events without the terminal word, as nearly every chunk is: there is nothing to look at line by line.
            self._inside_line = self._after_return = self._named = False
            return data
        self._awaits_end = False
        cut = self._cut(data)
        if cut == len(data):
            self._held = b""
            return data
        self._held = bytearray(data[cut:]) if self._awaits_end or self.terminal else data[cut:]
        return data[:cut]

    def held(self) -> bytes:
        """What was not released: the tail, or a line that is still undecided."""
        return bytes(self._held)

    def _only_longer(self, data: bytes) -> bool:
        """Whether a line that waits for its end goes on waiting: looking at all of it for every chunk would be quadratic."""
        if not self._awaits_end or len(self._held) + len(data) > MAX_HELD_LINE_BYTES:
            return False
        return _line_end(data, 0) < 0

    def _cut(self, data: bytes) -> int:
        """Up to where the bytes may go out."""
        at = 0
        if self._fresh:
            if len(data) < len(_BOM) and _BOM.startswith(data):
                return 0
            self._fresh = False
            at = len(_BOM) if data.startswith(_BOM) else 0
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
            if self._may_still_be_terminal(data, at):
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

    def _may_still_be_terminal(self, data: bytes, at: int) -> bool:
        return len(data) - at < self._longest and data[at:] in self._openings

    def _must_wait(self, data: bytes, at: int) -> bool:
        """Whether this line, which does not begin like a terminal one, is terminal all the same or may yet turn out so."""
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

    def _is_final(self, said: bytes) -> bool:
        if not _has_any(said, self._marks):
            return False
        try:
            return object_of(decode(said.decode("utf-8", "replace"))).get("type") in self._finals
        except (ValueError, RecursionError):
            return False


def _has_any(data: bytes, marks: tuple[bytes, ...]) -> bool:
    return any(mark in data for mark in marks)


def _line_end(data: bytes, at: int) -> int:
    """Where the line ends, or -1 while it goes on."""
    end = data.find(b"\n", at)
    carriage = data.find(b"\r", at, end if end >= 0 else len(data))
    return end if carriage < 0 else carriage

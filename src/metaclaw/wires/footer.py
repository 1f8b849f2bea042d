"""One line of text behind an answer, in the client's own wire, whole or streamed.

Only behind an answer that ended by itself in plain words: never behind tool calls, JSON, or an answer that was cut off. Everything
the provider said is passed on as it came, except the one event or body that must tell of the added text.
"""

import re
from typing import Final, Protocol

from metaclaw.domain.chat import Wire
from metaclaw.wires.fields import Object, decode, encode, object_of
from metaclaw.wires.format import wire_format
from metaclaw.wires.sse import split_events

_DATA: Final = re.compile(rb"(?m)^data:[ ]?(.*?)\r?$")
_JSON_BEGINS: Final = ("{", "[", "```json")


class FooterRules(Protocol):
    """How a line is added to the answers of one wire."""

    def add_to_answer(self, footer: "Footer", answer: Object) -> bool:
        """Add the line to a whole answer; False where it must stay as it is."""

    def add_to_event(self, footer: "Footer", raw: bytes, body: Object) -> bytes:
        """An event of a stream, with the line before or in it if this is where it belongs."""


class Footer:
    """Puts a line behind one answer. `is_added` says whether it was possible."""

    def __init__(self, wire: Wire, line: str) -> None:
        self.line = line
        self._rules = wire_format(wire).footer
        self._buffer = b""
        self._begins = ""
        self.parts = 0
        """How many parts of the answer have begun."""
        self.is_plain = True
        """Whether all of the answer so far is plain words."""
        self.is_added = False

    def whole(self, body: bytes) -> bytes:
        """A whole answer with the line behind it, or as it is."""
        try:
            answer = object_of(decode(body.decode("utf-8")))
        except (ValueError, RecursionError):
            return body
        self.is_added = self._rules.add_to_answer(self, answer)
        return encode(answer) if self.is_added else body

    def feed(self, chunk: bytes) -> bytes:
        """The bytes that the client is shown for these; an event that is not whole yet waits for its end."""
        events, self._buffer = split_events(self._buffer + chunk)
        return b"".join(map(self._event, events))

    def close(self) -> bytes:
        """What is left when the stream has ended."""
        rest, self._buffer = self._buffer, b""
        return self._event(rest) if rest else b""

    def _event(self, raw: bytes) -> bytes:
        if self.is_added or not self.is_plain:
            return raw
        found = _DATA.search(raw)
        try:
            body = object_of(decode(found[1].decode("utf-8"))) if found is not None and found[1].startswith(b"{") else {}
        except (ValueError, RecursionError):
            return raw
        return self._rules.add_to_event(self, raw, body)

    def hear(self, text: str) -> None:
        """Take in what the answer says, to see how it begins."""
        if len(self._begins) < 16:
            self._begins = (self._begins + text).lstrip()[:16]

    @property
    def may_add(self) -> bool:
        """Whether the answer, as far as it is known, is plain words."""
        return self.is_plain and bool(self._begins) and not self._begins.startswith(_JSON_BEGINS)

"""What is changed in relayed answers: tool calls are held back until all are known, and put back into later requests as they were;
one line of text is added.

The line stands only behind an answer that ended by itself in plain words: never behind tool calls, JSON, or an answer that was cut
off. Everything the provider said is passed on as it came, except the one event or body that must tell of the added text.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from metaclaw.domain.chat import Json, Wire
from metaclaw.domain.turn import ShownCall, TrueAnswer
from metaclaw.wires.fields import Object, decode, decode_or_text, encode, list_of, object_of
from metaclaw.wires.format import wire_format
from metaclaw.wires.sse import EventParser, has_any, last_event_end, split_events

_EMPTY: Final = (b'"content":""', b'"content": ""')
_WHOLE_ENDS: Final = (b"\n\n", b"\r\n\r\n")


TURN_MARK = "t_"
"""How the mark begins that is a turn's id; any other is all of a message's text."""
_UNIQUE_CHARS = 16
"""Ids of this length are not given twice by chance."""


@dataclass(frozen=True, slots=True)
class HeldCall:
    """A tool call. `kind` is the wire's own word for this kind of call."""

    id: str
    name: str
    arguments: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class AttemptMessages:
    """What a provider said once. `messages` are what a later request says of it; `is_exact` is False where that cannot be said
    exactly, or its calls cannot be answered: then the provider is not asked again."""

    id: str
    messages: tuple[Json, ...]
    calls: tuple[HeldCall, ...]
    is_exact: bool = True


class CallRules(Protocol):
    """How tool calls are found in the answers of one wire."""

    marks: tuple[bytes, ...]
    """One of these is in every answer, and in every first event of a call, that has calls."""
    words: tuple[bytes, ...]
    """One of these is in every event that has text or reasoning."""

    def whole(self, answer: Object) -> list[HeldCall]:
        """The calls of a whole answer that its client is to run."""

    def read(self, held: bytes) -> list[HeldCall]:
        """The calls in the events of a stream from its first call on; the last may not be whole."""

    def begins_call(self, body: Object) -> bool:
        """Whether an event tells of a call for the first time."""

    def passes(self, body: Object) -> bool:
        """Whether an event behind the first call may be sent on."""

    def all_wait(self, chunk: bytes) -> bool:
        """Whether whole events behind the first call may all wait, told without reading them; False where some should pass."""


def has_call_mark(wire: Wire, body: bytes) -> bool:
    """Whether an answer may hold tool calls; False is certain."""
    return has_any(body, wire_format(wire).calls.marks)


def whole_calls(wire: Wire, body: bytes) -> list[HeldCall]:
    """The calls of a whole answer that its client is to run."""
    return wire_format(wire).calls.whole(object_of(decode_or_text(body)))


class CallHold:
    """Splits a stream into what a client may see at once and what waits for a decision about its tool calls.

    From the first event of a call on everything waits, in its order, except pings, and, in chat completions, whose order does not
    matter, text. An event goes out when it is whole. Events that wait are read once, when the calls are asked for.
    """

    def __init__(self, wire: Wire) -> None:
        self._rules = wire_format(wire).calls
        self._buffer = b""
        self._held: list[bytes] = []
        self.has_calls = False
        self.has_words = False
        """Whether text or reasoning has gone out."""

    @property
    def held(self) -> bytes:
        return b"".join(self._held)

    @property
    def unfinished(self) -> bytes:
        """The beginning of an event whose end has not come."""
        return self._buffer

    @property
    def calls(self) -> list[HeldCall]:
        return self._rules.read(self.held)

    def is_free_of_calls(self, chunk: bytes) -> bool:
        """Whether no call has begun and this piece is whole events without one: it may be sent on without `feed`."""
        return not (self.has_calls or self._buffer) and chunk.endswith(_WHOLE_ENDS) and not has_any(chunk, self._rules.marks)

    def feed(self, chunk: bytes) -> bytes:
        """Take bytes as they came; return those that may be sent on at once."""
        if not self._buffer and chunk.endswith(_WHOLE_ENDS):
            if self.has_calls:
                if self._all_wait(chunk):
                    self._held.append(chunk)
                    return b""
            elif not has_any(chunk, self._rules.marks):
                self._look_for_words(chunk)
                return chunk
        data = self._buffer + chunk if self._buffer else chunk
        passed: list[bytes] = []
        if not self.has_calls:
            quiet = last_event_end(data, self._rules.marks)
            if quiet:
                self._look_for_words(words := data[:quiet])
                passed.append(words)
                data = data[quiet:]
        events, self._buffer = split_events(data)
        for place, event in enumerate(events):
            had_calls = self.has_calls
            (passed if self._passes(event) else self._held).append(event)
            if self.has_calls and not had_calls and self._all_wait(rest := b"".join(events[place + 1 :])):
                self._held.append(rest)
                break
        return b"".join(passed)

    def _all_wait(self, events: bytes) -> bool:
        """Whether whole events behind the first call all wait; False where some may pass."""
        return not (events.startswith(b":") or b"\n:" in events) and self._rules.all_wait(events)

    def close(self) -> bytes:
        """What is left when the stream has ended."""
        rest, self._buffer = self._buffer, b""
        if not rest or self._passes(rest):
            return rest
        self._held.append(rest)
        return b""

    def _look_for_words(self, data: bytes) -> None:
        if self.has_words or not has_any(data, self._rules.words):
            return
        events = split_events(data)[0] if has_any(data, _EMPTY) else [data]
        self.has_words = any(has_any(event, self._rules.words) and not has_any(event, _EMPTY) for event in events)

    def _passes(self, event: bytes) -> bool:
        if not self.has_calls and not has_any(event, self._rules.marks):
            self._look_for_words(event)
            return True
        body = event_body(event)
        if body is None:
            return True  # a comment
        self.has_calls = self.has_calls or self._rules.begins_call(body)
        return not self.has_calls or self._rules.passes(body)


def event_body(event: bytes) -> Object | None:
    """The data of an event; None where it has none, and empty where that is no JSON object."""
    lines = [line[5:] for line in event.splitlines() if line.startswith(b"data:")]
    return object_of(decode_or_text(b"\n".join(lines))) if lines else None


def events_of(said: bytes) -> Iterator[Object]:
    """The bodies of a stream's events; what is no JSON object is left out."""
    parser = EventParser()
    for event in (*parser.feed(said), *parser.close()):
        try:
            body = decode(event.data) if event.data.startswith("{") else None
        except (ValueError, RecursionError):
            continue
        if isinstance(body, dict):
            yield body


def read_json(text: str) -> Json:
    """A call's arguments as JSON; as they were written where they are none."""
    try:
        found: Json = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text
    return found


def plain_id(identity: str) -> str:
    """An id without punctuation: some clients take it out."""
    return "".join(character for character in identity if character.isalnum())


def is_shown(shown: Sequence[ShownCall], found: Sequence[tuple[str, Json]]) -> bool:
    """Whether the calls of a message, as ids and arguments, are those that a client was shown."""
    if not shown or len(shown) != len(found):
        return False
    known = {plain_id(call.id): call for call in shown}
    for identity, arguments in found:
        call = known.get(plain_id(identity))
        if call is None:
            return False
        given = read_json(arguments) if isinstance(arguments, str) else arguments
        if given != read_json(call.arguments) and len(plain_id(identity)) < _UNIQUE_CHARS:
            return False
    return True


def ids_of(answer: TrueAnswer) -> Mapping[str, str]:
    """The provider's ids of the shown calls, by their form without punctuation."""
    return {plain_id(call.id): call.id for call in answer.calls}


def texts_in(value: Json) -> Iterator[str]:
    """The texts of a message's content: a string, or parts."""
    if isinstance(value, str):
        yield value
    for part in list_of(value):
        text = object_of(part).get("text")
        if isinstance(text, str):
            yield text


def has_mark(answer: TrueAnswer, *contents: Json) -> bool:
    """Whether a message that has no calls is the one that this answer stands for: it has the turn's id in it, or just its text."""
    if answer.calls or not answer.mark:
        return False
    said = plain_text("".join(text for content in contents for text in texts_in(content)))
    return said == answer.mark or (answer.mark.startswith(TURN_MARK) and answer.mark in said)


def plain_text(text: str) -> str:
    """A text without white space, to be compared by: clients join texts in their own ways."""
    return "".join(text.split())


def told(value: Object, keys: Iterable[str] = ()) -> Object:
    """An object without what says nothing: nulls and empty lists, which some servers send and do not take back."""
    return {key: inner for key, inner in value.items() if inner not in (None, []) or key in keys}


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
        answer = object_of(decode_or_text(body))
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
        return self._rules.add_to_event(self, raw, event_body(raw) or {})

    def hear(self, text: str) -> None:
        """Take in what the answer says, to see how it begins."""
        if len(self._begins) < 16:
            self._begins = (self._begins + text).lstrip()[:16]

    @property
    def may_add(self) -> bool:
        """Whether the answer, as far as it is known, is plain words."""
        return self.is_plain and bool(self._begins) and not self._begins.startswith(_JSON_BEGINS)

"""Changes to relayed answers: hold tool calls back, restore true answers in later requests, and add
one line of text.

The line is added only to a complete answer in plain text: never behind tool calls, JSON, or an
answer that was cut off. All other bytes of the provider are relayed unchanged, except the event or
body that must include the added text."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from metaclaw.domain.chat import Json, Wire
from metaclaw.domain.turn import ShownCall, TrueAnswer
from metaclaw.wires.fields import (
    Object,
    decode_json,
    decode_or_text,
    encode_json,
    list_of,
    object_of,
    text_of,
)
from metaclaw.wires.format import FooterPlace, HeldCall, wire_format
from metaclaw.wires.sse import EventParser, has_any, last_event_end, split_events

_EMPTY: Final = (b'"content":""', b'"content": ""')
_WHOLE_ENDS: Final = (b"\n\n", b"\r\n\r\n")


TURN_MARK = "t_"
"""The prefix of a mark that is a turn's id. Any other mark is the whole text of a message."""
_UNIQUE_CHARS = 16
"""Ids of at least this length are taken for unique."""


def has_call_mark(wire: Wire, body: bytes) -> bool:
    """Whether an answer may contain tool calls; False is certain."""
    return has_any(body, wire_format(wire).calls.marks)


def streamed_calls(wire: Wire, stream: bytes) -> list[HeldCall]:
    """The calls in these events of a stream."""
    return wire_format(wire).calls.read(stream)


def whole_calls(wire: Wire, body: bytes) -> list[HeldCall]:
    """The calls of a whole answer that its client is to run."""
    return wire_format(wire).calls.whole(object_of(decode_or_text(body)))


class CallHold:
    """Splits a stream into bytes for the client and bytes that wait until its tool calls have been
    judged.

    From the first event of a call on, all events wait, except pings, and except text in chat
    completions, where the order does not matter. An event is released when it is complete."""

    def __init__(self, wire: Wire, only: Sequence[str] = ()) -> None:
        """`only` are the names of the calls that wait with what follows them; if it is empty, all
        calls wait.
        """
        self._rules = wire_format(wire).calls
        self._only = only
        self._marks = tuple(name.encode() for name in only) or self._rules.marks
        self._buffer = b""
        self._held: list[bytes] = []
        self.has_calls = False
        self.has_words = False
        """Whether text or reasoning has been released."""

    @property
    def held(self) -> bytes:
        return b"".join(self._held)

    @property
    def unfinished(self) -> bytes:
        """The beginning of an incomplete event."""
        return self._buffer

    def is_free_of_calls(self, chunk: bytes) -> bool:
        """Whether no call has begun and this chunk is complete events without calls: it may be sent
        without `feed`.
        """
        return (
            not (self.has_calls or self._buffer)
            and chunk.endswith(_WHOLE_ENDS)
            and not has_any(chunk, self._marks)
        )

    def feed(self, chunk: bytes) -> bytes:
        """Take received bytes; return those that may be sent at once."""
        if not self._buffer and chunk.endswith(_WHOLE_ENDS):
            if self.has_calls:
                if self._all_wait(chunk):
                    self._held.append(chunk)
                    return b""
            elif not has_any(chunk, self._marks):
                self._look_for_words(chunk)
                return chunk
        data = self._buffer + chunk if self._buffer else chunk
        passed: list[bytes] = []
        if not self.has_calls:
            callless_end = last_event_end(data, self._marks)
            if callless_end:
                self._look_for_words(words := data[:callless_end])
                passed.append(words)
                data = data[callless_end:]
        events, self._buffer = split_events(data)
        for place, event in enumerate(events):
            had_calls = self.has_calls
            (passed if self._passes(event) else self._held).append(event)
            if (
                self.has_calls
                and not had_calls
                and self._all_wait(rest := b"".join(events[place + 1 :]))
            ):
                self._held.append(rest)
                break
        return b"".join(passed)

    def _all_wait(self, events: bytes) -> bool:
        """Whether all of these complete events behind the first call wait."""
        return not (events.startswith(b":") or b"\n:" in events) and self._rules.all_wait(events)

    def close(self) -> bytes:
        """Return what may be sent of an incomplete last event, when the stream has ended."""
        rest, self._buffer = self._buffer, b""
        if not rest or self._passes(rest):
            return rest
        self._held.append(rest)
        return b""

    def _look_for_words(self, data: bytes) -> None:
        if self.has_words or not has_any(data, self._rules.words):
            return
        events = split_events(data)[0] if has_any(data, _EMPTY) else [data]
        self.has_words = any(
            has_any(event, self._rules.words) and not has_any(event, _EMPTY) for event in events
        )

    def _passes(self, event: bytes) -> bool:
        if not self.has_calls and not has_any(event, self._marks):
            self._look_for_words(event)
            return True
        body = event_body(event)
        if body is None:
            return True  # a comment
        self.has_calls = self.has_calls or self._must_wait(self._rules.begun(body))
        return not self.has_calls or self._rules.passes(body)

    def _must_wait(self, begun: Sequence[str]) -> bool:
        if not self._only:
            return bool(begun)
        return not set(self._only).isdisjoint(begun)


def event_body(event: bytes) -> Object | None:
    """The data of an event; None if it has no data, empty if the data is not a JSON object."""
    lines = [line[5:] for line in event.splitlines() if line.startswith(b"data:")]
    return object_of(decode_or_text(b"\n".join(lines))) if lines else None


def events_of(stream: bytes) -> Iterator[Object]:
    """The data of a stream's events; data that is not a JSON object is left out."""
    parser = EventParser()
    for event in (*parser.feed(stream), *parser.close()):
        try:
            body = decode_json(event.data) if event.data.startswith("{") else None
        except (ValueError, RecursionError):
            continue
        if isinstance(body, dict):
            yield body


def read_json(text: str) -> Json:
    """Decode a call's arguments; return them unchanged if they are not JSON."""
    try:
        found: Json = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text
    return found


def plain_id(identity: str) -> str:
    """An id without punctuation, because some clients strip it."""
    return "".join(character for character in identity if character.isalnum())


def is_shown(shown: Sequence[ShownCall], items: Sequence[tuple[str, Json]]) -> bool:
    """Whether the calls of a message, as ids and arguments, are the ones that a client was
    shown.
    """
    if not shown or len(shown) != len(items):
        return False
    known = {plain_id(call.id): call for call in shown}
    for identity, arguments in items:
        call = known.get(plain_id(identity))
        if call is None:
            return False
        decoded = read_json(arguments) if isinstance(arguments, str) else arguments
        if decoded != read_json(call.arguments) and len(plain_id(identity)) < _UNIQUE_CHARS:
            return False
    return True


def ids_of(answer: TrueAnswer) -> Mapping[str, str]:
    """The provider's ids of the shown calls, by their ids without punctuation."""
    return {plain_id(call.id): call.id for call in answer.calls}


def with_true_id(item: Object, key: str, known: Mapping[str, str]) -> Object | None:
    """The result of a call with the provider's id under `key`, if a client has changed it; else
    None. `known` are the provider's ids (`ids_of`)."""
    given = text_of(item.get(key))
    true = known.get(plain_id(given)) if given else None
    return None if true is None or true == given else {**item, key: true}


def texts_in(value: Json) -> Iterator[str]:
    """The texts of a message's content: a string, or parts."""
    if isinstance(value, str):
        yield value
    for part in list_of(value):
        text = object_of(part).get("text")
        if isinstance(text, str):
            yield text


def has_mark(answer: TrueAnswer, *contents: Json) -> bool:
    """Whether a message without calls is what the client was shown: it contains the turn's id, or
    equals the text.
    """
    if answer.calls or not answer.mark:
        return False
    said = plain_text("".join(text for content in contents for text in texts_in(content)))
    return said == answer.mark or (answer.mark.startswith(TURN_MARK) and answer.mark in said)


def plain_text(text: str) -> str:
    """A text without white space, for comparing: clients join texts differently."""
    return "".join(text.split())


def without_empty(value: Object, keys: Iterable[str] = ()) -> Object:
    """An object without nulls and empty lists, except under `keys`: some servers send these but do
    not accept them.
    """
    return {key: inner for key, inner in value.items() if inner not in (None, []) or key in keys}


_MAX_WAITING_BYTES: Final = 4 * 1024 * 1024
"""An answer with more bytes in one event is not changed."""


class Footer:
    """Appends a line to one answer. `is_added` says whether that was possible."""

    def __init__(self, wire: Wire, line: str) -> None:
        self._rules = wire_format(wire).footer
        self._place = FooterPlace(line)
        self._buffer = b""

    @property
    def is_added(self) -> bool:
        return self._place.is_added

    def whole(self, body: bytes) -> bytes:
        """Return a whole answer with the line appended, or unchanged."""
        answer = object_of(decode_or_text(body))
        self._place.is_added = self._rules.add_to_answer(self._place, answer)
        return encode_json(answer) if self.is_added else body

    def feed(self, chunk: bytes) -> bytes:
        """Return the bytes to send for these; an incomplete event waits for its end."""
        data, place = self._buffer + chunk, self._place
        if place.is_added or not place.is_plain or len(data) > _MAX_WAITING_BYTES:
            self._buffer, place.is_plain = b"", place.is_plain and place.is_added
            return data
        events, self._buffer = split_events(data)
        return b"".join(map(self._event, events))

    def close(self) -> bytes:
        """Return an incomplete last event, when the stream has ended."""
        rest, self._buffer = self._buffer, b""
        return self._event(rest) if rest else b""

    def _event(self, raw: bytes) -> bytes:
        if self._place.is_added or not self._place.is_plain:
            return raw
        return self._rules.add_to_event(self._place, raw, event_body(raw) or {})

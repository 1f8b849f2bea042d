"""Reading a provider's stream: events of any wire become deltas."""

from typing import Protocol

from metaclaw.domain.chat import Begin, Delta, End, Failed
from metaclaw.errors import UpstreamError
from metaclaw.wires.fields import Object, decode_object, provider_at_fault
from metaclaw.wires.sse import Event, EventParser

TRUNCATED = Failed("the provider's stream ended before the answer was whole", "upstream_truncated")


class Meaning(Protocol):
    """What the events of one wire mean. It is told events in order, and then either that they are done or that they stopped."""

    def event(self, name: str | None, body: Object) -> list[Delta]:
        """The deltas one event stands for."""

    def close(self) -> list[Delta]:
        """The deltas that are due when no further event comes: an End if the answer was whole, else a Failed."""

    def done(self) -> list[Delta]:
        """The deltas that are due at `[DONE]`."""


class Reader:
    """Bytes in any split to deltas. After an End or a Failed it says nothing more."""

    def __init__(self, meaning: Meaning) -> None:
        self._events = EventParser()
        self._meaning = meaning
        self._begun = False
        self._over = False

    def feed(self, data: bytes) -> list[Delta]:
        """The deltas these bytes complete."""
        if self._over:
            return []
        try:
            return self._in_order(self._read(self._events.feed(data)))
        except UpstreamError as error:
            return self._fail(error)

    def close(self) -> list[Delta]:
        """The last deltas, once the provider has closed the stream."""
        if self._over:
            return []
        try:
            deltas = [delta for event in self._events.close() for delta in self._understand(event)]
        except UpstreamError:
            deltas = []  # the end of the stream is missing, and so is the end of its last event
        if not deltas or not isinstance(deltas[-1], End | Failed):
            deltas += self._meaning.close()
        self._over = True
        return self._in_order(deltas)

    def _in_order(self, deltas: list[Delta]) -> list[Delta]:
        """One Begin, and before everything else, also where a server leaves it out or says it twice."""
        ordered: list[Delta] = []
        for delta in deltas:
            if isinstance(delta, Begin):
                if self._begun:
                    continue
                self._begun = True
            elif not self._begun and not isinstance(delta, Failed):
                self._begun = True
                ordered.append(Begin("", ""))
            ordered.append(delta)
        return ordered

    def _read(self, events: list[Event]) -> list[Delta]:
        deltas: list[Delta] = []
        for event in events:
            try:
                deltas += self._understand(event)
            except UpstreamError as error:
                deltas += self._fail(error)
            if self._over or (deltas and isinstance(deltas[-1], End | Failed)):
                self._over = True
                break
        return deltas

    def _understand(self, event: Event) -> list[Delta]:
        if event.data.startswith("[DONE]"):
            return self._meaning.done()
        if not event.data:
            return []
        with provider_at_fault("an event"):
            return self._meaning.event(event.name, decode_object(event.data, "an event"))

    def _fail(self, error: UpstreamError) -> list[Delta]:
        self._over = True
        return [Failed(str(error), error.code)]

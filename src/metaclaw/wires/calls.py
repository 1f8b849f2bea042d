"""Tool calls in turn: wires that write one call after another, fed by models that may write several at once."""

from dataclasses import dataclass

import msgspec

from metaclaw.domain.chat import ToolCallDelta
from metaclaw.errors import UpstreamError


@dataclass(slots=True)
class Call:
    """A tool call as far as it is written. `unsaid` is what came in since it was last looked at."""

    index: int
    id: str
    name: str
    arguments: str = ""
    unsaid: str = ""


class CallQueue:
    """Lets one call be written at a time; the others wait until its arguments are whole."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._shut: set[int] = set()

    @property
    def open(self) -> Call | None:
        """The call that is being written now."""
        return self._calls[0] if self._calls else None

    def add(self, delta: ToolCallDelta) -> None:
        """Take in a piece. Raises UpstreamError for a piece of a call that is over or never began."""
        call = next((call for call in self._calls if call.index == delta.index), None)
        if call is None:
            if delta.index in self._shut and not delta.arguments.strip():
                return
            if delta.name is None or delta.index in self._shut:
                raise UpstreamError("the provider sent a piece of a tool call that is not being made", code="upstream_garbage")
            call = Call(delta.index, delta.id or f"call_{delta.index}", delta.name)
            self._calls.append(call)
        call.arguments += delta.arguments
        call.unsaid += delta.arguments

    def is_next_due(self) -> bool:
        """Whether another call waits and this one cannot get longer."""
        return len(self._calls) > 1 and _is_whole(self._calls[0].arguments)

    def shut(self) -> None:
        """The open call is over."""
        self._shut.add(self._calls.pop(0).index)


def _is_whole(arguments: str) -> bool:
    """An object that is closed cannot get longer; a number or a word could."""
    try:
        return isinstance(msgspec.json.decode(arguments), dict)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False

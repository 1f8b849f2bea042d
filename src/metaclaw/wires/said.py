"""What an answer said, from the bytes its reader saw: whole, streamed, or broken off."""

from collections.abc import Iterable, Iterator

from metaclaw.domain.chat import Completion, Delta, End, Failed, Finish, Part, Wire
from metaclaw.errors import UpstreamError
from metaclaw.wires.collect import collect
from metaclaw.wires.format import wire_format


def read_answer(wire: Wire, stream: bool, body: bytes) -> Completion:
    """The answer in these bytes. Raises UpstreamError if they hold none, or tell of a failure."""
    return collect(_deltas(wire, body)) if stream else wire_format(wire).parse_answer(body)


def said_parts(wire: Wire, stream: bool, shown: bytes, *, partial: bool = False) -> tuple[Part, ...]:
    """What an answer said; nothing where that cannot be read. With `partial`, a stream that broke off said what had come."""
    try:
        if stream and partial:
            return collect(_as_far_as_it_went(_deltas(wire, shown))).parts
        return read_answer(wire, stream, shown).parts
    except UpstreamError:
        return ()


def _deltas(wire: Wire, body: bytes) -> list[Delta]:
    reader = wire_format(wire).reader()
    return [*reader.feed(body), *reader.close()]


def _as_far_as_it_went(deltas: Iterable[Delta]) -> Iterator[Delta]:
    for delta in deltas:
        if isinstance(delta, Failed):
            break
        yield delta
    yield End(Finish.OTHER)

"""A turn as a person reads it: what was asked, what was placed in the prompt, and what the client saw as the answer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from metaclaw.dashboard.titles import Words, short, words_in
from metaclaw.domain.chat import Image, Message, Opaque, Part, Reasoning, Role, Text, ToolCall, ToolResult, Wire
from metaclaw.domain.turn import Turn
from metaclaw.errors import UpstreamError, WireError
from metaclaw.wires import decode_json, read_answer, said_parts, wire_format

_MOST_CHARS: Final = 60_000
_WHO: Final = {Role.SYSTEM: "System", Role.USER: "Person", Role.ASSISTANT: "Agent", Role.TOOL: "Tool"}


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of text; `is_placed` if the proxy put it there."""

    text: str
    is_placed: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a message. `kind` is text, thinking, call, result, image or other; `title` names a tool."""

    kind: str
    segments: tuple[Segment, ...]
    title: str = ""
    is_error: bool = False
    cut: int = 0
    """How many characters are not shown."""

    @property
    def has_placed(self) -> bool:
        """Whether the proxy put something into it."""
        return any(one.is_placed for one in self.segments)

    @property
    def text(self) -> str:
        """All of the text that is shown."""
        return "".join(one.text for one in self.segments)


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """One entry of a conversation. `words` are the person's own; the pieces hold what a program put around them, too."""

    who: str
    pieces: tuple[Piece, ...]
    words: str = ""

    @property
    def has_placed(self) -> bool:
        """Whether the proxy put something into it."""
        return any(piece.has_placed for piece in self.pieces)

    @property
    def summary(self) -> str:
        """One line of it."""
        first = next(iter(self.pieces), None)
        if first is None:
            return "nothing"
        return short(" ".join(filter(None, (first.title, self.words or first.text[:400]))), 100)

    @property
    def size(self) -> int:
        """How many characters it has."""
        return sum(len(piece.text) + piece.cut for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class ShownTurn:
    """A turn's words. `raw` holds a request or answer that cannot be read as messages."""

    asked: tuple[ShownMessage, ...]
    answer: ShownMessage
    raw: str = ""


def read_turn(turn: Turn, words: Words, *, whole: bool, most: int = _MOST_CHARS) -> ShownTurn:
    """The turn in words. `whole`: the prompt as the provider got it, with what was placed marked; otherwise only what is new since
    the agent last spoke. No piece of text is longer than `most` characters."""
    body, wire = (turn.exchange.sent, turn.provider_wire) if whole else (turn.exchange.request, turn.wire)
    placed = [block.text for block in turn.placements] if whole else []
    messages = _messages(wire, body)
    raw = "" if messages is not None else body.decode("utf-8", "replace")[:most]
    shown = messages or ()
    if not whole:
        last = max((at for at, one in enumerate(shown) if one.role is Role.ASSISTANT), default=-1)
        shown = tuple(one for one in shown[last + 1 :] if one.role is not Role.SYSTEM)
    asked = tuple(_shown(one, placed, words_in(words, turn.agent, one), most) for one in shown)
    return ShownTurn(asked, _answer(turn, most), raw)


def last_words(turn: Turn, words: Words) -> str:
    """What the person said last before a turn; empty where that cannot be read."""
    messages = _messages(turn.wire, turn.exchange.request) or ()
    return next(filter(None, (words_in(words, turn.agent, one) for one in reversed(messages))), "")


def _messages(wire: Wire, body: bytes) -> tuple[Message, ...] | None:
    try:
        value = decode_json(body)
        return wire_format(wire).parse_request(value).messages if isinstance(value, dict) else None
    except (WireError, ValueError, RecursionError):
        return None


def _answer(turn: Turn, most: int) -> ShownMessage:
    shown = turn.exchange.shown
    parts: Sequence[Part]
    try:
        parts = read_answer(turn.wire, turn.stream, shown).parts
    except UpstreamError:
        parts = said_parts(turn.wire, turn.stream, shown, partial=True) or (Text(shown.decode("utf-8", "replace")),)
    return ShownMessage("Agent", tuple(_piece(part, (), most) for part in parts))


def _shown(message: Message, placed: Sequence[str], words: str, most: int) -> ShownMessage:
    who = _WHO[message.role] if isinstance(message.role, Role) else str(message.role)
    pieces = tuple(_piece(part, placed, most) for part in message.parts)
    if message.role is Role.USER and pieces and all(piece.kind == "result" for piece in pieces):
        who = "Tool"
    return ShownMessage(who, pieces, words)


def _piece(part: Part, placed: Sequence[str], most: int) -> Piece:
    match part:
        case Text():
            return _cut("text", part.text, placed, most)
        case Reasoning():
            return _cut("thinking", part.text or "(not shown by the provider)", (), most)
        case ToolCall():
            return _cut("call", part.arguments, (), most, title=part.name)
        case ToolResult():
            return _cut("result", "\n".join(_inner(part.parts)), placed, most, is_error=part.is_error)
        case Image():
            return Piece("image", (Segment("(picture)"),))
        case Opaque():
            return _cut("other", str(part.value), (), most)


def _inner(parts: Iterable[Text | Image | Opaque]) -> Iterable[str]:
    for part in parts:
        yield part.text if isinstance(part, Text) else "(picture)" if isinstance(part, Image) else str(part.value)


def _cut(kind: str, text: str, placed: Sequence[str], most: int, *, title: str = "", is_error: bool = False) -> Piece:
    """What was placed is marked and never cut; of the rest at most so much is shown."""
    segments: list[Segment] = []
    room, cut = most, 0
    for segment in _marked(text, placed):
        kept = segment.text if segment.is_placed else segment.text[:room]
        room -= 0 if segment.is_placed else len(kept)
        cut += len(segment.text) - len(kept)
        if kept:
            segments.append(Segment(kept, segment.is_placed))
    return Piece(kind, tuple(segments), title, is_error, cut)


def _marked(text: str, placed: Sequence[str]) -> Iterable[Segment]:
    """A text in stretches: those that the proxy placed, and what stands between them."""
    found = sorted((at, block) for block in placed if block and (at := text.find(block)) >= 0)
    end = 0
    for at, block in found:
        if at < end:
            continue
        yield Segment(text[end:at])
        yield Segment(block, is_placed=True)
        end = at + len(block)
    yield Segment(text[end:])

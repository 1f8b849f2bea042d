"""Sessions and turns for people: titles, the messages of a turn, and why rules and skills were in
its prompt.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from metaclaw.api.router import ApiError
from metaclaw.api.status_words import short
from metaclaw.api.views import enforced_view
from metaclaw.domain.chat import (
    Image,
    Message,
    Opaque,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    Wire,
)
from metaclaw.domain.ids import SessionId
from metaclaw.domain.status import attempt_word, client_got
from metaclaw.domain.turn import HoldEnd, Turn, TurnKind
from metaclaw.errors import UpstreamError, WireError
from metaclaw.store import FirstRequest, Overview
from metaclaw.wires import decode_json, read_answer, said_parts, wire_format

_MOST_TITLE_CHARS: Final = 120
_MOST_TITLES: Final = 50_000
_TITLES_AT_ONCE: Final = 8
_MOST_CHARS: Final = 60_000
MOST_ARGUMENTS: Final = 500
_MOST_NAMED: Final = 5
_WHO: Final = {
    Role.SYSTEM: "System",
    Role.USER: "Client",
    Role.ASSISTANT: "Agent",
    Role.TOOL: "Tool",
}
Words = Callable[[str, str], str]
"""A function that returns the user's own words in a text, given the agent and the text."""


class Titles:
    """Computes titles of sessions and searches in them. Every method blocks, and may be called from
    several threads.
    """

    def __init__(self, overview: Overview, words: Words) -> None:
        self._overview = overview
        self._words = words
        self._lock = threading.Lock()
        self._known: dict[SessionId, str] = {}

    def of(self, sessions: Collection[SessionId]) -> Mapping[SessionId, str]:
        """The titles of these sessions; empty if a session has no words of a user."""
        with self._lock:
            found = {
                session: self._known[session] for session in sessions if session in self._known
            }
        missing = [session for session in sessions if session not in found]
        if missing:
            fresh = {
                opening.session: self._title(opening)
                for opening in self._overview.openings(missing)
            }
            found |= fresh
            with self._lock:
                self._known |= fresh
                while len(self._known) > _MOST_TITLES:
                    del self._known[next(iter(self._known))]
        return found

    def search(
        self, text: str, within_s: float, ids: Sequence[SessionId]
    ) -> tuple[list[SessionId], int]:
        """Those of these sessions whose title contains every word of a text, and the number of
        sessions still unread after `within_s`.
        """
        unread = self._read(ids, within_s)
        words = text.casefold().split()
        with self._lock:
            known = [
                (session, self._known[session].casefold())
                for session in ids
                if session in self._known
            ]
        return [session for session, title in known if all(word in title for word in words)], unread

    def unread(self) -> list[SessionId]:
        """Sessions whose titles are not known yet, newest first; at most `_MOST_TITLES`."""
        ids = self._overview.ids()[:_MOST_TITLES]
        with self._lock:
            return [session for session in ids if session not in self._known]

    def forget(self, session: SessionId) -> None:
        with self._lock:
            self._known.pop(session, None)

    def _read(self, ids: Sequence[SessionId], within_s: float) -> int:
        deadline = time.monotonic() + within_s
        with self._lock:
            missing = [session for session in ids if session not in self._known]
        read = 0
        while read < len(missing) and time.monotonic() < deadline:
            self.of(missing[read : read + _TITLES_AT_ONCE])
            read += _TITLES_AT_ONCE
        return max(0, len(missing) - read)

    def _title(self, opening: FirstRequest) -> str:
        messages = messages_of(opening.wire, opening.request) or ()
        said = (words_in(self._words, opening.agent, message) for message in messages)
        return short(next(filter(None, said), ""), _MOST_TITLE_CHARS)


def resolve(find: Callable[[str, int], Sequence[str]], named: str, what: str) -> str:
    """The whole id of the one session or turn whose id begins so; what is not known is returned as
    it is. Blocks. Raises ApiError if several begin so."""
    found = find(named, _MOST_NAMED)
    if len(found) < 2 or named in found:
        return named if named in found or not found else found[0]
    more = ", …" if len(found) == _MOST_NAMED else ""
    raise ApiError(
        f"{short(named, 40)} is the beginning of several {what}s: {', '.join(found)}{more}; write"
        " more of it",
        409,
    )


def words_in(words: Words, agent: str, message: Message) -> str:
    """The user's own words in a message; empty if there are none."""
    if message.role is not Role.USER:
        return ""
    said = (words(agent, part.text).strip() for part in message.parts if isinstance(part, Text))
    return "\n".join(filter(None, said))


@dataclass(frozen=True, slots=True)
class ShownText:
    """A piece of text; `is_placed` if the proxy inserted it."""

    text: str
    is_placed: bool = False


@dataclass(frozen=True, slots=True)
class ShownPart:
    """A part of a message. `kind` is text, added (a client's text in a message of a person),
    thinking, call, result, image or other; `title` names a tool."""

    kind: str
    segments: tuple[ShownText, ...]
    title: str = ""
    is_error: bool = False
    cut: int = 0
    """The number of characters that are not shown."""

    @property
    def has_placed(self) -> bool:
        """Whether the proxy inserted text into it."""
        return any(segment.is_placed for segment in self.segments)

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments)


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """One entry of a conversation. `words` are the user's own; the pieces also have what the client
    added to them. `who` is Person only if there are words."""

    who: str
    pieces: tuple[ShownPart, ...]
    words: str = ""

    @property
    def has_placed(self) -> bool:
        """Whether the proxy inserted text into it."""
        return any(piece.has_placed for piece in self.pieces)

    @property
    def summary(self) -> str:
        """Its beginning on one line."""
        first = next(iter(self.pieces), None)
        if first is None:
            return "nothing"
        return short(self.words or " ".join(filter(None, (first.title, first.text[:400]))), 100)

    @property
    def size(self) -> int:
        return sum(len(piece.text) + piece.cut for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class ShownTurn:
    """The messages of a turn. `raw` is the request if it cannot be parsed."""

    asked: tuple[ShownMessage, ...]
    answer: ShownMessage
    raw: str = ""


def read_turn(turn: Turn, words: Words, *, whole: bool, most: int = _MOST_CHARS) -> ShownTurn:
    """The messages of a turn for display. `whole`: the prompt as the provider got it, with placed
    text marked; otherwise only the messages since the agent last spoke. Texts are cut to `most`
    characters. In a side turn, nothing is taken for a user's words."""
    body, wire = (
        (turn.exchange.sent, turn.provider_wire) if whole else (turn.exchange.request, turn.wire)
    )
    placed = [block.text for block in turn.placements] if whole else []
    messages = messages_of(wire, body)
    raw = "" if messages is not None else body.decode("utf-8", "replace")[:most]
    shown = messages or ()
    if not whole:
        last = max(
            (at for at, message in enumerate(shown) if message.role is Role.ASSISTANT), default=-1
        )
        shown = tuple(message for message in shown[last + 1 :] if message.role is not Role.SYSTEM)
    if turn.kind is not TurnKind.MAIN:
        words = _no_words
    asked = tuple(_shown(message, placed, words, turn.agent, most) for message in shown)
    return ShownTurn(asked, _answer(turn, most), raw)


def _no_words(agent: str, text: str) -> str:
    return ""


def last_words(turn: Turn, words: Words) -> str:
    """The user's last words in the request of a turn; empty if it cannot be parsed."""
    messages = messages_of(turn.wire, turn.exchange.request) or ()
    return next(
        filter(None, (words_in(words, turn.agent, message) for message in reversed(messages))), ""
    )


def messages_of(wire: Wire, body: bytes) -> tuple[Message, ...] | None:
    """The messages of a request; None if it cannot be parsed."""
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
        parts = said_parts(turn.wire, turn.stream, shown, partial=True) or (
            Text(shown.decode("utf-8", "replace")),
        )
    return ShownMessage("Agent", tuple(_piece(part, (), most) for part in parts))


def _shown(
    message: Message, placed: Sequence[str], words: Words, agent: str, most: int
) -> ShownMessage:
    who = _WHO[message.role] if isinstance(message.role, Role) else str(message.role)
    pieces = tuple(_piece(part, placed, most) for part in message.parts)
    if message.role is Role.USER and pieces and all(piece.kind == "result" for piece in pieces):
        who = "Tool"
    said = words_in(words, agent, message)
    if not said:
        return ShownMessage(who, pieces)
    added = [
        isinstance(part, Text) and not words(agent, part.text).strip() for part in message.parts
    ]
    marked = (
        replace(piece, kind="added") if is_added else piece
        for piece, is_added in zip(pieces, added, strict=True)
    )
    return ShownMessage("Person", tuple(marked), said)


def _piece(part: Part, placed: Sequence[str], most: int) -> ShownPart:
    match part:
        case Text():
            return _cut("text", part.text, placed, most)
        case Reasoning():
            return _cut("thinking", part.text or "(not shown by the provider)", (), most)
        case ToolCall():
            return _cut("call", part.arguments, (), _MOST_CHARS, title=part.name)
        case ToolResult():
            return _cut(
                "result", "\n".join(inner(part.parts)), placed, most, is_error=part.is_error
            )
        case Image():
            return ShownPart("image", (ShownText("(picture)"),))
        case Opaque():
            return _cut("other", str(part.value), (), most)


def inner(parts: Iterable[Text | Image | Opaque]) -> Iterable[str]:
    for part in parts:
        match part:
            case Text():
                yield part.text
            case Image():
                yield "(picture)"
            case Opaque():
                yield str(part.value)


def _cut(
    kind: str,
    text: str,
    placed: Sequence[str],
    most: int,
    *,
    title: str = "",
    is_error: bool = False,
) -> ShownPart:
    """Mark placed text, which is never cut, and cut the rest to `most` characters."""
    segments: list[ShownText] = []
    room, cut = most, 0
    for segment in _marked(text, placed):
        kept = segment.text if segment.is_placed else segment.text[:room]
        room -= 0 if segment.is_placed else len(kept)
        cut += len(segment.text) - len(kept)
        if kept:
            segments.append(ShownText(kept, segment.is_placed))
    return ShownPart(kind, tuple(segments), title, is_error, cut)


def _marked(text: str, placed: Sequence[str]) -> Iterable[ShownText]:
    """Split a text into placed blocks and the text between them."""
    found = sorted((at, block) for block in placed if block and (at := text.find(block)) >= 0)
    end = 0
    for at, block in found:
        if at < end:
            continue
        yield ShownText(text[end:at])
        yield ShownText(block, is_placed=True)
        end = at + len(block)
    yield ShownText(text[end:])


def held_view(turn: Turn) -> dict[str, Any]:
    """The rules that held calls of an answer, each attempt, and what the client got; empty if
    nothing was held.
    """
    found = turn.enforcement
    if found is None:
        return {"enforced": [], "attempts": [], "got": ""}
    end = found.rules[0].end if found.rules else HoldEnd.COMPLIED
    calls = [_calls_of(one) for one in found.attempts]
    attempts: list[Any] = [
        {"turn": one.id, "calls": made, "became": attempt_word(end, number, len(calls))}
        for number, (one, made) in enumerate(zip(found.attempts, calls, strict=True), 1)
    ]
    got = client_got(end, has_calls=bool(calls and calls[-1]))
    return {
        "enforced": [enforced_view(one) for one in found.rules],
        "attempts": attempts,
        "got": got,
    }


def _calls_of(turn: Turn) -> list[Any]:
    parts = said_parts(turn.wire, turn.stream, turn.exchange.shown)
    return [
        {"name": part.name, "arguments": part.arguments[:MOST_ARGUMENTS]}
        for part in parts
        if isinstance(part, ToolCall)
    ]

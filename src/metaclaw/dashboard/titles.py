"""Titles of sessions: the first words a person said in them. Worked out when they are shown, and kept in memory."""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from metaclaw.domain.chat import Message, Role, Text
from metaclaw.domain.ids import SessionId
from metaclaw.errors import WireError
from metaclaw.store import FirstRequest, Overview
from metaclaw.wires import decode_json, wire_format

_MOST_CHARS: Final = 120
_MOST_KEPT: Final = 50_000
_AT_ONCE: Final = 8
Words = Callable[[str, str], str]
"""A person's own words in a text of an agent."""


class Titles:
    """Finds titles and searches in them. Every method blocks, and may be called from several threads."""

    def __init__(self, overview: Overview, words: Words) -> None:
        self._overview = overview
        self._words = words
        self._lock = threading.Lock()
        self._known: dict[SessionId, str] = {}

    def of(self, sessions: Collection[SessionId]) -> Mapping[SessionId, str]:
        """The titles of these sessions; an empty one where no person said anything."""
        with self._lock:
            found = {one: self._known[one] for one in sessions if one in self._known}
        missing = [one for one in sessions if one not in found]
        if missing:
            fresh = {one.session: self._title(one) for one in self._overview.openings(missing)}
            found |= fresh
            with self._lock:
                self._known |= fresh
                while len(self._known) > _MOST_KEPT:
                    del self._known[next(iter(self._known))]
        return found

    def search(self, text: str, within_s: float) -> tuple[list[SessionId], int]:
        """Sessions whose title holds every word of a text, and how many sessions are still unread after `within_s`."""
        ids = self._overview.ids()
        unread = self._read(ids, within_s)
        words = text.casefold().split()
        with self._lock:
            known = [(one, self._known[one].casefold()) for one in ids if one in self._known]
        return [one for one, title in known if all(word in title for word in words)], unread

    def unread(self) -> list[SessionId]:
        """Sessions whose titles are not known yet, newest first; no more than are kept."""
        ids = self._overview.ids()[:_MOST_KEPT]
        with self._lock:
            return [one for one in ids if one not in self._known]

    def forget(self, session: SessionId) -> None:
        """Let go of a session that is to be forgotten."""
        with self._lock:
            self._known.pop(session, None)

    def _read(self, ids: Sequence[SessionId], within_s: float) -> int:
        deadline = time.monotonic() + within_s
        with self._lock:
            missing = [one for one in ids if one not in self._known]
        read = 0
        while read < len(missing) and time.monotonic() < deadline:
            self.of(missing[read : read + _AT_ONCE])
            read += _AT_ONCE
        return max(0, len(missing) - read)

    def _title(self, opening: FirstRequest) -> str:
        try:
            value = decode_json(opening.request)
            messages = wire_format(opening.wire).parse_request(value).messages if isinstance(value, dict) else ()
        except (WireError, ValueError, RecursionError):
            return ""
        said = (words_in(self._words, opening.agent, message) for message in messages)
        return short(next(filter(None, said), ""))


def words_in(words: Words, agent: str, message: Message) -> str:
    """What a person says in a message; empty where only a program speaks."""
    if message.role is not Role.USER:
        return ""
    said = (words(agent, part.text).strip() for part in message.parts if isinstance(part, Text))
    return "\n".join(filter(None, said))


def short(text: str, most: int = _MOST_CHARS) -> str:
    """One line of a text."""
    line = " ".join(text[: 8 * most].split())
    return line if len(line) <= most else f"{line[: most - 1]}…"

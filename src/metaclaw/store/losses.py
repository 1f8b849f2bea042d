"""Losses: what the ledger could not keep, counted by kind, and said twice a spell rather than once an entry."""

import logging
from collections import Counter
from collections.abc import Iterable

from metaclaw.domain.turn import Turn
from metaclaw.store.scribe import Announcement, Item, SessionEnd

log = logging.getLogger(__name__)


class Losses:
    """A spell of losses begins with the first and ends when it is summed up."""

    def __init__(self) -> None:
        self._spell: Counter[str] = Counter()
        self.turns = 0
        """Turns lost since the start. An end or an event that is lost is none: a session ends again by silence."""

    def note(self, items: Iterable[Item]) -> None:
        """These are lost."""
        for item in items:
            kind, name = _describe(item)
            if not self._spell:
                log.warning("ledger has begun to lose what it cannot keep first=%s", kind)
            log.debug("ledger lost kind=%s which=%s", kind, name)
            self._spell[kind] += 1
            self.turns += kind == "turn"

    def sum_up(self) -> None:
        """Say what was lost in this spell, if anything."""
        spell, self._spell = self._spell, Counter()
        if spell:
            counts = (spell["turn"], spell["session_end"], spell["event"])
            log.warning("ledger lost turns=%d session_ends=%d events=%d", *counts)


def _describe(item: Item) -> tuple[str, str]:
    match item:
        case Turn():
            return "turn", item.id
        case SessionEnd():
            return "session_end", item.session
        case Announcement():
            return "event", item.kind

"""Pieces of work that a loop, or the whole learner, falls over each time: they are set aside, so that the others get their turn.

A loop that fails can say at what; a process that is killed cannot. So what is in hand is written down before it is begun, where it
outlives the process (`slate`), and counts against whatever was in hand when the learner is found dead.
"""

import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import anyio

log = logging.getLogger(__name__)

_TRIES: Final = 3
_REMEMBERED: Final = 1_000
SET_ASIDE: Final = "set aside: whoever looked at it died, or failed, each time"


class Piece(NamedTuple):
    """Something to be done, by the loop that does it."""

    loop: str
    item: str


@dataclass(frozen=True, slots=True)
class Falls:
    """`in_hand` was begun and is not finished; `counts` says how often a piece was begun and never finished before."""

    in_hand: frozenset[Piece] = frozenset()
    counts: Mapping[Piece, int] = field(default_factory=dict)

    def after_death(self) -> "Falls":
        """What whoever goes on must know: any of what was in hand may have killed."""
        fallen = {piece: self.counts.get(piece, 0) + 1 for piece in self.in_hand}
        return Falls(frozenset(), {**self.counts, **fallen})


class Workbook:
    """What a process has in hand and what it fell over, for all of its loops. `note` is told of every change before it happens."""

    def __init__(self, before: Falls | None = None, note: Callable[[Falls], None] = lambda falls: None) -> None:
        self._note = note
        self._in_hand: frozenset[Piece] = frozenset()
        self._counts = {} if before is None else dict(before.counts)
        self._changing = threading.Lock()
        self._set_aside: dict[Piece, int] = {}
        self.alone = anyio.Lock()

    @property
    def set_aside(self) -> Mapping[Piece, int]:
        """What is no longer taken up, and how often it was."""
        return dict(self._set_aside)

    def falls_of(self, piece: Piece) -> int:
        """How often it was begun and never finished."""
        return self._counts.get(piece, 0)

    def begin(self, piece: Piece) -> bool:
        """Take a piece in hand; False where it was fallen over too often."""
        with self._changing:
            if (falls := self.falls_of(piece)) >= _TRIES:
                if piece not in self._set_aside:
                    log.error("item_passed_over loop=%s item=%s tries=%d; the log says why", *piece, falls)
                self._set_aside[piece] = falls
                return False
            self._in_hand |= {piece}
            self._note(Falls(self._in_hand, self._counts))
            return True

    def end(self, piece: Piece, *, falls: int) -> None:
        """It is out of hand, and was fallen over so often by now."""
        with self._changing:
            self._in_hand -= {piece}
            self._counts.pop(piece, None)
            if falls:
                if len(self._counts) >= _REMEMBERED:
                    self._counts.clear()
                self._counts[piece] = falls
            self._note(Falls(self._in_hand, self._counts))


class Stumbles:
    """One loop's pieces in the workbook."""

    def __init__(self, loop: str, book: Workbook | None = None) -> None:
        self._loop = loop
        self._book = book or Workbook()

    @asynccontextmanager
    async def taking(self, item: object) -> AsyncIterator[bool]:
        """Inside, the item is in hand; False where it is set aside, and must not be touched.

        Of pieces that were in hand when something died, one is done at a time: so those that had nothing to do with it are cleared.
        """
        if self._book.falls_of(self._piece(item)):
            async with self._book.alone:
                with self.taking_now(item) as may:
                    yield may
        else:
            with self.taking_now(item) as may:
                yield may

    @contextmanager
    def taking_now(self, item: object) -> Iterator[bool]:
        """The same at once, for whoever cannot wait."""
        piece = self._piece(item)
        if not self._book.begin(piece):
            yield False
            return
        before = falls = self._book.falls_of(piece)
        try:
            yield True
            falls = 0
        except Exception:
            falls = before + 1
            raise
        finally:
            self._book.end(piece, falls=falls)

    def _piece(self, item: object) -> Piece:
        return Piece(self._loop, str(item))

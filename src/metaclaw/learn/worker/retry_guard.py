"""Set aside work items at which a loop, or the whole learner process, fails each time, so that the others are done.

A killed process cannot say what it was working on. So each item is recorded before it is begun, outside of the process
(`crash_record`), and a crash counts against all items that were begun and not finished.
"""

import logging
import os
import pickle
import struct
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, NamedTuple

import anyio

log = logging.getLogger(__name__)

_TRIES: Final = 3
_REMEMBERED: Final = 1_000
SET_ASIDE: Final = "set aside: every attempt at it failed or crashed"


class WorkItem(NamedTuple):
    """An item of a loop."""

    loop: str
    item: str


@dataclass(frozen=True, slots=True)
class Attempts:
    """`in_hand`: items begun and not finished. `counts`: failed attempts at each item."""

    in_hand: frozenset[WorkItem] = frozenset()
    counts: Mapping[WorkItem, int] = field(default_factory=dict)

    def after_death(self) -> "Attempts":
        """The attempts for the next process: every item in hand counts as failed once more."""
        fallen = {item: self.counts.get(item, 0) + 1 for item in self.in_hand}
        return Attempts(frozenset(), {**self.counts, **fallen})


class AttemptLog:
    """Attempts of all loops of a process. `note` is called with every change before it takes effect."""

    def __init__(self, before: Attempts | None = None, note: Callable[[Attempts], None] = lambda failures: None) -> None:
        self._note = note
        self._in_hand: frozenset[WorkItem] = frozenset()
        self._counts = {} if before is None else dict(before.counts)
        self._changing = threading.Lock()
        self._set_aside: dict[WorkItem, int] = {}
        self.alone = anyio.Lock()

    @property
    def set_aside(self) -> Mapping[WorkItem, int]:
        """Items no longer attempted, with the number of failed attempts."""
        return dict(self._set_aside)

    def failures_of(self, item: WorkItem) -> int:
        """Number of attempts at the item that never finished."""
        return self._counts.get(item, 0)

    def begin(self, item: WorkItem) -> bool:
        """Begin an item; False where too many attempts at it failed."""
        with self._changing:
            if (failures := self.failures_of(item)) >= _TRIES:
                if item not in self._set_aside:
                    log.error("item_passed_over loop=%s item=%s tries=%d; the log says why", *item, failures)
                self._set_aside[item] = failures
                return False
            self._in_hand |= {item}
            self._note(Attempts(self._in_hand, self._counts))
            return True

    def end(self, item: WorkItem, *, failures: int) -> None:
        """Finish an attempt, with the number of failed attempts so far."""
        with self._changing:
            self._in_hand -= {item}
            self._counts.pop(item, None)
            if failures:
                if len(self._counts) >= _REMEMBERED:
                    self._counts.clear()
                self._counts[item] = failures
            self._note(Attempts(self._in_hand, self._counts))


class RetryGuard:
    """The items of one loop in the attempt log."""

    def __init__(self, loop: str, book: AttemptLog | None = None) -> None:
        self._loop = loop
        self._book = book or AttemptLog()

    @asynccontextmanager
    async def attempt(self, item: object) -> AsyncIterator[bool]:
        """Work on an item inside; yields False where it is set aside and must not be touched.

        Items that were in hand at a crash are attempted one at a time, which clears those that did not cause it.
        """
        if self._book.failures_of(self._item(item)):
            async with self._book.alone:
                with self.attempt_now(item) as may:
                    yield may
        else:
            with self.attempt_now(item) as may:
                yield may

    @contextmanager
    def attempt_now(self, item: object) -> Iterator[bool]:
        """As `attempt`, without waiting for other items."""
        work = self._item(item)
        if not self._book.begin(work):
            yield False
            return
        before = failures = self._book.failures_of(work)
        try:
            yield True
            failures = 0
        except Exception:
            failures = before + 1
            raise
        finally:
            self._book.end(work, failures=failures)

    def _item(self, item: object) -> WorkItem:
        return WorkItem(self._loop, str(item))


_LENGTH: Final = struct.Struct("!Q")


class CrashRecord:
    """One writer at a time. Without a `handle`, creates the file; close it by leaving the context."""

    def __init__(self, handle: int | None = None) -> None:
        self.handle = _new() if handle is None else handle

    def write(self, attempts: Attempts) -> None:
        """Replace the record in one call, so that a killed process has written all of it or nothing."""
        body = pickle.dumps(attempts, pickle.HIGHEST_PROTOCOL)
        with suppress(OSError):  # no space left: the next crash is then counted against no item
            os.pwrite(self.handle, _LENGTH.pack(len(body)) + body, 0)

    def read(self) -> Attempts:
        """Return the last record; an empty one if it was not written completely."""
        head = os.pread(self.handle, _LENGTH.size, 0)
        length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else 0
        body = os.pread(self.handle, length, _LENGTH.size)
        attempts = pickle.loads(body) if body and len(body) == length else Attempts()
        assert isinstance(attempts, Attempts)
        return attempts

    def __enter__(self) -> "CrashRecord":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        os.close(self.handle)


def _new() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("crash_record")  # needs no disk
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())

"""Keep the background loops running: restart one that fails, wake one that waits, and set aside work that crashes it each time.

A killed process cannot say what it was working on. So each work item is recorded before it is begun, in a file shared with the
serving process (`CrashRecord`), and a crash counts against all items that were begun and not finished.
"""

import logging
import os
import pickle
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, NamedTuple

import anyio
from anyio.abc import TaskGroup

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 60.0

TURNS_CURSOR: Final = "sensing"
"""The name of the cursor behind which every turn has been sensed."""
LISTEN_CURSOR: Final = "listening"
"""The name of the cursor behind which every message of a person has been read."""
ENDS_CURSOR: Final = "sensing session ends"
"""The name of the cursor behind which the end of every session has been looked at."""
_TRIES: Final = 3
_REMEMBERED: Final = 1_000
SET_ASIDE: Final = "set aside: every attempt at it failed or crashed"
_LENGTH: Final = struct.Struct("!Q")


class Supervisor:
    """Run loops in one task group. One that returns is done; one that raises is restarted.

    The pause before a restart doubles each time, and begins anew once the loop has run for a minute or has made progress.
    """

    def __init__(
        self,
        group: TaskGroup,
        *,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group = group
        self._sleep = sleep
        self._now = now
        self._states: dict[str, str] = {}

    @property
    def states(self) -> dict[str, str]:
        """Each loop's name and state: running, done, or why it failed and when it is restarted."""
        return dict(self._states)

    def run(self, name: str, loop: Callable[[], Awaitable[None]], progress: Callable[[], int] = lambda: 0) -> None:
        """Start a loop under this name. `progress` counts what the loop has finished."""
        self._states[name] = "running"
        self._group.start_soon(self._keep, name, loop, progress)

    async def _keep(self, name: str, loop: Callable[[], Awaitable[None]], progress: Callable[[], int]) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            began_s, finished = self._now(), progress()
            try:
                await loop()
            except Exception as error:  # whatever went wrong, the loop is restarted and the log says why
                if self._now() - began_s > _LONGEST_PAUSE_S or progress() > finished:
                    pause_s = _FIRST_PAUSE_S
                log.exception("loop_failed loop=%s again_in_s=%g", name, pause_s)
                self._states[name] = f"failed: {type(error).__name__}: {error}; restarting in {pause_s:g} s"
            else:
                self._states[name] = "done"
                return
            await self._sleep(pause_s)
            self._states[name] = "running"
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


class LoopWakeup:
    """One waiter and any number of notifiers, all on one event loop."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def notify(self) -> None:
        """Wake the waiter, now or at its next wait."""
        self._event.set()

    @property
    def is_set(self) -> bool:
        """Whether there was a notification since the last wait ended."""
        return self._event.is_set()

    async def wait(self, at_most_s: float) -> None:
        """Return at the next notification, at once if there was one since the last wait, or after `at_most_s`."""
        with anyio.move_on_after(at_most_s):
            await self._event.wait()
        self._event = anyio.Event()


class LoopProgress:
    """A point that moves forward, held back by the oldest thing that is still under way."""

    def __init__(self, reached: int = 0) -> None:
        self._reached = reached
        self._under_way: Counter[int] = Counter()

    @property
    def reached(self) -> int:
        """Up to where everything has been taken up."""
        return self._reached

    @property
    def settled(self) -> int:
        """Up to where everything is done: a reader that begins behind this point misses nothing."""
        return min(self._reached, min(self._under_way, default=self._reached + 1) - 1)

    def reach(self, point: int) -> None:
        """Everything up to here has been taken up."""
        self._reached = max(self._reached, point)

    def begin(self, point: int) -> None:
        """Something of this point is under way; several things may be."""
        self._under_way[point] += 1

    def end(self, point: int) -> None:
        """It is done."""
        self._under_way[point] -= 1
        if self._under_way[point] <= 0:
            del self._under_way[point]


class WorkItem(NamedTuple):
    """An item of a loop."""

    loop: str
    item: str


@dataclass(frozen=True, slots=True)
class WorkAttempts:
    """`in_hand`: items begun and not finished. `counts`: failed attempts at each item."""

    in_hand: frozenset[WorkItem] = frozenset()
    counts: Mapping[WorkItem, int] = field(default_factory=dict)

    def after_death(self) -> "WorkAttempts":
        """The attempts for the next process: every item in hand counts as failed once more."""
        fallen = {item: self.counts.get(item, 0) + 1 for item in self.in_hand}
        return WorkAttempts(frozenset(), {**self.counts, **fallen})


class AttemptLog:
    """Attempts of all loops of a process. `note` is called with every change before it takes effect."""

    def __init__(self, before: WorkAttempts | None = None, note: Callable[[WorkAttempts], None] = lambda failures: None) -> None:
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
            self._note(WorkAttempts(self._in_hand, self._counts))
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
            self._note(WorkAttempts(self._in_hand, self._counts))


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
        except Exception:  # any error counts as a failed attempt, and is raised again
            failures = before + 1
            raise
        finally:
            self._book.end(work, failures=failures)

    def _item(self, item: object) -> WorkItem:
        return WorkItem(self._loop, str(item))


class CrashRecord:
    """One writer at a time. Without a `handle`, creates the file; close it by leaving the context."""

    def __init__(self, handle: int | None = None) -> None:
        self.handle = _new() if handle is None else handle

    def write(self, attempts: WorkAttempts) -> None:
        """Replace the record in one call, so that a killed process has written all of it or nothing."""
        body = pickle.dumps(attempts, pickle.HIGHEST_PROTOCOL)
        with suppress(OSError):  # no space left: the next crash is then counted against no item
            os.pwrite(self.handle, _LENGTH.pack(len(body)) + body, 0)

    def read(self) -> WorkAttempts:
        """Return the last record; an empty one if it was not written completely."""
        head = os.pread(self.handle, _LENGTH.size, 0)
        length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else 0
        body = os.pread(self.handle, length, _LENGTH.size)
        attempts = pickle.loads(body) if body and len(body) == length else WorkAttempts()
        assert isinstance(attempts, WorkAttempts)
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

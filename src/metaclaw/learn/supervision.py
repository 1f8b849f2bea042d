"""Keep the background loops running: restart one that fails, wake one that waits, set aside work that crashes it each time, and
count the work that is pending.

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
from dataclasses import KW_ONLY, dataclass, field
from types import TracebackType
from typing import Final, NamedTuple, Protocol

import anyio
from anyio.abc import TaskGroup

from metaclaw.config import Config
from metaclaw.domain.candidate import Standing
from metaclaw.ports import Purpose
from metaclaw.store import LedgerReader, SqlCandidates, SqlCursors

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


@dataclass(eq=False)
class Supervisor:
    """Run loops in one task group. One that returns is done; one that raises is restarted.

    The pause before a restart doubles each time, and begins anew once the loop has run for a minute or has made progress.
    """

    group: TaskGroup
    _: KW_ONLY
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    now: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._states: dict[str, str] = {}

    @property
    def states(self) -> dict[str, str]:
        """Each loop's name and state: running, done, or why it failed and when it is restarted."""
        return dict(self._states)

    def run(self, name: str, loop: Callable[[], Awaitable[None]], progress: Callable[[], int] = lambda: 0) -> None:
        """Start a loop under this name. `progress` counts what the loop has finished."""
        self._states[name] = "running"
        self.group.start_soon(self._keep, name, loop, progress)

    async def _keep(self, name: str, loop: Callable[[], Awaitable[None]], progress: Callable[[], int]) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            began_s, finished = self.now(), progress()
            try:
                await loop()
            except Exception as error:  # whatever went wrong, the loop is restarted and the log says why
                if self.now() - began_s > _LONGEST_PAUSE_S or progress() > finished:
                    pause_s = _FIRST_PAUSE_S
                log.exception("loop_failed loop=%s again_in_s=%g", name, pause_s)
                self._states[name] = f"failed: {type(error).__name__}: {error}; restarting in {pause_s:g} s"
            else:
                self._states[name] = "done"
                return
            await self.sleep(pause_s)
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
        self.reached = reached
        """Up to where everything has been taken up."""
        self._under_way: Counter[int] = Counter()

    @property
    def settled(self) -> int:
        """Up to where everything is done: a reader that begins behind this point misses nothing."""
        return min(self.reached, min(self._under_way, default=self.reached + 1) - 1)

    def reach(self, point: int) -> None:
        """Everything up to here has been taken up."""
        self.reached = max(self.reached, point)

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


PENDING: Final = ("turns", "sessions", "listening", "lessons", "evolutions", "candidates")


def senses(config: Config) -> bool:
    """Whether turns get verdicts: skills are made of them, or weights trained with them."""
    policy = config.policy
    return config.skills.learn or (policy is not None and policy.mode != "skills_only")


class LearnerCounts(Protocol):
    """Counts that only the running loops know."""

    @property
    def reading(self) -> int:
        """Messages of people that are being read."""

    @property
    def reached(self) -> int:
        """The last row of the ledger that was looked at for messages."""

    @property
    def lessons(self) -> int:
        """Failures it has yet to look at, as far as it was told of them."""

    @property
    def writing(self) -> int:
        """Groups of failures for which a skill is being written."""


@dataclass(eq=False)
class PendingWork:
    """Counts what is under way. A judge that is to be asked again in a minute is not waited for, and neither is what waits for the
    learning budget, possibly until midnight: `learning.budget.waiting` in `/api/status` tells of that. `waiting` is how many
    requests wait for the budget, by purpose; `listens` whether messages of people are read; `measured` up to which turn it is
    counted which rules were followed, where that is counted."""

    reader: LedgerReader
    cursors: SqlCursors
    candidates: SqlCandidates
    learner: LearnerCounts
    waiting: Callable[[], Mapping[str, int]] = dict
    _: KW_ONLY
    listens: bool = True
    measured: Callable[[], int | None] | None = None

    def __post_init__(self) -> None:
        self._has_looked_back = False

    def is_anything(self) -> bool:
        """Whether there is something to be learned from, or, when first asked, something left from before. Blocks."""
        if any(self._unread()) or self._unheard(self.waiting()):
            return True
        if self._has_looked_back:
            return False
        self._has_looked_back = True
        unfinished = (Standing.DRAFT, Standing.SHADOW)
        return bool(self.candidates.interrupted()) or any(self.candidates.candidates(one, 1) for one in unfinished)

    def _unread(self) -> tuple[int, int]:
        """Turns and session ends behind the cursors of sensing; of the turns also those in which no rule was looked at yet."""
        sensed = self.cursors.cursor(TURNS_CURSOR)
        measured = sensed if self.measured is None else self.measured()
        turns = self.reader.turns_behind(sensed if measured is None else min(sensed, measured))
        return turns, self.reader.ends_behind(self.cursors.cursor(ENDS_CURSOR))

    def _unheard(self, waiting: Mapping[str, int]) -> int:
        """Rows that were not looked at for messages yet, and messages that are being read."""
        if not self.listens:
            return 0
        reached = max(self.learner.reached, self.cursors.cursor(LISTEN_CURSOR))
        return self.reader.turns_behind(reached) + (0 if waiting.get(Purpose.LISTEN) else self.learner.reading)

    def count(self) -> Mapping[str, int]:
        """Count turns without a verdict, session ends not looked at, messages unread, lessons, evolutions and candidates under way.
        Blocks.

        Counted in the order in which one becomes the other, so that nothing slips by between two counts.
        """
        waiting = self.waiting()
        turns, sessions = self._unread()
        listening = self._unheard(waiting)
        lessons, writing = self.learner.lessons, self.learner.writing
        evolutions = 0 if waiting.get(Purpose.EVOLVE) else max(writing, len(self.candidates.interrupted()))
        drafts = 0 if waiting.get(Purpose.REPLAY) else self.candidates.count(Standing.DRAFT)
        return dict(zip(PENDING, (turns, sessions, listening, lessons, evolutions, drafts), strict=True))

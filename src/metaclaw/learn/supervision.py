"""Supervision of the background loops: restart loops that fail, wake loops that wait, set aside
work items that crash a loop each time, and count pending work.

A killed process cannot say what it was working on. So each work item is recorded before it is
begun, in a file shared with the serving process (`CrashRecord`), and a crash counts against all
items that were begun and not finished."""

import errno
import logging
import os
import pickle
import sqlite3
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
from metaclaw.errors import MetaClawError
from metaclaw.ports import Purpose
from metaclaw.store import LedgerReader, SqlCandidates, SqlCursors

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 60.0

TURNS_CURSOR: Final = "sensing"
"""The cursor of the outcome loop: all turns up to it have been sensed."""
LISTEN_CURSOR: Final = "listening"
"""The cursor of the listening loop: all messages up to it have been read."""
LISTENED: Final = "what a person said"
"""The kind of the attempts that the listening loop begins."""
ENDS_CURSOR: Final = "sensing session ends"
"""The second cursor of the outcome loop: all session ends up to it have been handled."""
_POLL_S: Final = 0.2
_IDLE_POLL_S: Final = 1.0
_POLLS_UNTIL_IDLE: Final = 150
_MOST_TRIES: Final = 3
_MOST_REMEMBERED: Final = 1_000
SET_ASIDE: Final = "set aside: every attempt at it failed or crashed"
_LENGTH: Final = struct.Struct("!Q")
PENDING: Final = ("turns", "sessions", "listening", "lessons", "evolutions", "candidates")


@dataclass(eq=False)
class Supervisor:
    """Runs loops in one task group. A loop that returns is done; a loop that raises is restarted.

    The pause before a restart doubles each time, and is short again after the loop has run for a
    minute or has made progress."""

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

    def run(
        self,
        name: str,
        loop: Callable[[], Awaitable[None]],
        progress: Callable[[], int] = lambda: 0,
    ) -> None:
        """Start a loop under this name. `progress` returns how many items the loop has finished."""
        self._states[name] = "running"
        self.group.start_soon(self._keep, name, loop, progress)

    async def _keep(
        self, name: str, loop: Callable[[], Awaitable[None]], progress: Callable[[], int]
    ) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            began_s, finished = self.now(), progress()
            try:
                await loop()
            except (
                Exception
            ) as error:  # the loop is restarted after any error, and the log has the traceback
                if self.now() - began_s > _LONGEST_PAUSE_S or progress() > finished:
                    pause_s = _FIRST_PAUSE_S
                self._states[name] = (
                    f"failed: {type(error).__name__}: {error}; restarting in {pause_s:g} s"
                )
                log.exception("loop_failed loop=%s again_in_s=%g", name, pause_s)
            else:
                self._states[name] = "done"
                return
            await self.sleep(pause_s)
            self._states[name] = "running"
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


async def attempt(name: str, step: Callable[[], Awaitable[object]]) -> bool:
    """Carry out a step that the program can do without for now. Return False if it fails, whatever
    the error; the log has it.
    """
    try:
        await step()
    except MetaClawError as error:
        log.error("step_failed step=%r reason=%s", name, error)
        return False
    except Exception:  # only the listener and the request path may end the program
        log.exception("step_failed step=%r", name)
        return False
    return True


class LoopWakeup:
    """Wakes one waiter. Any number of notifiers may call it, all on one event loop."""

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._empty_polls = 0

    def notify(self) -> None:
        """Wake the waiter, now or at its next wait."""
        self._event.set()

    @property
    def is_set(self) -> bool:
        """Whether there was a notification since the last wait ended."""
        return self._event.is_set()

    async def wait(self, at_most_s: float) -> None:
        """Return at the next notification, at once if there was one since the last wait, or after
        `at_most_s`.
        """
        with anyio.move_on_after(at_most_s):
            await self._event.wait()
        self._event = anyio.Event()

    async def wait_after(self, *, is_empty: bool) -> None:
        """Wait after a poll: longer after half a minute of empty ones."""
        self._empty_polls = self._empty_polls + 1 if is_empty else 0
        await self.wait(_POLL_S if self._empty_polls < _POLLS_UNTIL_IDLE else _IDLE_POLL_S)


class LoopProgress:
    """The progress of a loop over numbered rows, of which several may be under way at once."""

    def __init__(self, reached: int = 0) -> None:
        self.reached = reached
        """All rows up to this one have been begun."""
        self._under_way: Counter[int] = Counter()

    @property
    def settled(self) -> int:
        """All rows up to this one are done: a loop that restarts after it misses nothing."""
        return min(self.reached, min(self._under_way, default=self.reached + 1) - 1)

    def reach(self, point: int) -> None:
        """Record that all rows up to this one have been begun."""
        self.reached = max(self.reached, point)

    def begin(self, point: int) -> None:
        """Record that work on this row is under way; may be called several times for one row."""
        self._under_way[point] += 1

    def end(self, point: int) -> None:
        """Record that one piece of work on this row is done."""
        self._under_way[point] -= 1
        if self._under_way[point] <= 0:
            del self._under_way[point]


class WorkItem(NamedTuple):
    loop: str
    item: str


@dataclass(frozen=True, slots=True)
class WorkAttempts:
    """`in_hand`: items begun and not finished. `counts`: failed attempts at each item."""

    in_hand: frozenset[WorkItem] = frozenset()
    counts: Mapping[WorkItem, int] = field(default_factory=dict)

    def after_crash(self) -> "WorkAttempts":
        """The attempts for the next process: every item in hand counts as failed once more."""
        crashed = {item: self.counts.get(item, 0) + 1 for item in self.in_hand}
        return WorkAttempts(frozenset(), {**self.counts, **crashed})


class AttemptLog:
    """Attempts of all loops of a process. `note` is called with every change before it takes
    effect.
    """

    def __init__(
        self,
        before: WorkAttempts | None = None,
        note: Callable[[WorkAttempts], None] = lambda failures: None,
    ) -> None:
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
        """Begin an item; return False if too many attempts at it failed."""
        with self._changing:
            if (failures := self.failures_of(item)) >= _MOST_TRIES:
                if item not in self._set_aside:
                    log.error(
                        "item_passed_over loop=%s item=%s tries=%d; the log says why",
                        *item,
                        failures,
                    )
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
                if len(self._counts) >= _MOST_REMEMBERED:
                    self._counts.clear()
                self._counts[item] = failures
            self._note(WorkAttempts(self._in_hand, self._counts))


class RetryGuard:
    """The items of one loop in the attempt log."""

    def __init__(self, loop: str, attempt_log: AttemptLog | None = None) -> None:
        self._loop = loop
        self._attempt_log = attempt_log or AttemptLog()

    @asynccontextmanager
    async def attempt(self, item: object) -> AsyncIterator[bool]:
        """Work on an item inside; yields False if the item is set aside and must not be touched.

        Items that were in hand at a crash are attempted one at a time, so that only the item that
        caused it fails again."""
        if self._attempt_log.failures_of(self._item(item)):
            async with self._attempt_log.alone:
                with self.attempt_now(item) as may:
                    yield may
        else:
            with self.attempt_now(item) as may:
                yield may

    @contextmanager
    def attempt_now(self, item: object) -> Iterator[bool]:
        """As `attempt`, without waiting for other items."""
        work = self._item(item)
        if not self._attempt_log.begin(work):
            yield False
            return
        before = failures = self._attempt_log.failures_of(work)
        try:
            yield True
            failures = 0
        except Exception as error:  # counts as a failed attempt, but for faults of the machine
            failures = before + (not is_of_machine(error))
            raise
        finally:
            self._attempt_log.end(work, failures=failures)

    def _item(self, item: object) -> WorkItem:
        return WorkItem(self._loop, str(item))


_OF_MACHINE: Final = frozenset(
    (
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.EAGAIN,
        errno.EDQUOT,
        errno.EROFS,
    )
)


_OF_DATABASE: Final = frozenset(
    (
        *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM),
        *(sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN),
    )
)
_NO_THREAD: Final = "can't start new thread"


def is_of_machine(error: BaseException | None) -> bool:
    """Whether an error comes of a machine that lacks files, memory, threads or room: no item caused
    it, and none may be passed over for it."""
    while error is not None:
        match error:
            case MemoryError():
                return True
            case OSError():
                found = error.errno in _OF_MACHINE
            case sqlite3.Error():
                found = (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _OF_DATABASE
            case _:
                found = str(error) == _NO_THREAD
        if found:
            return True
        error = error.__cause__ or error.__context__
    return False


class CrashRecord:
    """The file with the work attempts, for one writer at a time. Creates the file if there is no
    `handle`; leaving the context closes it."""

    def __init__(self, handle: int | None = None) -> None:
        self.handle = _new() if handle is None else handle

    def write(self, attempts: WorkAttempts) -> None:
        """Replace the record in one call, so that a killed process has written all of it or
        nothing.
        """
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self.handle)


def _new() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("crash_record")  # needs no disk
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def senses(config: Config) -> bool:
    """Whether turns get verdicts, which skills and the training of weights need."""
    policy = config.policy
    return config.skills.learn or (policy is not None and policy.mode != "skills_only")


class LearnerCounts(Protocol):
    """Counts that only the running loops know: messages that are being read, the last row of the
    ledger that was read for messages, whether there are failures to examine, and groups of failures
    for which a skill is being written."""

    @property
    def reading(self) -> int: ...
    @property
    def reached(self) -> int: ...
    @property
    def lessons(self) -> int: ...
    @property
    def writing(self) -> int: ...


@dataclass(eq=False)
class PendingWork:
    """Counts pending work, without questions that the judge is asked again later, and without work
    that waits for the learning budget, which `learning.budget.waiting` in `/api/status` reports.
    `waiting` returns the number of requests that wait for the budget, by purpose; `listens` says
    whether messages of people are read; `measured` returns the cursor of the compliance loop."""

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
        """Whether there are new turns or messages, or, at the first call, unfinished work of an
        earlier process. Blocks.
        """
        if any(self._unread()) or self._unheard(self.waiting()):
            return True
        if self._has_looked_back:
            return False
        self._has_looked_back = True
        return bool(self.candidates.interrupted() or self.candidates.candidates(Standing.DRAFT, 1))

    def _unread(self) -> tuple[int, int]:
        """The number of turns that the outcome loop or the compliance loop has not handled, and of
        unhandled session ends.
        """
        sensed = self.cursors.cursor(TURNS_CURSOR)
        measured = sensed if self.measured is None else self.measured()
        turns = self.reader.turns_behind(sensed if measured is None else min(sensed, measured))
        return turns, self.reader.ends_behind(self.cursors.cursor(ENDS_CURSOR))

    def _unheard(self, waiting: Mapping[str, int]) -> int:
        """The number of rows that were not read for messages yet, plus the messages that are being
        read.
        """
        if not self.listens:
            return 0
        reached = max(self.learner.reached, self.cursors.cursor(LISTEN_CURSOR))
        return self.reader.turns_behind(reached) + (
            0 if waiting.get(Purpose.LISTEN) else self.learner.reading
        )

    def count(self) -> Mapping[str, int]:
        """Count turns without a verdict, session ends not handled, unread messages, lessons,
        evolutions and undecided candidates. Blocks.

        Counts in the order in which work moves on, so that an item that moves between two counts is
        not missed."""
        waiting = self.waiting()
        turns, sessions = self._unread()
        listening = self._unheard(waiting)
        lessons, writing = self.learner.lessons, self.learner.writing
        # A message that no model understands waits for another model: `listener` reports it.
        begun = sum(one.kind != LISTENED for one in self.candidates.interrupted())
        evolutions = 0 if waiting.get(Purpose.EVOLVE) else max(writing, begun)
        drafts = self.candidates.count(Standing.DRAFT)
        return dict(
            zip(PENDING, (turns, sessions, listening, lessons, evolutions, drafts), strict=True)
        )

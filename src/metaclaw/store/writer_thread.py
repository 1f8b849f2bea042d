"""The writer thread, which commits turns in groups and retries while the store fails, and its
queue.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue

from metaclaw.domain.ids import SessionId
from metaclaw.domain.turn import Turn
from metaclaw.errors import StoreError
from metaclaw.store.database import Database, FilesLostError
from metaclaw.store.dialects import RefusedError
from metaclaw.store.turn_writer import Item, SessionEnd, TurnWriter

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class QueuedItem:
    """An item to write, its caller's future, and how often it failed while others were written."""

    item: Item
    weight_bytes: int
    waiting: asyncio.Future[bool] | None = None
    attempts: int = 0
    refusals: int = 0
    commits_seen: int = 0
    is_turn: bool = field(init=False)
    """Whether losing it would lose a turn."""

    def __post_init__(self) -> None:
        self.is_turn = isinstance(self.item, Turn)


class WriteQueue:
    """A bounded queue. Items that the writer has taken still count until they are freed or put
    back.
    """

    def __init__(
        self, max_entries: int, max_bytes: int, batch_entries: int, batch_bytes: int
    ) -> None:
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._batch_entries, self._batch_bytes = batch_entries, batch_bytes
        self._lock = threading.Lock()
        # A condition variable takes several times as long.
        self._work: SimpleQueue[None] = SimpleQueue()
        self._is_waited_for = False
        self._closing = threading.Event()
        self._entries: deque[QueuedItem] = deque()
        self._held_entries = self._held_bytes = 0
        self._held_turns = self._held_turn_bytes = 0
        self._ending: set[SessionId] = (
            set()
        )  # sessions whose end is in the queue; avoids most searches
        self._is_closed = False
        self._is_check_due = False
        self.progress_s = 0.0
        """When an item was last released, on the monotonic clock."""

    @property
    def is_empty(self) -> bool:
        """Whether no item is held."""
        return self._held_entries == 0

    @property
    def is_idle(self) -> bool:
        """Whether the queue is open and has no item for the writer."""
        return not self._entries and not self._is_closed

    @property
    def turns(self) -> int:
        """Turns in memory that are not known to be on disk."""
        return self._held_turns

    def offer(self, queued: QueuedItem) -> bool:
        """Add an item if there is room; False if not. An item that is larger than the whole queue
        is accepted when it is empty. The writer is not woken: call `wake` after the last of several
        items."""
        with self._lock:
            if self._held_entries and not self._fits(queued.weight_bytes):
                return False
            self._entries.append(queued)
            self._hold(queued)
            return True

    def wake(self) -> None:
        """Wake the writer."""
        with self._lock:
            self._wake()

    def ask_for_check(self) -> None:
        """Make the writer check its files, even if there is nothing to write."""
        with self._lock:
            self._is_check_due = True
            self._wake()

    def squeeze(self, queued: QueuedItem) -> list[QueuedItem]:
        """Add an item even if the queue is full: the oldest are dropped for it, turns only for a
        turn. Returns those dropped.
        """
        with self._lock:
            if queued.weight_bytes > self._max_bytes:
                return [queued]
            if isinstance(queued.item, SessionEnd) and self._has_end(queued.item):
                return []
            self._entries.append(queued)
            self._hold(queued)
            dropped = self._trim()
            self._wake()
            return dropped

    def take(self) -> list[QueuedItem]:
        """Wait for items; return at most one batch. Empty if the queue is closed and empty, or if a
        check of files is due.
        """
        while True:
            with self._lock:
                if self._entries or self._is_closed or self._is_check_due:
                    self._is_check_due = False
                    return self._take_batch()
                self._is_waited_for = True
            self._work.get()

    def put_back(self, entries: list[QueuedItem]) -> list[QueuedItem]:
        """Put unwritten items back in front; a single item that failed before goes to the end.
        Returns the items dropped.
        """
        with self._lock:
            if len(entries) == 1 and entries[0].attempts > 1:
                self._entries.extend(entries)
            else:
                self._entries.extendleft(reversed(entries))
            return self._trim()

    def free(self, entries: Iterable[QueuedItem]) -> None:
        """Release items that were written or dropped."""
        with self._lock:
            self.progress_s = time.monotonic()
            for queued in entries:
                self._let_go(queued)

    def pause(self, seconds: float) -> None:
        """Wait, but not longer than the queue is open."""
        self._closing.wait(seconds)

    def close(self) -> None:
        """Accept no more items, and wake the writer."""
        with self._lock:
            self._is_closed = True
            self._wake()
        self._closing.set()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def _take_batch(self) -> list[QueuedItem]:
        entries = self._entries
        batch: list[QueuedItem] = []
        batch_bytes = 0
        while entries and len(batch) < self._batch_entries:
            batch_bytes += entries[0].weight_bytes
            if batch and batch_bytes > self._batch_bytes:
                break
            batch.append(entries.popleft())
        return batch

    def _wake(self) -> None:
        if self._is_waited_for:
            self._is_waited_for = False
            self._work.put(None)

    def _fits(self, more_bytes: int) -> bool:
        return (
            self._held_entries < self._max_entries
            and self._held_bytes + more_bytes <= self._max_bytes
        )

    def _has_end(self, end: SessionEnd) -> bool:
        """Whether an end of this session waits already. If turns of the session follow it, the old
        end is removed instead.
        """
        if end.session not in self._ending:
            return False
        has_gone_on = False
        for waiting in reversed(self._entries):
            item = waiting.item
            if isinstance(item, Turn):
                has_gone_on = has_gone_on or item.session == end.session
            elif isinstance(item, SessionEnd) and item.session == end.session:
                if has_gone_on:
                    self._remove(waiting)
                return not has_gone_on
        return False

    def _trim(self) -> list[QueuedItem]:
        dropped: list[QueuedItem] = []
        while self._held_entries > self._held_turns and self._is_over(
            self._held_entries, self._held_bytes
        ):
            lesser = next((queued for queued in self._entries if not queued.is_turn), None)
            if lesser is None:
                break
            dropped.append(lesser)
            self._remove(lesser)
        # The excess may be ends and events that the writer has taken: they are few, and no turn is
        # dropped for them.
        while self._entries and self._is_over(self._held_turns, self._held_turn_bytes):
            dropped.append(self._entries[0])
            self._remove(dropped[-1])
        return dropped

    def _is_over(self, entries: int, held_bytes: int) -> bool:
        return entries > self._max_entries or held_bytes > self._max_bytes

    def _remove(self, queued: QueuedItem) -> None:
        self._entries.remove(queued)
        self._let_go(queued)

    def _hold(self, queued: QueuedItem) -> None:
        self._count(queued, 1)
        if isinstance(queued.item, SessionEnd):
            self._ending.add(queued.item.session)

    def _let_go(self, queued: QueuedItem) -> None:
        self._count(queued, -1)
        if isinstance(queued.item, SessionEnd):
            self._ending.discard(queued.item.session)

    def _count(self, queued: QueuedItem, times: int) -> None:
        self._held_entries += times
        self._held_bytes += times * queued.weight_bytes
        if queued.is_turn:
            self._held_turns += times
            self._held_turn_bytes += times * queued.weight_bytes


_MAX_REFUSALS = 5


@dataclass(frozen=True, slots=True)
class LedgerLimits:
    """Limits of the items in memory and in one transaction, and the timeouts for a failing
    store.
    """

    waiting_turns: int = 1024
    waiting_bytes: int = 64 << 20
    batch_turns: int = 64
    batch_bytes: int = 8 << 20
    request_line_bytes: int = 32 << 20
    patience_s: float = 1.0
    retry_first_s: float = 0.05
    retry_max_s: float = 2.0
    close_patience_s: float = 2.0


@dataclass(slots=True)
class WriteReport:
    """The items written or lost, why the store fails (None if it does not), and whether a write
    succeeded.
    """

    written: list[QueuedItem] = field(default_factory=list)
    lost: list[QueuedItem] = field(default_factory=list)
    trouble: str | None = None
    is_working: bool = False

    def add(self, other: "WriteReport") -> None:
        """Merge another report into this one."""
        self.written += other.written
        self.lost += other.lost
        self.trouble = self.trouble or other.trouble
        self.is_working = self.is_working or other.is_working


class WriterThread:
    """Writes the items of a queue until it is closed and empty; `report` is called from this
    thread.
    """

    def __init__(
        self,
        database: Database,
        queue: WriteQueue,
        limits: LedgerLimits,
        report: Callable[[WriteReport], None],
    ) -> None:
        self._database = database
        self._queue = queue
        self._limits = limits
        self._report = report
        self._turn_writer: TurnWriter | None = None
        self._has_failed = False
        self._is_troubled = False
        self._commits = 0
        self._failures = 0
        self._give_up_at: float | None = None
        self._in_hand: list[QueuedItem] = []
        self.doing: str | None = None
        """The slow operation that is running, or None."""

    def run(self) -> None:
        """Write until the queue is closed and empty."""
        while True:
            try:
                self._run()
            except Exception as error:  # recording goes on after any error, such as one of memory
                log.exception("recording failed")
                self._recover(StoreError(f"recording: {type(error).__name__}: {error}"))
                if not (self._queue.is_closed and self._queue.is_empty):
                    continue
            return

    def _recover(self, error: StoreError) -> None:
        items, self._in_hand = self._in_hand, []
        report = self._trouble(items, error)
        self._queue.free(report.lost)
        report.lost += self._requeue(items, report)
        self._send_report(report)

    def _run(self) -> None:
        self._warm_up()
        while True:
            if self._is_troubled and self._queue.is_idle:
                self._probe()
                continue
            items = self._queue.take()
            if items:
                self._serve(items)
                del items  # a long answer would stay in memory until the next one
            elif self._queue.is_closed:
                break
            else:
                self._check_files()
        self._check_files()
        self._close_turn_writer()

    def _serve(self, items: list[QueuedItem]) -> None:
        has_failed = any(queued.attempts for queued in items)
        self._in_hand = items
        report = self._write_singly(items) if has_failed else self._write_together(items)
        self._in_hand = []
        if report.written or report.lost:
            self._queue.free((*report.written, *report.lost))
        if report.trouble is not None:
            report.lost += self._requeue(items, report)
        self._send_report(report)

    def _probe(self) -> None:
        """Test whether a store that failed works again, while nothing waits."""
        try:
            self._write([])
        except StoreError as error:
            self._close_turn_writer()
            self._send_report(WriteReport(trouble=str(error)))
        else:
            self._send_report(WriteReport(is_working=True))

    def _check_files(self) -> None:
        """Restore removed files even if there is nothing to record."""
        try:
            if self._turn_writer is not None:
                self._turn_writer.check_files()
        except FilesLostError:
            self._probe()

    def _write(self, items: Sequence[Item]) -> None:
        try:
            self._open_turn_writer().write(items)
        except FilesLostError:
            self._open_turn_writer().write(items)
        except MemoryError as error:  # so that one large turn does not hold up the others
            raise StoreError("recording: there is too little memory") from error

    def _send_report(self, report: WriteReport) -> None:
        self._report(report)
        if report.trouble is not None:
            self._is_troubled = True
            self._pause()
        elif report.is_working:
            self._is_troubled = False
            self._failures = 0

    def _warm_up(self) -> None:
        """Connect before the first turn comes."""
        try:
            self._open_turn_writer()
        except StoreError as error:
            self._has_failed = True
            self._send_report(WriteReport(trouble=str(error)))

    def _write_together(self, items: list[QueuedItem]) -> WriteReport:
        found = self._try(items, [queued.item for queued in items])
        return self._write_singly(items) if isinstance(found, RefusedError) else found

    def _write_singly(self, items: list[QueuedItem]) -> WriteReport:
        """Write each item in its own transaction, so that a bad turn does not affect the others."""
        report = WriteReport()
        queue = deque(items)
        has_probed = False
        while queue:
            report.add(self._write_alone(queue.popleft()))
            if report.trouble is not None and not report.written:
                if has_probed or not queue:
                    break
                # Try the smallest other item, to see whether the store fails or only that item.
                lightest = min(queue, key=lambda queued: queued.weight_bytes)
                queue.remove(lightest)
                queue.appendleft(lightest)
                has_probed = True
        return report

    def _write_alone(self, queued: QueuedItem) -> WriteReport:
        item = queued.item
        found = self._try([queued], [item], may_be_written=True)
        if isinstance(found, RefusedError) and isinstance(item, Turn) and item.usage is not None:
            # A provider may send any number, and the turn must not be lost for it.
            refusal, found = found, self._try([queued], [replace(item, usage=None)])
            if isinstance(found, WriteReport) and found.written:
                log.warning("turn stored without its usage turn=%s reason=%s", item.id, refusal)
        return self._refused(queued, found) if isinstance(found, RefusedError) else found

    def _try(
        self, items: list[QueuedItem], written: Sequence[Item], *, may_be_written: bool = False
    ) -> WriteReport | RefusedError:
        """Write items in one transaction. `may_be_written`: a commit may have succeeded although it
        reported a failure.
        """
        try:
            if not (may_be_written and self._open_turn_writer().has(written[0])):
                self._write(written)
        except RefusedError as error:
            self._undo()
            return error
        except StoreError as error:
            return self._trouble(items, error)
        self._commits += 1
        return WriteReport(written=items, is_working=True)

    def _trouble(self, items: list[QueuedItem], error: StoreError) -> WriteReport:
        self._close_turn_writer()
        self._has_failed = True
        for queued in items:
            # If an item keeps failing while others are written, the item is at fault and not the
            # store.
            if queued.attempts and self._commits > queued.commits_seen:
                queued.refusals += 1
            queued.attempts += 1
            queued.commits_seen = self._commits
        if len(items) == 1 and items[0].refusals >= _MAX_REFUSALS:
            return self._refused(items[0], error)
        return WriteReport(trouble=str(error))

    def _refused(self, queued: QueuedItem, error: StoreError) -> WriteReport:
        name = queued.item.id if isinstance(queued.item, Turn) else type(queued.item).__name__
        log.error("turn cannot be stored turn=%s reason=%s", name, error)
        return WriteReport(lost=[queued])

    def _requeue(self, items: list[QueuedItem], report: WriteReport) -> list[QueuedItem]:
        done = {id(queued) for queued in (*report.written, *report.lost)}
        left = [queued for queued in items if id(queued) not in done]
        for queued in left:
            if not queued.attempts:
                queued.attempts, queued.commits_seen = 1, self._commits
        dropped = self._queue.put_back(left)
        if self._is_over_time():
            while rest := self._queue.take():
                self._queue.free(rest)
                dropped += rest
        return dropped

    def _is_over_time(self) -> bool:
        if not self._queue.is_closed:
            return False
        now = time.monotonic()
        if self._give_up_at is None:
            self._give_up_at = now + self._limits.close_patience_s
        return now >= self._give_up_at

    def _pause(self) -> None:
        delay_s = min(
            self._limits.retry_max_s, self._limits.retry_first_s * 2 ** min(self._failures, 16)
        )
        self._failures += 1
        if self._queue.is_closed:
            time.sleep(self._limits.retry_first_s)
        else:
            self._queue.pause(delay_s)

    def _open_turn_writer(self) -> TurnWriter:
        if self._turn_writer is not None and self._turn_writer.is_lost:
            self._rescue(self._turn_writer)
        if self._turn_writer is None:
            if self._has_failed:
                # The file may have been replaced or removed.
                self._database.close()
                self._database.prepare()
            self._turn_writer = TurnWriter(self._database, self._limits.request_line_bytes)
        return self._turn_writer

    def _undo(self) -> None:
        try:
            if self._turn_writer is not None:
                self._turn_writer.undo()
        except StoreError as error:
            log.debug("rollback failed reason=%s", error)
            self._close_turn_writer()

    def _rescue(self, turn_writer: TurnWriter) -> None:
        """Restore removed files and open them. Until then the old connection stays open: only it
        still has their content.
        """
        self.doing = "removed files of the database are being restored"
        log.error("store files removed; restoring them database=%s", self._database)
        try:
            rescued = turn_writer.rescue()
            if rescued.written is not None:
                self._database.refusal = self._database.files = None
                self._turn_writer = self._reopen(rescued.written)
            else:
                self._turn_writer, self._has_failed = None, True
        finally:
            self.doing = None
        turn_writer.is_lost = False
        self._discard(turn_writer)
        self._database.notices["files"] = rescued.what
        log.warning("store files restored what=%s", rescued.what)

    def _reopen(self, written: tuple[int, int]) -> TurnWriter:
        turn_writer = TurnWriter(self._database, self._limits.request_line_bytes)
        if turn_writer.files[0] != written:
            self._discard(turn_writer)
            raise FilesLostError("the database file was removed again")
        return turn_writer

    def _close_turn_writer(self) -> None:
        turn_writer, self._turn_writer = self._turn_writer, None
        if turn_writer is not None and turn_writer.is_lost:
            self._turn_writer = (
                turn_writer  # only its connection still has the content of the files
            )
        elif turn_writer is not None:
            self._discard(turn_writer)

    def _discard(self, turn_writer: TurnWriter) -> None:
        try:
            turn_writer.close()
        except StoreError as error:
            log.debug("closing failed reason=%s", error)

"""The writer thread: commits what the queue holds in groups and retries while the store fails; and the checkpoint thread."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from metaclaw.domain.turn import Turn
from metaclaw.errors import StoreError
from metaclaw.store.database import Database, RefusedError, store_errors
from metaclaw.store.files import FilesLostError
from metaclaw.store.turn_writer import Item, TurnWriter
from metaclaw.store.write_queue import QueuedItem, WriteQueue

log = logging.getLogger(__name__)

_MAX_REFUSALS = 5


@dataclass(frozen=True, slots=True)
class LedgerLimits:
    """How much may wait in memory, how much goes in one transaction, and how long a failing store is waited for."""

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
    """What became of some items, what is wrong with the store, if anything, and whether it was seen to work."""

    written: list[QueuedItem] = field(default_factory=list)
    lost: list[QueuedItem] = field(default_factory=list)
    trouble: str | None = None
    is_working: bool = False

    def add(self, other: "WriteReport") -> None:
        """What became of some more."""
        self.written += other.written
        self.lost += other.lost
        self.trouble = self.trouble or other.trouble
        self.is_working = self.is_working or other.is_working


class WriterThread:
    """Writes what a queue holds until it is closed and empty; `report` is called from this thread."""

    def __init__(self, database: Database, queue: WriteQueue, limits: LedgerLimits, report: Callable[[WriteReport], None]) -> None:
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
        self.doing: str | None = None
        """What takes long, if anything does."""

    def run(self) -> None:
        """Write until the queue is closed and empty."""
        self._warm_up()
        while True:
            if self._is_troubled and self._queue.is_idle:
                self._probe()
                continue
            items = self._queue.take()
            if items:
                self._serve(items)
            elif self._queue.is_closed:
                break
            else:
                self._check_files()
        self._check_files()
        self._close_turn_writer()

    def _serve(self, items: list[QueuedItem]) -> None:
        has_failed = any(queued.attempts for queued in items)
        report = self._write_singly(items) if has_failed else self._write_together(items)
        if report.written or report.lost:
            self._queue.free((*report.written, *report.lost))
        if report.trouble is not None:
            report.lost += self._leave_for_later(items, report)
        self._tell(report)

    def _probe(self) -> None:
        """Check whether a store that failed works again while nothing waits."""
        try:
            self._write([])
        except StoreError as error:
            self._close_turn_writer()
            self._tell(WriteReport(trouble=str(error)))
        else:
            self._tell(WriteReport(is_working=True))

    def _check_files(self) -> None:
        """Write removed files anew even if there is nothing to record."""
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

    def _tell(self, report: WriteReport) -> None:
        self._report(report)
        if report.trouble is not None:
            self._is_troubled = True
            self._rest()
        elif report.is_working:
            self._is_troubled = False
            self._failures = 0

    def _warm_up(self) -> None:
        """Connect before the first turn comes."""
        try:
            self._open_turn_writer()
        except StoreError as error:
            self._has_failed = True
            self._tell(WriteReport(trouble=str(error)))

    def _write_together(self, items: list[QueuedItem]) -> WriteReport:
        try:
            self._write([queued.item for queued in items])
        except RefusedError:
            self._undo()
            return self._write_singly(items)
        except StoreError as error:
            return self._trouble(items, error)
        return self._success(items)

    def _write_singly(self, items: list[QueuedItem]) -> WriteReport:
        """One transaction each, so that one bad turn spoils no other."""
        report = WriteReport()
        queue = deque(items)
        has_probed = False
        while queue:
            report.add(self._write_alone(queue.popleft()))
            if report.trouble is not None and not report.written:
                if has_probed or not queue:
                    break
                # The smallest of the others shows whether the store fails or that item.
                lightest = min(queue, key=lambda queued: queued.weight_bytes)
                queue.remove(lightest)
                queue.appendleft(lightest)
                has_probed = True
        return report

    def _write_alone(self, queued: QueuedItem) -> WriteReport:
        try:
            turn_writer = self._open_turn_writer()
            # A commit may have succeeded although we heard that it failed.
            if not (isinstance(queued.item, Turn) and turn_writer.has(queued.item)):
                self._write([queued.item])
        except RefusedError as error:
            self._undo()
            return self._write_without_usage(queued, error)
        except StoreError as error:
            return self._trouble([queued], error)
        return self._success([queued])

    def _write_without_usage(self, queued: QueuedItem, refusal: RefusedError) -> WriteReport:
        """A provider may send any number as its usage; what the client saw must not be lost for it."""
        turn = queued.item
        if not isinstance(turn, Turn) or turn.usage is None:
            return self._refused(queued, refusal)
        try:
            self._write([replace(turn, usage=None)])
        except RefusedError:
            self._undo()
            return self._refused(queued, refusal)
        except StoreError as error:
            return self._trouble([queued], error)
        log.warning("turn stored without its usage turn=%s reason=%s", turn.id, refusal)
        return self._success([queued])

    def _success(self, items: list[QueuedItem]) -> WriteReport:
        self._commits += 1
        return WriteReport(written=items, is_working=True)

    def _trouble(self, items: list[QueuedItem], error: StoreError) -> WriteReport:
        self._close_turn_writer()
        self._has_failed = True
        for queued in items:
            # Failing again and again while others are written is the queued's fault, not the store's.
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

    def _leave_for_later(self, items: list[QueuedItem], report: WriteReport) -> list[QueuedItem]:
        done = {id(queued) for queued in (*report.written, *report.lost)}
        left = [queued for queued in items if id(queued) not in done]
        for queued in left:
            if not queued.attempts:
                queued.attempts, queued.commits_seen = 1, self._commits
        dropped = self._queue.put_back(left)
        if self._is_time_to_give_up():
            while rest := self._queue.take():
                self._queue.free(rest)
                dropped += rest
        return dropped

    def _is_time_to_give_up(self) -> bool:
        if not self._queue.is_closed:
            return False
        now = time.monotonic()
        if self._give_up_at is None:
            self._give_up_at = now + self._limits.close_patience_s
        return now >= self._give_up_at

    def _rest(self) -> None:
        delay_s = min(self._limits.retry_max_s, self._limits.retry_first_s * 2 ** min(self._failures, 16))
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
                # The file may be another one by now, or none.
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
        """Write removed files anew and open them. Until that is done the old connection stays: it is all that is left of them."""
        self.doing = "removed files of the database are being written anew"
        log.error("store files removed; writing what they held anew database=%s", self._database)
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
        log.warning("store files written anew what=%s", rescued.what)

    def _reopen(self, written: tuple[int, int]) -> TurnWriter:
        turn_writer = TurnWriter(self._database, self._limits.request_line_bytes)
        if turn_writer.files[0] != written:
            self._discard(turn_writer)
            raise FilesLostError("the database file was removed again")
        return turn_writer

    def _close_turn_writer(self) -> None:
        turn_writer, self._turn_writer = self._turn_writer, None
        if turn_writer is not None and turn_writer.is_lost:
            self._turn_writer = turn_writer  # its connection is all that is left of the files
        elif turn_writer is not None:
            self._discard(turn_writer)

    def _discard(self, turn_writer: TurnWriter) -> None:
        try:
            turn_writer.close()
        except StoreError as error:
            log.debug("closing failed reason=%s", error)


_COMMIT_BYTES = 24 << 10  # about what one commit adds to the log beside its payload: six pages
_LOG_BYTES = 4 << 20


class Checkpointer:
    """A thread that checkpoints when enough was written or some time has passed.

    The writer's own connection does it only when the log has grown far beyond that.
    """

    def __init__(self, database: Database, lost: Callable[[], None], every_s: float = 5.0, look_every_s: float = 1.0) -> None:
        self._database = database
        self._lost = lost
        self._every_s = every_s
        self._look_every_s = look_every_s
        self._written_bytes = 0
        self._wake = threading.Event()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="metaclaw-checkpoint", daemon=True)

    def start(self) -> None:
        """Begin, where there is such a log at all."""
        if self._database.kind == "sqlite":
            self._thread.start()

    def stop(self) -> None:
        """End, and wait for the end."""
        self._is_over = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def note(self, payload_bytes: int) -> None:
        """The writer has committed something."""
        self._written_bytes += payload_bytes + _COMMIT_BYTES
        if self._written_bytes >= _LOG_BYTES:
            self._written_bytes = 0
            self._wake.set()

    def _run(self) -> None:
        due_s = time.monotonic() + self._every_s
        while True:
            is_full = self._wake.wait(self._look_every_s)
            self._wake.clear()
            if self._is_over:
                return
            if self._database.are_files_lost():
                self._lost()
            elif is_full or time.monotonic() >= due_s:
                due_s = time.monotonic() + self._every_s
                self._try_checkpoint()

    def _try_checkpoint(self) -> None:
        try:
            self._checkpoint()
        except StoreError as error:
            log.debug("checkpoint failed reason=%s", error)

    def _checkpoint(self) -> None:
        # Passive: it neither waits for other connections nor blocks them.
        with store_errors("checkpointing", self._database.dialect), self._database.engine.connect() as connection:
            cursor = connection.connection.cursor()
            cursor.execute("PRAGMA wal_checkpoint(PASSIVE)")
            cursor.close()

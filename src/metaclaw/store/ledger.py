"""The ledger: records turns durably, and keeps them in memory (degraded) while the store fails."""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from metaclaw.clock import utc_now
from metaclaw.domain.chat import Json
from metaclaw.domain.ids import SessionId
from metaclaw.domain.status import Health, StoreHealth
from metaclaw.domain.turn import Turn
from metaclaw.errors import StoreError
from metaclaw.store.database import Database
from metaclaw.store.dialects import store_errors
from metaclaw.store.turn_writer import Announcement, Item, SessionEnd, weigh
from metaclaw.store.writer_thread import (
    LedgerLimits,
    QueuedItem,
    WriteQueue,
    WriteReport,
    WriterThread,
)

log = logging.getLogger(__name__)

_ENDS_TOGETHER = 32
_GATHER_S = 0.001
"""How long a turn waits at most for others to share its transaction."""


class SqlLedger:
    """`ports.Ledger` on a database: group commits by one writer thread, bounded memory, degraded
    instead of stopped. Everything except the writer thread's work runs on the event loop that
    called `start`."""

    def __init__(
        self,
        database: Database,
        limits: LedgerLimits | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._limits = limits or LedgerLimits()
        self._clock = clock
        self._database = database
        self._queue = WriteQueue(
            self._limits.waiting_turns,
            self._limits.waiting_bytes,
            self._limits.batch_turns,
            self._limits.batch_bytes,
        )
        self._writer = WriterThread(database, self._queue, self._limits, self._report)
        self._checkpointer = Checkpointer(database, self._queue.ask_for_check)
        self._thread = threading.Thread(target=self._run, name="metaclaw-ledger", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._finished: asyncio.Future[None] | None = None
        self._is_open = False
        self._trouble: str | None = None
        self._losses = Losses()
        self._awaited: dict[QueuedItem, float] = {}
        self._is_wake_due = False
        self._gathered = 0
        self._together = 1
        self._wake_timer: asyncio.TimerHandle | None = None
        self._waiting_for_room: list[asyncio.Future[None]] = []
        self._watch_timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Start the writer thread. The ledger belongs to the running event loop from now on. Raises
        StoreError if no thread can be started; then turns wait in memory until another call
        succeeds."""
        self._loop = asyncio.get_running_loop()
        self._finished = self._loop.create_future()
        self._is_open = True
        try:
            if not self._thread.is_alive():
                self._thread.start()
            self._checkpointer.start()
        except RuntimeError as error:
            self._change_to(f"starting the ledger: {error}")
            raise StoreError(f"starting the ledger: {error}") from error
        self._change_to(self._database.refusal)

    async def aclose(self) -> None:
        """Write the waiting items, then stop. Items that a failing store refuses for
        `close_patience_s` are lost and logged.
        """
        if self._finished is None:
            return
        self._is_open = False
        self._queue.close()
        self._wake_waiting_for_room()
        if self._thread.ident is not None:  # it was started
            await self._finished
            self._thread.join()
        self._checkpointer.stop()
        self._stop_watching()

    async def record(self, turn: Turn) -> bool:
        """Return True when the turn is on disk; False if the store fails, and the turn waits in
        memory or is lost.
        """
        return await self._submit(turn)

    async def end_session(self, session: SessionId, reason: str) -> None:
        """Mark a session as ended, after all turns recorded before. An unknown or ended session is
        ignored.
        """
        await self._submit(SessionEnd(session, reason, self._clock()))

    async def end_sessions(self, sessions: Sequence[SessionId], reason: str) -> None:
        """Mark many sessions as ended, in shared transactions: separate ones would delay recording
        by seconds.
        """
        at = self._clock()
        for begin in range(0, len(sessions), _ENDS_TOGETHER):
            group = sessions[begin : begin + _ENDS_TOGETHER]
            await asyncio.gather(
                *(self._submit(SessionEnd(session, reason, at)) for session in group)
            )

    async def announce(self, kind: str, data: dict[str, Json]) -> bool:
        """Append an event; True when it is on disk."""
        return await self._submit(Announcement(kind, data, self._clock()))

    @property
    def health(self) -> StoreHealth:
        """Whether turns are being recorded, and if not, why, and how many wait in memory or are
        lost.
        """
        state = Health.HEALTHY if self._trouble is None else Health.DEGRADED
        notice = "; ".join(list(self._database.notices.values())) or None
        return StoreHealth(state, self._trouble, self._queue.turns, self._losses.turns, notice)

    async def _submit(self, item: Item) -> bool:
        loop = self._loop
        if loop is None:
            raise RuntimeError("the ledger has not been started")
        queued = QueuedItem(item, weigh(item))
        while self._is_open and self._trouble is None:
            if self._queue.offer(queued):
                self._call_writer(loop)
                queued.waiting = loop.create_future()
                self._awaited[queued] = time.monotonic()
                self._watch(loop, self._limits.patience_s)
                return await queued.waiting
            room = loop.create_future()
            self._waiting_for_room.append(room)
            await room
        self._keep_in_memory(queued)
        return False

    def _call_writer(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake the writer when the number of waiting items reaches that of the last transaction, or
        after `_GATHER_S`: a transaction costs about the same for many items as for one. A single
        item does not wait."""
        self._gathered += 1
        if self._is_wake_due:
            if self._wake_timer is not None and self._gathered >= self._together:
                self._wake_timer.cancel()
                self._wake_timer = None
                loop.call_soon(self._wake_writer)
            return
        self._is_wake_due = True
        if self._together > 1:
            self._wake_timer = loop.call_later(_GATHER_S, self._wake_writer)
        else:
            loop.call_soon(self._wake_writer)

    def _wake_writer(self) -> None:
        self._is_wake_due, self._gathered, self._wake_timer = False, 0, None
        self._queue.wake()

    def _keep_in_memory(self, queued: QueuedItem) -> None:
        if self._is_open:
            self._lose(self._queue.squeeze(queued))
        else:
            self._lose([queued])

    def _run(self) -> None:
        try:
            self._writer.run()
        finally:
            self._call(self._finish)

    def _report(self, report: WriteReport) -> None:
        self._call(self._settle, report)
        if report.written:
            self._checkpointer.note(sum(queued.weight_bytes for queued in report.written))

    def _call(self, function: Callable[..., None], *arguments: WriteReport) -> None:
        """Call a function on the event loop; do nothing if the loop was closed without `aclose`."""
        if self._loop is None or self._loop.is_closed():
            return
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError as error:
            log.debug("ledger has no loop to report to reason=%s", error)

    def _settle(self, report: WriteReport) -> None:
        if report.written:
            self._together = len(report.written)
        for queued in report.written:
            self._answer(queued, True)
        self._lose(report.lost)
        if report.trouble is not None or report.is_working:
            self._change_to(report.trouble)
        self._wake_waiting_for_room()

    def _change_to(self, trouble: str | None) -> None:
        before, self._trouble = self._trouble, trouble
        if trouble is not None and before is None:
            log.error("ledger degraded, serving goes on, turns wait in memory reason=%s", trouble)
        elif trouble is None and before is not None:
            log.warning(
                "ledger healthy again waiting_turns=%d lost_turns=%d",
                self._queue.turns,
                self._losses.turns,
            )
            self._losses.sum_up()
        if trouble is not None:
            for queued in list(self._awaited):
                self._answer(queued, False)
            self._wake_waiting_for_room()

    def _answer(self, queued: QueuedItem, is_durable: bool) -> None:
        self._awaited.pop(queued, None)
        waiting, queued.waiting = queued.waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(is_durable)

    def _lose(self, items: list[QueuedItem]) -> None:
        self._losses.note(queued.item for queued in items)
        for queued in items:
            self._answer(queued, False)

    def _wake_waiting_for_room(self) -> None:
        wanted, self._waiting_for_room = self._waiting_for_room, []
        for room in wanted:
            if not room.done():
                room.set_result(None)

    def _watch(self, loop: asyncio.AbstractEventLoop, delay_s: float) -> None:
        if self._watch_timer is None:
            self._watch_timer = loop.call_later(delay_s, self._check, loop)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Degrade a store that has made no progress for `patience_s` while a caller waits."""
        self._watch_timer = None
        if not self._awaited:
            return
        # A busy event loop hears of the writer's progress late; the queue has it at once.
        since_s = max(next(iter(self._awaited.values())), self._queue.progress_s)
        idle_s = time.monotonic() - since_s
        if idle_s >= self._limits.patience_s and not self._queue.is_empty:
            doing = f"; {self._writer.doing}" if self._writer.doing else ""
            self._change_to(f"the store has not answered for {idle_s * 1000:.0f} ms{doing}")
        else:
            self._watch(loop, max(self._limits.patience_s - idle_s, self._limits.patience_s / 10))

    def _stop_watching(self) -> None:
        for timer in (self._watch_timer, self._wake_timer):
            if timer is not None:
                timer.cancel()
        self._watch_timer = self._wake_timer = None

    def _finish(self) -> None:
        if self._is_open:
            self._change_to("the writer thread crashed; see the log")
        self._losses.sum_up()
        if self._finished is not None and not self._finished.done():
            self._finished.set_result(None)


class Losses:
    """Counts lost items from the first loss until `sum_up` logs the sums."""

    def __init__(self) -> None:
        self._spell: Counter[str] = Counter()
        self.turns = 0
        """Turns lost since the start. Lost session ends and events are not counted: a session ends
        again by silence.
        """

    def note(self, items: Iterable[Item]) -> None:
        """Count these items as lost."""
        for item in items:
            kind, name = _describe(item)
            if not self._spell:
                log.warning("ledger has begun to lose what it cannot keep first=%s", kind)
            log.debug("ledger lost kind=%s which=%s", kind, name)
            self._spell[kind] += 1
            self.turns += kind == "turn"

    def sum_up(self) -> None:
        """Log the losses since the last call, if any."""
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


_COMMIT_BYTES = 24 << 10  # what one commit adds to the log beside its payload: about six pages
_LOG_BYTES = 4 << 20


class Checkpointer:
    """A thread that checkpoints when enough was written or enough time has passed. The writer's own
    connection checkpoints only when the log has grown far beyond that."""

    def __init__(
        self,
        database: Database,
        lost: Callable[[], None],
        every_s: float = 5.0,
        look_every_s: float = 1.0,
    ) -> None:
        self._database = database
        self._lost = lost
        self._every_s = every_s
        self._look_every_s = look_every_s
        self._written_bytes = 0
        self._wake = threading.Event()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="metaclaw-checkpoint", daemon=True)

    def start(self) -> None:
        """Start the thread, if the database is SQLite."""
        if self._database.path is not None and not self._thread.is_alive():
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for its end."""
        self._is_over = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def note(self, payload_bytes: int) -> None:
        """Record that the writer has committed this number of bytes."""
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
        except (StoreError, MemoryError) as error:
            log.debug("checkpoint failed reason=%s", error)

    def _checkpoint(self) -> None:
        # Passive: it neither waits for other connections nor blocks them.
        with (
            store_errors("checkpointing", self._database.dialect),
            self._database.engine.connect() as connection,
        ):
            cursor = connection.connection.cursor()
            cursor.execute("PRAGMA wal_checkpoint(PASSIVE)")
            cursor.close()

"""The ledger: a turn is recorded when it is on disk, or when the store is broken, which is said and survived."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from metaclaw.domain.chat import Json
from metaclaw.domain.ids import SessionId
from metaclaw.domain.status import Health, StoreHealth
from metaclaw.domain.turn import Turn
from metaclaw.store.checkpoint import Checkpointer
from metaclaw.store.database import Database
from metaclaw.store.intake import Entry, Intake, weigh
from metaclaw.store.losses import Losses
from metaclaw.store.scribe import Announcement, Item, SessionEnd
from metaclaw.store.writer import Limits, Report, Writer

log = logging.getLogger(__name__)

_ENDS_TOGETHER = 32
_GATHER_S = 0.001
"""Longest that a turn waits for others to share its transaction."""


def _now() -> datetime:
    return datetime.now(UTC)


class SqlLedger:
    """`ports.Ledger` on a database: group commits by one writer thread, bounded memory, degraded rather than stopped.

    Everything but the writer's own work happens on the event loop that called `start`.
    """

    def __init__(self, database: Database, limits: Limits | None = None, clock: Callable[[], datetime] = _now) -> None:
        self._limits = limits or Limits()
        self._clock = clock
        self._database = database
        self._intake = Intake(
            self._limits.waiting_turns, self._limits.waiting_bytes, self._limits.batch_turns, self._limits.batch_bytes
        )
        self._writer = Writer(database, self._intake, self._limits, self._report)
        self._checkpointer = Checkpointer(database, self._intake.ask_for_check)
        self._thread = threading.Thread(target=self._run, name="metaclaw-ledger", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._finished: asyncio.Future[None] | None = None
        self._is_open = False
        self._trouble: str | None = None
        self._losses = Losses()
        self._awaited: dict[Entry, float] = {}
        self._is_wake_due = False
        self._gathered = 0
        self._together = 1
        self._wake_timer: asyncio.TimerHandle | None = None
        self._room_wanted: list[asyncio.Future[None]] = []
        self._watch_timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Begin to write. The ledger belongs to the running event loop from now on."""
        self._loop = asyncio.get_running_loop()
        self._finished = self._loop.create_future()
        self._is_open = True
        if self._database.refusal is not None:
            self._change_to(self._database.refusal)
        self._thread.start()
        self._checkpointer.start()

    async def aclose(self) -> None:
        """Write what waits, then stop; what a broken store does not take within `close_patience_s` is lost, and said so."""
        if self._finished is None:
            return
        self._is_open = False
        self._intake.close()
        self._wake_all_who_want_room()
        await self._finished
        self._thread.join()
        await asyncio.to_thread(self._checkpointer.stop)
        self._stop_watching()

    async def record(self, turn: Turn) -> bool:
        """Return True when the turn is on disk; False when the store cannot take it now, and it waits in memory or is lost."""
        return await self._submit(turn)

    async def end_session(self, session: SessionId, reason: str) -> None:
        """Mark a session as ended, after every turn recorded before. Ending an unknown or ended session is no error."""
        await self._submit(SessionEnd(session, reason, self._clock()))

    async def end_sessions(self, sessions: Sequence[SessionId], reason: str) -> None:
        """The same for many. They share transactions: one each would keep those who wait for their answers waiting for seconds."""
        at = self._clock()
        for begin in range(0, len(sessions), _ENDS_TOGETHER):
            some = sessions[begin : begin + _ENDS_TOGETHER]
            await asyncio.gather(*(self._submit(SessionEnd(session, reason, at)) for session in some))

    async def announce(self, kind: str, data: dict[str, Json]) -> bool:
        """Append an event; True when it is on disk."""
        return await self._submit(Announcement(kind, data, self._clock()))

    @property
    def health(self) -> StoreHealth:
        """Whether turns are being kept, and if not, why, and how many wait in memory or are lost."""
        state = Health.HEALTHY if self._trouble is None else Health.DEGRADED
        notice = "; ".join(list(self._database.notices.values())) or None
        return StoreHealth(state, self._trouble, self._intake.turns, self._losses.turns, notice)

    async def _submit(self, item: Item) -> bool:
        loop = self._loop
        if loop is None:
            raise RuntimeError("the ledger has not been started")
        entry = Entry(item, weigh(item))
        while self._is_open and self._trouble is None:
            if self._intake.offer(entry):
                self._call_writer(loop)
                entry.waiting = loop.create_future()
                self._awaited[entry] = time.monotonic()
                self._watch(loop, self._limits.patience_s)
                return await entry.waiting
            room = loop.create_future()
            self._room_wanted.append(room)
            await room
        self._keep_for_later(entry)
        return False

    def _call_writer(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake the writer, but not before as many have come as shared the last transaction, or some time has passed: a transaction
        costs about as much for many as for one. Who comes alone need not wait."""
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
        self._intake.wake()

    def _keep_for_later(self, entry: Entry) -> None:
        if self._is_open:
            self._lose(self._intake.squeeze(entry))
        else:
            self._lose([entry])

    def _run(self) -> None:
        try:
            self._writer.run()
        finally:
            self._call(self._finish)

    def _report(self, report: Report) -> None:
        self._call(self._settle, report)
        if report.written:
            self._checkpointer.note(sum(entry.weight_bytes for entry in report.written))

    def _call(self, function: Callable[..., None], *arguments: Report) -> None:
        """Run on the event loop. A loop that was closed without `aclose` has nobody left to tell."""
        if self._loop is None or self._loop.is_closed():
            return
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError as error:
            log.debug("ledger has no loop to report to reason=%s", error)

    def _settle(self, report: Report) -> None:
        if report.written:
            self._together = len(report.written)
        for entry in report.written:
            self._answer(entry, True)
        self._lose(report.lost)
        if report.trouble is not None or report.is_working:
            self._change_to(report.trouble)
        self._wake_all_who_want_room()

    def _change_to(self, trouble: str | None) -> None:
        before, self._trouble = self._trouble, trouble
        if trouble is not None and before is None:
            log.error("ledger degraded, serving goes on, turns wait in memory reason=%s", trouble)
        elif trouble is None and before is not None:
            log.warning("ledger healthy again waiting_turns=%d lost_turns=%d", self._intake.turns, self._losses.turns)
            self._losses.sum_up()
        if trouble is not None:
            for entry in list(self._awaited):
                self._answer(entry, False)
            self._wake_all_who_want_room()

    def _answer(self, entry: Entry, is_durable: bool) -> None:
        self._awaited.pop(entry, None)
        waiting, entry.waiting = entry.waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(is_durable)

    def _lose(self, entries: list[Entry]) -> None:
        self._losses.note(entry.item for entry in entries)
        for entry in entries:
            self._answer(entry, False)

    def _wake_all_who_want_room(self) -> None:
        wanted, self._room_wanted = self._room_wanted, []
        for room in wanted:
            if not room.done():
                room.set_result(None)

    def _watch(self, loop: asyncio.AbstractEventLoop, delay_s: float) -> None:
        if self._watch_timer is None:
            self._watch_timer = loop.call_later(delay_s, self._check, loop)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Nobody waits longer than the patience for a store that makes no progress at all."""
        self._watch_timer = None
        if not self._awaited:
            return
        # The writer's own word counts, since a loop that was busy itself hears of its progress late.
        since_s = max(next(iter(self._awaited.values())), self._intake.progress_s)
        idle_s = time.monotonic() - since_s
        if idle_s >= self._limits.patience_s and not self._intake.is_empty:
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
            self._change_to("the writer stopped by a fault of its own; see the log")
        self._losses.sum_up()
        if self._finished is not None and not self._finished.done():
            self._finished.set_result(None)

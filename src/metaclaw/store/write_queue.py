"""The write queue between the event loop and the writer thread, bounded by count and by bytes."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterable
from queue import SimpleQueue

from metaclaw.domain.ids import SessionId
from metaclaw.domain.turn import Turn
from metaclaw.store.turn_writer import Item, SessionEnd

_ROW_BYTES = 1024  # about what a turn weighs in memory beside its payload


class QueuedItem:
    """An item to write, the future that waits for it, and how often it failed while others were written."""

    __slots__ = ("attempts", "commits_seen", "is_turn", "item", "refusals", "waiting", "weight_bytes")

    def __init__(self, item: Item, weight_bytes: int) -> None:
        self.item = item
        self.weight_bytes = weight_bytes
        self.waiting: asyncio.Future[bool] | None = None
        self.attempts = 0
        self.refusals = 0
        self.commits_seen = 0
        self.is_turn = isinstance(item, Turn)
        """Whether losing it would lose a turn."""


def weigh(item: Item) -> int:
    """Bytes of memory an item holds, roughly."""
    if not isinstance(item, Turn):
        return _ROW_BYTES
    exchange, tokens = item.exchange, item.tokens
    weight = _ROW_BYTES + len(exchange.request) + len(exchange.said) + len(exchange.translated or b"") + len(exchange.seen or b"")
    for splice in exchange.splices:
        weight += len(splice.inserted)
    if tokens is not None:
        weight += 32 * (len(tokens.prompt_ids) + 2 * len(tokens.sampled_ids))
    if item.enforcement is not None:
        weight += sum(map(weigh, item.enforcement.attempts))
    return weight


class WriteQueue:
    """A bounded queue of entries. What the writer has taken still counts until it is freed or put back."""

    def __init__(self, max_entries: int, max_bytes: int, batch_entries: int, batch_bytes: int) -> None:
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._batch_entries, self._batch_bytes = batch_entries, batch_bytes
        self._lock = threading.Lock()
        # A condition variable would do the same in several times the time.
        self._work: SimpleQueue[None] = SimpleQueue()
        self._is_waited_for = False
        self._closing = threading.Event()
        self._entries: deque[QueuedItem] = deque()
        self._held_entries = self._held_bytes = 0
        self._held_turns = self._held_turn_bytes = 0
        self._ending: set[SessionId] = set()  # whose end is held; saves a search for most
        self._is_closed = False
        self._is_check_due = False
        self.progress_s = 0.0
        """When something was last done with, on the monotonic clock."""

    @property
    def is_empty(self) -> bool:
        """Whether everything is done with."""
        return self._held_entries == 0

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing for the writer to take, and there may be later."""
        return not self._entries and not self._is_closed

    @property
    def turns(self) -> int:
        """Turns in memory that are not known to be on disk."""
        return self._held_turns

    def offer(self, queued: QueuedItem) -> bool:
        """Take the queued if there is room; one that is larger than all the room is taken when nothing else is there.

        The writer is not woken: call `wake` after the last of several.
        """
        with self._lock:
            if self._held_entries and not self._fits(queued.weight_bytes):
                return False
            self._entries.append(queued)
            self._hold(queued)
            return True

    def wake(self) -> None:
        """There may be something to write."""
        with self._lock:
            self._wake()

    def ask_for_check(self) -> None:
        """Have the writer look at its files, even if there is nothing to write."""
        with self._lock:
            self._is_check_due = True
            self._wake()

    def squeeze(self, queued: QueuedItem) -> list[QueuedItem]:
        """Take the queued even when full: what waited longest makes room, a turn only for a turn. Returns what was dropped."""
        with self._lock:
            if queued.weight_bytes > self._max_bytes:
                return [queued]
            if isinstance(queued.item, SessionEnd) and self._is_said_already(queued.item):
                return []
            self._entries.append(queued)
            self._hold(queued)
            dropped = self._trim()
            self._wake()
            return dropped

    def take(self) -> list[QueuedItem]:
        """Wait for work; everything that waits, up to one batch. Empty when closed and nothing is left, or when a check is due."""
        while True:
            with self._lock:
                if self._entries or self._is_closed or self._is_check_due:
                    self._is_check_due = False
                    return self._take_batch()
                self._is_waited_for = True
            self._work.get()

    def put_back(self, entries: list[QueuedItem]) -> list[QueuedItem]:
        """Keep what could not be written, in its old place, or, alone and not for the first time, behind the others.

        Returns what was dropped.
        """
        with self._lock:
            if len(entries) == 1 and entries[0].attempts > 1:
                self._entries.extend(entries)
            else:
                self._entries.extendleft(reversed(entries))
            return self._trim()

    def free(self, entries: Iterable[QueuedItem]) -> None:
        """These are done with."""
        with self._lock:
            self.progress_s = time.monotonic()
            for queued in entries:
                self._let_go(queued)

    def pause(self, seconds: float) -> None:
        """Wait, unless the queue is or gets closed."""
        self._closing.wait(seconds)

    def close(self) -> None:
        """Nothing more will be offered; wake the writer."""
        with self._lock:
            self._is_closed = True
            self._wake()
        self._closing.set()

    @property
    def is_closed(self) -> bool:
        """Whether the writer should finish."""
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
        return self._held_entries < self._max_entries and self._held_bytes + more_bytes <= self._max_bytes

    def _is_said_already(self, end: SessionEnd) -> bool:
        """One end a session is enough: the one that waits, or, where the session has gone on since, the new one in its stead."""
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
        while self._held_entries > self._held_turns and self._is_over(self._held_entries, self._held_bytes):
            lesser = next((queued for queued in self._entries if not queued.is_turn), None)
            if lesser is None:
                break
            dropped.append(lesser)
            self._remove(lesser)
        # What is left over may be ends and events that the writer has in hand: few, and no reason to lose a turn.
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
        self._held_entries += 1
        self._held_bytes += queued.weight_bytes
        if queued.is_turn:
            self._held_turns += 1
            self._held_turn_bytes += queued.weight_bytes
        elif isinstance(queued.item, SessionEnd):
            self._ending.add(queued.item.session)

    def _let_go(self, queued: QueuedItem) -> None:
        self._held_entries -= 1
        self._held_bytes -= queued.weight_bytes
        if queued.is_turn:
            self._held_turns -= 1
            self._held_turn_bytes -= queued.weight_bytes
        elif isinstance(queued.item, SessionEnd):
            self._ending.discard(queued.item.session)

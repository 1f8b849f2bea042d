"""What is kept of an answer while it arrives, for its turn. Bounded for one answer, and for all
answers in progress together.

An answer beyond the bound is relayed on, but only its beginning is kept, and its end until the
facts in it have been read."""

import asyncio
from collections import deque
from typing import Final

MAX_RECORD_BYTES: Final = 16 * 1024 * 1024
"""The most that is recorded of one answer, and the most of one that must be held as a whole."""
MAX_RECORDS_BYTES: Final = 128 * 1024 * 1024
"""The most that is kept of all answers in progress together. Beyond it, the largest records are
cut.
"""
_STEP_BYTES: Final = 1024 * 1024
_KEPT_BYTES: Final = _STEP_BYTES
"""What is left of a record that is cut to make room for others."""
_UNCOUNTED_BYTES: Final = 64 * 1024
_EDGE_BYTES: Final = 64 * 1024
_TRIMMED_BYTES: Final = 32 * 1024 * 1024
_TRIM_AFTER_S: Final = 1.0
"""The ledger writes the last turn meanwhile, and frees it."""


class RecordTooLongError(Exception):
    """There is no room for more of an answer that must be held as a whole."""


class RecordBudget:
    """The memory of all records. Small ones are not counted."""

    def __init__(self, max_bytes: int = MAX_RECORDS_BYTES) -> None:
        self._max_bytes = max_bytes
        self._counted: dict[AnswerRecord, int] = {}
        self._used_bytes = 0
        self._freed_bytes = 0

    @property
    def has_room(self) -> bool:
        """Whether a record may grow without another being cut."""
        return self._used_bytes + _STEP_BYTES <= self._max_bytes

    def count(self, record: "AnswerRecord", size: int) -> None:
        """Count a record with its new size. Beyond the limit, the largest records that may be cut
        are cut, perhaps this one.

        Raises RecordTooLongError if that is not enough and this one must be whole."""
        self._used_bytes += size - self._counted.get(record, 0)
        self._counted[record] = size
        while self._used_bytes > self._max_bytes:
            largest = max(
                (one for one in self._counted if not one.must_be_whole),
                key=self._counted.__getitem__,
                default=None,
            )
            if largest is None or self._counted[largest] <= _KEPT_BYTES:
                break
            largest.cut(_KEPT_BYTES)
        if self._used_bytes > self._max_bytes and record.must_be_whole:
            raise RecordTooLongError

    def forget(self, record: "AnswerRecord") -> None:
        """Stop counting a record."""
        size = self._counted.pop(record, None)
        if size is None:
            return
        self._used_bytes -= size
        self._freed_bytes += size
        if not self._counted and self._freed_bytes >= _TRIMMED_BYTES:
            self._freed_bytes = 0
            asyncio.get_running_loop().call_later(_TRIM_AFTER_S, _start_trim)


def _start_trim() -> None:
    asyncio.get_running_loop().run_in_executor(None, _trim)


def _trim() -> None:
    """Return free memory to the system: glibc keeps it if small blocks lie between large ones that
    were freed.
    """
    import ctypes

    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return  # another C library


class AnswerRecord:
    """The bytes of one answer, up to MAX_RECORD_BYTES."""

    __slots__ = (
        "_blocks",
        "_budget",
        "_chunks",
        "_end",
        "_end_bytes",
        "_next_step",
        "is_cut",
        "must_be_whole",
        "size",
    )

    def __init__(self, budget: RecordBudget, *, must_be_whole: bool = False) -> None:
        self.must_be_whole = must_be_whole
        """Whether the answer is needed as a whole, so that its record cannot be cut."""
        self.size = 0
        """The size of the answer so far, of which less may be kept."""
        self.is_cut = False
        self._budget = budget
        self._blocks: list[bytes] = []
        self._chunks: list[bytes] = []
        self._next_step = _UNCOUNTED_BYTES
        self._end: deque[bytes] = deque()
        self._end_bytes = 0

    def add(self, data: bytes) -> None:
        """Add received bytes. Raises RecordTooLongError for an answer that must be whole and is too
        long.
        """
        self.size += len(data)
        if self.is_cut:
            self._add_to_end(data)
            return
        self._chunks.append(data)
        if self.size > self._next_step:
            self._grow()

    def has_room(self, more_bytes: int) -> bool:
        """Whether this many bytes can be added without cutting any record."""
        size = self.size + more_bytes
        return size <= self._next_step or (size <= MAX_RECORD_BYTES and self._budget.has_room)

    def kept(self) -> bytes:
        """What is kept: the whole answer, or its beginning."""
        if len(self._blocks) != 1 or self._chunks:
            self._blocks, self._chunks = [b"".join((*self._blocks, *self._chunks))], []
        return self._blocks[0]

    def edges(self) -> tuple[bytes, bytes]:
        """The beginning and the end of an answer whose record was cut."""
        return self.kept()[:_EDGE_BYTES], b"".join(self._end)

    def cut(self, to_bytes: int) -> None:
        """Keep only the first `to_bytes`, and from now on the end."""
        kept = self.kept()
        if not self.is_cut:
            self._add_to_end(kept[max(to_bytes, len(kept) - _EDGE_BYTES) :])
        self.is_cut = True
        self._blocks = [kept[:to_bytes]]
        self._budget.count(self, to_bytes)

    def release(self) -> None:
        """Stop counting it: its answer is over."""
        self._budget.forget(self)

    def _grow(self) -> None:
        if self.size > MAX_RECORD_BYTES:
            if self.must_be_whole:
                raise RecordTooLongError
            self.cut(MAX_RECORD_BYTES)
            return
        # Many small chunks would take several times their size.
        self._blocks.append(b"".join(self._chunks))
        self._chunks = []
        self._next_step = min(self.size + _STEP_BYTES, MAX_RECORD_BYTES)
        self._budget.count(self, self._next_step)

    def _add_to_end(self, data: bytes) -> None:
        self._end.append(data[-_EDGE_BYTES:])
        self._end_bytes += len(self._end[-1])
        while self._end_bytes - len(self._end[0]) >= _EDGE_BYTES:
            self._end_bytes -= len(self._end.popleft())

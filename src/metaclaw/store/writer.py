"""The writer: the one thread that takes what waits, commits it in groups, and never gives up on a store that fails."""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from metaclaw.domain.turn import Turn
from metaclaw.errors import StoreError
from metaclaw.store.database import Database
from metaclaw.store.files import FilesLostError
from metaclaw.store.guard import RefusedError
from metaclaw.store.intake import Entry, Intake
from metaclaw.store.scribe import Item, Scribe

log = logging.getLogger(__name__)

_MAX_REFUSALS = 5


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may wait, how much goes in one transaction, and how patient we are."""

    waiting_turns: int = 1024
    waiting_bytes: int = 64 << 20
    batch_turns: int = 64
    batch_bytes: int = 8 << 20
    lineage_bytes: int = 32 << 20
    patience_s: float = 1.0
    retry_first_s: float = 0.05
    retry_max_s: float = 2.0
    close_patience_s: float = 2.0


@dataclass(slots=True)
class Report:
    """What became of some entries, what is wrong with the store, if anything, and whether it was seen to work."""

    written: list[Entry] = field(default_factory=list)
    lost: list[Entry] = field(default_factory=list)
    trouble: str | None = None
    is_working: bool = False

    def add(self, other: "Report") -> None:
        """What became of some more."""
        self.written += other.written
        self.lost += other.lost
        self.trouble = self.trouble or other.trouble
        self.is_working = self.is_working or other.is_working


class Writer:
    """Serves an intake until it is closed and empty; `report` is called from the writer's own thread."""

    def __init__(self, database: Database, intake: Intake, limits: Limits, report: Callable[[Report], None]) -> None:
        self._database = database
        self._intake = intake
        self._limits = limits
        self._report = report
        self._scribe: Scribe | None = None
        self._has_failed = False
        self._is_troubled = False
        self._commits = 0
        self._failures = 0
        self._give_up_at: float | None = None
        self.doing: str | None = None
        """What takes long, if anything does."""

    def run(self) -> None:
        """The thread's whole life."""
        self._warm_up()
        while True:
            if self._is_troubled and self._intake.is_idle:
                self._probe()
                continue
            entries = self._intake.take()
            if entries:
                self._serve(entries)
            elif self._intake.is_closed:
                break
            else:
                self._check_files()
        self._check_files()
        self._close_scribe()

    def _serve(self, entries: list[Entry]) -> None:
        has_failed = any(entry.attempts for entry in entries)
        report = self._write_singly(entries) if has_failed else self._write_together(entries)
        if report.written or report.lost:
            self._intake.free((*report.written, *report.lost))
        if report.trouble is not None:
            report.lost += self._leave_for_later(entries, report)
        self._tell(report)

    def _probe(self) -> None:
        """Nothing waits, but the store was broken when it was last used: find out whether it still is."""
        try:
            self._write([])
        except StoreError as error:
            self._close_scribe()
            self._tell(Report(trouble=str(error)))
        else:
            self._tell(Report(is_working=True))

    def _check_files(self) -> None:
        """Write removed files anew even if there is nothing to record."""
        try:
            if self._scribe is not None:
                self._scribe.check_files()
        except FilesLostError:
            self._probe()

    def _write(self, items: Sequence[Item]) -> None:
        try:
            self._open_scribe().write(items)
        except FilesLostError:
            self._open_scribe().write(items)

    def _tell(self, report: Report) -> None:
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
            self._open_scribe()
        except StoreError as error:
            self._has_failed = True
            self._tell(Report(trouble=str(error)))

    def _write_together(self, entries: list[Entry]) -> Report:
        try:
            self._write([entry.item for entry in entries])
        except RefusedError:
            self._undo()
            return self._write_singly(entries)
        except StoreError as error:
            return self._trouble(entries, error)
        return self._success(entries)

    def _write_singly(self, entries: list[Entry]) -> Report:
        """One transaction each, so that one bad turn spoils no other."""
        report = Report()
        queue = deque(entries)
        has_probed = False
        while queue:
            report.add(self._write_alone(queue.popleft()))
            if report.trouble is not None and not report.written:
                if has_probed or not queue:
                    break
                # Is it the store or that entry? The lightest of the others tells.
                lightest = min(queue, key=lambda entry: entry.weight_bytes)
                queue.remove(lightest)
                queue.appendleft(lightest)
                has_probed = True
        return report

    def _write_alone(self, entry: Entry) -> Report:
        try:
            scribe = self._open_scribe()
            # A commit may have succeeded although we heard that it failed.
            if not (isinstance(entry.item, Turn) and scribe.has(entry.item)):
                self._write([entry.item])
        except RefusedError as error:
            self._undo()
            return self._write_without_usage(entry, error)
        except StoreError as error:
            return self._trouble([entry], error)
        return self._success([entry])

    def _write_without_usage(self, entry: Entry, refusal: RefusedError) -> Report:
        """A provider may send any number as its usage; what the client saw must not be lost for it."""
        turn = entry.item
        if not isinstance(turn, Turn) or turn.usage is None:
            return self._refused(entry, refusal)
        try:
            self._write([replace(turn, usage=None)])
        except RefusedError:
            self._undo()
            return self._refused(entry, refusal)
        except StoreError as error:
            return self._trouble([entry], error)
        log.warning("turn stored without its usage turn=%s reason=%s", turn.id, refusal)
        return self._success([entry])

    def _success(self, entries: list[Entry]) -> Report:
        self._commits += 1
        return Report(written=entries, is_working=True)

    def _trouble(self, entries: list[Entry], error: StoreError) -> Report:
        self._close_scribe()
        self._has_failed = True
        for entry in entries:
            # Failing again and again while others are written is the entry's fault, not the store's.
            if entry.attempts and self._commits > entry.commits_seen:
                entry.refusals += 1
            entry.attempts += 1
            entry.commits_seen = self._commits
        if len(entries) == 1 and entries[0].refusals >= _MAX_REFUSALS:
            return self._refused(entries[0], error)
        return Report(trouble=str(error))

    def _refused(self, entry: Entry, error: StoreError) -> Report:
        name = entry.item.id if isinstance(entry.item, Turn) else type(entry.item).__name__
        log.error("turn cannot be stored turn=%s reason=%s", name, error)
        return Report(lost=[entry])

    def _leave_for_later(self, entries: list[Entry], report: Report) -> list[Entry]:
        done = {id(entry) for entry in (*report.written, *report.lost)}
        left = [entry for entry in entries if id(entry) not in done]
        for entry in left:
            if not entry.attempts:
                entry.attempts, entry.commits_seen = 1, self._commits
        dropped = self._intake.put_back(left)
        if self._is_time_to_give_up():
            while rest := self._intake.take():
                self._intake.free(rest)
                dropped += rest
        return dropped

    def _is_time_to_give_up(self) -> bool:
        if not self._intake.is_closed:
            return False
        now = time.monotonic()
        if self._give_up_at is None:
            self._give_up_at = now + self._limits.close_patience_s
        return now >= self._give_up_at

    def _rest(self) -> None:
        delay_s = min(self._limits.retry_max_s, self._limits.retry_first_s * 2 ** min(self._failures, 16))
        self._failures += 1
        if self._intake.is_closed:
            time.sleep(self._limits.retry_first_s)
        else:
            self._intake.pause(delay_s)

    def _open_scribe(self) -> Scribe:
        if self._scribe is not None and self._scribe.is_lost:
            self._rescue(self._scribe)
        if self._scribe is None:
            if self._has_failed:
                # The file may be another one by now, or none.
                self._database.close()
                self._database.prepare()
            self._scribe = Scribe(self._database, self._limits.lineage_bytes)
        return self._scribe

    def _undo(self) -> None:
        try:
            if self._scribe is not None:
                self._scribe.undo()
        except StoreError as error:
            log.debug("rollback failed reason=%s", error)
            self._close_scribe()

    def _rescue(self, scribe: Scribe) -> None:
        """Write removed files anew and open them. Until that is done the old connection stays: it is all that is left of them."""
        self.doing = "removed files of the database are being written anew"
        log.error("store files removed; writing what they held anew database=%s", self._database)
        try:
            rescued = scribe.rescue()
            if rescued.written is not None:
                self._database.refusal = self._database.files = None
                self._scribe = self._reopen(rescued.written)
            else:
                self._scribe, self._has_failed = None, True
        finally:
            self.doing = None
        scribe.is_lost = False
        self._discard(scribe)
        self._database.notices["files"] = rescued.what
        log.warning("store files written anew what=%s", rescued.what)

    def _reopen(self, written: tuple[int, int]) -> Scribe:
        scribe = Scribe(self._database, self._limits.lineage_bytes)
        if scribe.files[0] != written:
            self._discard(scribe)
            raise FilesLostError("the database file was removed again")
        return scribe

    def _close_scribe(self) -> None:
        scribe, self._scribe = self._scribe, None
        if scribe is not None and scribe.is_lost:
            self._scribe = scribe  # its connection is all that is left of the files
        elif scribe is not None:
            self._discard(scribe)

    def _discard(self, scribe: Scribe) -> None:
        try:
            scribe.close()
        except StoreError as error:
            log.debug("closing failed reason=%s", error)

"""Moves what is in SQLite's log into its main file, beside the writer: that takes an fsync, which no answer should wait for.

Also looks whether the files are still there.
"""

import logging
import threading
import time
from collections.abc import Callable

from metaclaw.errors import StoreError
from metaclaw.store.database import Database
from metaclaw.store.guard import store_errors

log = logging.getLogger(__name__)

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
        # Passive: it neither waits for anybody nor keeps anybody waiting.
        with store_errors("checkpointing", self._database.dialect), self._database.engine.connect() as connection:
            cursor = connection.connection.cursor()
            cursor.execute("PRAGMA wal_checkpoint(PASSIVE)")
            cursor.close()

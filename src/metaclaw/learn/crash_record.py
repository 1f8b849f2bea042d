"""The work items the learner has begun, in an unnamed file that the serving process shares and reads when the learner has died.

Messages on a pipe would cost the serving process two reads for every item.
"""

import os
import pickle
import struct
import tempfile
from contextlib import suppress
from types import TracebackType
from typing import Final

from metaclaw.learn.retry_guard import Attempts

_LENGTH: Final = struct.Struct("!Q")


class CrashRecord:
    """One writer at a time. Without a `handle`, creates the file; close it by leaving the context."""

    def __init__(self, handle: int | None = None) -> None:
        self.handle = _new() if handle is None else handle

    def write(self, attempts: Attempts) -> None:
        """Replace the record in one call, so that a killed process has written all of it or nothing."""
        body = pickle.dumps(attempts, pickle.HIGHEST_PROTOCOL)
        with suppress(OSError):  # no space left: the next crash is then counted against no item
            os.pwrite(self.handle, _LENGTH.pack(len(body)) + body, 0)

    def read(self) -> Attempts:
        """Return the last record; an empty one if it was not written completely."""
        head = os.pread(self.handle, _LENGTH.size, 0)
        length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else 0
        body = os.pread(self.handle, length, _LENGTH.size)
        attempts = pickle.loads(body) if body and len(body) == length else Attempts()
        assert isinstance(attempts, Attempts)
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

"""What the learner has in hand, written where it outlives it: a file without a name, which the program and its learner share.

On a pipe the same would cost the serving process a message for everything that is begun and finished; here it reads once, when a
learner has died.
"""

import os
import pickle
import struct
import tempfile
from contextlib import suppress
from types import TracebackType
from typing import Final

from metaclaw.learn.stumbles import Falls

_LENGTH: Final = struct.Struct("!Q")


class Slate:
    """One writer at a time; without a `handle` it is a new one, to be closed."""

    def __init__(self, handle: int | None = None) -> None:
        self.handle = _new() if handle is None else handle

    def write(self, falls: Falls) -> None:
        """Instead of what was there. In one call: a process that is killed has written it or not."""
        body = pickle.dumps(falls, pickle.HIGHEST_PROTOCOL)
        with suppress(OSError):  # there is no room: then a death counts against nothing, and that is all
            os.pwrite(self.handle, _LENGTH.pack(len(body)) + body, 0)

    def read(self) -> Falls:
        """What was written last; nothing where that was not written to its end."""
        head = os.pread(self.handle, _LENGTH.size, 0)
        length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else 0
        body = os.pread(self.handle, length, _LENGTH.size)
        falls = pickle.loads(body) if body and len(body) == length else Falls()
        assert isinstance(falls, Falls)
        return falls

    def __enter__(self) -> "Slate":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        os.close(self.handle)


def _new() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("slate")  # which needs no disk
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())

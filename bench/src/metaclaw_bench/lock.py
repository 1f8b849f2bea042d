"""One process at a time in an output folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from metaclaw.plugin import ConfigError

_LOCK: Final = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder for the length of the block. Raises ConfigError where another process is
    writing there.

    The lock is the kernel's: it ends with its process, also with one that is killed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"another process is writing to {folder}: wait for it, or choose another --out"
            ) from error
        yield
    finally:
        os.close(handle)

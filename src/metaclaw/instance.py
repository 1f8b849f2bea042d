"""The lock that allows one running proxy per home folder, and the address of that proxy.

The lock is a `flock` on `run/metaclaw.pid`. The kernel releases it when the process ends, also after `kill -9`, so a process that
reuses the process id of a dead proxy is not mistaken for it.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from metaclaw.durable_files import replace_file
from metaclaw.errors import MetaClawError

# `find` holds a shared lock for a moment; a proxy that starts at that moment tries again.
_PATIENCE_S = 0.5
_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class Running:
    """The proxy that runs now. `url` is None until it listens."""

    pid: int
    url: str | None
    started_at: datetime | None


class Instance:
    """This process as the proxy of its home folder."""

    def __init__(self, home: Path) -> None:
        self._serving = home / "run" / "serving.json"

    def announce(self, url: str) -> None:
        """Write the address of this proxy where commands find it."""
        facts = {"pid": os.getpid(), "url": url, "started_at": datetime.now(UTC).isoformat()}
        replace_file(self._serving, json.dumps(facts).encode(), flush=False)

    def retract(self) -> None:
        """Remove the address."""
        self._serving.unlink(missing_ok=True)


@contextmanager
def acquire(home: Path) -> Iterator[Instance]:
    """Hold the lock of this home until the block ends. Raises MetaClawError if another process holds it."""
    run = home / "run"
    try:
        for folder in (home, run):  # one by one: parents that `mkdir` makes along the way can be read by others
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = _private(str(run / "metaclaw.pid"), os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise MetaClawError(f"{run} cannot be used ({error.strerror}): make it a folder that you may write to") from error
    try:
        if not _retry(lambda: _try_lock(handle, fcntl.LOCK_EX)):
            raise MetaClawError(_occupied(home))
        instance = Instance(home)
        instance.retract()
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        try:
            yield instance
        finally:
            instance.retract()
            os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def find(home: Path) -> Running | None:
    """The proxy of this home, or None if none runs."""
    try:
        handle = os.open(home / "run" / "metaclaw.pid", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MetaClawError(f"cannot see whether a proxy runs in {home}: {error.strerror}") from error
    try:
        return _lock_holder(home, handle)
    finally:
        os.close(handle)


def _lock_holder(home: Path, handle: int) -> Running | None:
    """The process that holds the lock, or None. It writes its process id a moment after it gets the lock, so this waits for it."""
    deadline = time.monotonic() + _PATIENCE_S
    while not _try_lock(handle, fcntl.LOCK_SH):
        text = os.pread(handle, 32, 0).decode("ascii", "replace").strip()
        if text.isdecimal():
            return _describe(home, int(text))
        if time.monotonic() > deadline:
            raise MetaClawError(f"a proxy of {home} is starting or stopping; try again")
        time.sleep(_PAUSE_S)
    return None


def _describe(home: Path, pid: int) -> Running:
    try:
        facts = json.loads((home / "run" / "serving.json").read_bytes())
        if facts["pid"] == pid:
            return Running(pid, str(facts["url"]), datetime.fromisoformat(facts["started_at"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Running(pid, None, None)  # it does not listen yet
    return Running(pid, None, None)


def _occupied(home: Path) -> str:
    running = find(home)
    who = f"pid {running.pid}" if running else "another process"
    place = f" at {running.url}" if running and running.url else ""
    return f"a proxy of {home} runs already{place} ({who}); stop it with: metaclaw stop"


def _retry(attempt: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + _PATIENCE_S
    while not attempt():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_S)
    return True


def _try_lock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)

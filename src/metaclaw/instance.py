"""The lock that allows one running proxy per home folder, and the address of that proxy.

The lock is a `flock` on `run/metaclaw.pid`. The kernel releases it when the process ends, also
after `kill -9`, so a process that reuses the process id of a dead proxy is not mistaken for it. It
needs no space on the disk. What is written beside it (the process id, the address) is written over
what was there before, which a full disk allows, and only tells commands about the holder."""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from metaclaw.clock import utc_now
from metaclaw.errors import MetaClawError

# `find` holds a shared lock for a moment; a proxy that starts at that moment tries again.
_PATIENCE_S = 0.5
_PAUSE_S = 0.02
_NOTE_BYTES = 512
_LOCKS = Path("/proc/locks")


@dataclass(frozen=True, slots=True)
class Running:
    """The proxy that runs now. `url`, as this machine can open it, is None until it listens."""

    pid: int
    url: str | None
    started_at: datetime | None
    certificate: Path | None = None
    """The certificate that it shows, if it speaks HTTPS."""


def url_of(host: str, port: int, scheme: str = "http") -> str:
    """The URL of a proxy that listens at an address."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def reachable(url: str) -> str:
    """A proxy's URL as this machine can open it: one that listens everywhere is reached by its
    loopback address.
    """
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


class Instance:
    """This process as the proxy of its home folder."""

    def __init__(self, home: Path) -> None:
        self._pid = home / "run" / "metaclaw.pid"
        self._serving = home / "run" / "serving.json"

    def announce(self, url: str | None = None, certificate: Path | None = None) -> None:
        """Write the process id, and the address of this proxy if it has one, where commands find
        them. Raises OSError.
        """
        _overwrite(self._pid, f"{os.getpid()}\n")
        if url is not None:
            facts = {"pid": os.getpid(), "url": url, "started_at": utc_now().isoformat()}
            shown = {} if certificate is None else {"certificate": str(certificate)}
            _overwrite(self._serving, json.dumps(facts | shown))

    def retract(self) -> None:
        """Remove the address."""
        _erase(self._serving)

    def end(self) -> None:
        """Remove the address and the process id."""
        self.retract()
        _erase(self._pid)


@contextmanager
def acquire(home: Path) -> Iterator[Instance]:
    """Hold the lock of this home until the block ends. Raises MetaClawError if another process
    holds it.
    """
    handle = _open_lock(home / "run")
    try:
        if not _retry(lambda: _try_lock(handle, fcntl.LOCK_EX)):
            raise MetaClawError(_occupied(home))
        instance = Instance(home)
        instance.end()
        with suppress(OSError):  # the proxy announces itself again, until it succeeds
            instance.announce()
        try:
            yield instance
        finally:
            instance.end()
    finally:
        os.close(handle)


def _open_lock(run: Path) -> int:
    path = str(run / "metaclaw.pid")
    try:
        for folder in (
            run.parent,
            run,
        ):  # one by one: parents that `mkdir` makes along the way can be read by others
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _private(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        with suppress(OSError):  # a disk that cannot be written to
            return _private(path, os.O_RDONLY)
        raise MetaClawError(
            f"{run} cannot be used ({error.strerror}): make it a folder that you may write to"
        ) from error


def _overwrite(path: Path, text: str) -> None:
    """Write in place, always as many bytes: a file that has its block needs no other, so this
    succeeds on a full disk.
    """
    handle = _private(str(path), os.O_WRONLY | os.O_CREAT)
    try:
        os.pwrite(handle, text.ljust(_NOTE_BYTES).encode(), 0)
    finally:
        os.close(handle)


def _erase(path: Path) -> None:
    """Remove the text and keep the block; if the disk cannot be written to, the text stays, and
    does not fit its reader's lock.
    """
    with suppress(OSError):
        if path.exists():
            _overwrite(path, "")


def find(home: Path) -> Running | None:
    """The proxy of this home, or None if none runs."""
    try:
        handle = os.open(home / "run" / "metaclaw.pid", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MetaClawError(
            f"cannot see whether a proxy runs in {home}: {error.strerror}"
        ) from error
    try:
        return _lock_holder(home, handle)
    finally:
        os.close(handle)


def _lock_holder(home: Path, handle: int) -> Running | None:
    """The process that holds the lock, or None. It writes its process id a moment after it gets the
    lock, so this waits for it.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while not _try_lock(handle, fcntl.LOCK_SH):
        text = os.pread(handle, 32, 0).decode("ascii", "replace").strip()
        written = int(text) if text.isdecimal() else None
        if (pid := _listed_holder(handle) or written) is not None:
            return _describe(home, pid)
        if time.monotonic() > deadline:
            raise MetaClawError(f"a proxy of {home} is starting or stopping; try again")
        time.sleep(_PAUSE_S)
    return None


def _listed_holder(handle: int) -> int | None:
    """The process that holds the lock by the system's list of locks; None if there is no list, or
    it names the file otherwise.
    """
    found = os.fstat(handle)
    file = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        held = [line.split() for line in _LOCKS.read_text("ascii").splitlines()]
    except OSError:
        return None
    pids = [
        int(one[4]) for one in held if one[1] == "FLOCK" and one[3] == "WRITE" and one[5] == file
    ]
    return pids[0] if len(pids) == 1 and pids[0] > 0 else None


def _describe(home: Path, pid: int) -> Running:
    try:
        facts = json.loads((home / "run" / "serving.json").read_bytes())
        if facts["pid"] == pid:
            certificate = facts.get("certificate")
            return Running(
                pid,
                reachable(facts["url"]),
                datetime.fromisoformat(facts["started_at"]),
                None if certificate is None else Path(certificate),
            )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
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

"""Faults of the machine for a running program: a disk without space, and calls that fail.

A disk is a small tmpfs where one can be mounted; elsewhere, and for errors that no real disk gives
on demand, a library that is loaded before the program's own lets its calls fail. Limits of open
files and of memory are real."""

import errno
import mmap
import os
import resource
import struct
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

_SOURCE = Path(__file__).with_name("faults.c")
_CONTROL = struct.Struct("@iii")
_UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


@cache
def _library() -> Path:
    made = Path(mkdtemp()) / "faults.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-o", str(made), str(_SOURCE), "-ldl"], check=True
    )
    return made


class FailingCalls:
    """Lets the calls of a program fail that was started with `env`, from one moment to the next:
    those that use files below `folder`, and those that start threads and processes."""

    def __init__(self, folder: Path, control: Path) -> None:
        control.write_bytes(bytes(mmap.PAGESIZE))
        with control.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self.env = {
            "LD_PRELOAD": str(_library()),
            "FAULTS_FOLDER": str(folder),
            "FAULTS_CONTROL": str(control),
        }

    def set(self, *, files: int = 0, processes: int = 0, slow_ms: int = 0) -> None:
        """The error codes with which they fail from now on, 0: they do not; and how long each
        writing to a file takes.
        """
        self._control[: _CONTROL.size] = _CONTROL.pack(files, processes, slow_ms)


class SmallDisk:
    """A folder on a disk of its own, which can be filled."""

    SIZE = 24 << 20

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={self.SIZE},mode=700", "tmpfs", str(folder)]
        self._is_mounted = (
            os.geteuid() == 0
            and subprocess.run(command, capture_output=True, check=False).returncode == 0
        )
        self._calls = None if self._is_mounted else FailingCalls(folder, folder.with_name("faults"))
        self.env = {} if self._calls is None else self._calls.env

    def fill(self, free_bytes: int = 0) -> None:
        """Leave no more than this free."""
        if self._calls is not None:
            self._calls.set(files=errno.ENOSPC)
            return
        with (self.folder / "filling").open("ab", buffering=0) as file:
            left = os.statvfs(self.folder).f_bavail * os.statvfs(self.folder).f_frsize
            file.write(bytes(max(0, left - free_bytes)))

    def relieve(self) -> None:
        """Have space again."""
        if self._calls is not None:
            self._calls.set()
        else:
            (self.folder / "filling").unlink()

    def close(self) -> None:
        if self._is_mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)


def limit_files(pid: int, most: int | None) -> None:
    """Let a process open no file above this number; None: as many as it may."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard if most is None else most, hard))


def limit_memory(pid: int, more_bytes: int | None) -> None:
    """Let a process map no more than this beside what it has mapped; None: as much as there is."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    limit = (
        _UNLIMITED
        if more_bytes is None
        else (pages * mmap.PAGESIZE + more_bytes, resource.RLIM_INFINITY)
    )
    resource.prlimit(pid, resource.RLIMIT_AS, limit)

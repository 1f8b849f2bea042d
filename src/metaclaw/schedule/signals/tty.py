"""Input on terminals: when each of this user's terminals was last read from, as `w` shows it.

The kernel reports a read at once (inotify), but updates its time only every eight seconds, so the report counts.
"""

import asyncio
import ctypes
import os
import time
from pathlib import Path
from typing import Final

from metaclaw.schedule.signals.input import InputReport, SignalError

_LOOK_EVERY_S: Final = 10.0
_IN_ACCESS: Final = 0x1
_TERMINALS: Final = ("pts/*", "tty[0-9]*")


class TtyInput:
    """All terminals of this user."""

    name = "input (terminals)"
    hears_all = True
    tells_after_s = 0.0

    def __init__(self, devices: Path = Path("/dev")) -> None:
        self._devices = devices

    async def follow(self, report: InputReport) -> None:
        """Report reads as they happen. Raises SignalError where there is no terminal."""
        notices = _Notices()
        try:
            while True:
                found = self._mine()
                if not found:
                    raise SignalError("no user is logged in on a terminal")
                notices.watch(found)
                report.idle(min(time.time() - last for last in found.values()))
                if await notices.wait(_LOOK_EVERY_S):
                    report.input()
        finally:
            notices.close()

    def _mine(self) -> dict[Path, float]:
        """This user's terminals, and when each was last read from."""
        found = {}
        for pattern in _TERMINALS:
            for path in self._devices.glob(pattern):
                try:
                    stat = path.stat()
                except OSError:
                    continue  # it has just been closed
                if stat.st_uid == os.getuid() and path.name != "ptmx" and not _is_console(path, stat.st_uid):
                    found[path] = stat.st_atime
        return found


class _Notices:
    """inotify events of reads from some files; without inotify, the files are polled."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._handle = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(self._libc, "inotify_init1") else -1
        self._watched: set[Path] = set()

    def watch(self, paths: dict[Path, float]) -> None:
        """Watch these; those that are gone end by themselves."""
        if self._handle >= 0:
            for path in paths.keys() - self._watched:
                self._libc.inotify_add_watch(self._handle, os.fsencode(path), _IN_ACCESS)
            self._watched = set(paths)

    async def wait(self, within_s: float) -> bool:
        """Whether something was read; waits for it at most so long."""
        if self._handle < 0:
            await asyncio.sleep(within_s)
            return False
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._handle, ready.set)
        try:
            async with asyncio.timeout(within_s):
                await ready.wait()
            return self._drain()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(self._handle)

    def close(self) -> None:
        """Stop watching."""
        if self._handle >= 0:
            os.close(self._handle)

    def _drain(self) -> bool:
        """Take what has come; whether a read was among it (a terminal that is closed also gives notice)."""
        try:
            content = os.read(self._handle, 65_536)
        except BlockingIOError:
            return False
        place, seen = 0, False
        while place + 16 <= len(content):
            mask = int.from_bytes(content[place + 4 : place + 8], "little")
            seen = seen or bool(mask & _IN_ACCESS)
            place += 16 + int.from_bytes(content[place + 12 : place + 16], "little")
        return seen


def _is_console(path: Path, owner: int) -> bool:
    """Whether it is a virtual console without a login, which belongs to root."""
    return owner == 0 and path.parent.name != "pts"

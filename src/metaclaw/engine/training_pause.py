"""The pause of training while answers are made: holds are counted, and processes stand still while there is one.

On few cores a low priority is not enough, so the trainer's whole process group is stopped by a signal before an answer is begun,
and goes on after it. One event loop calls it; none of its methods waits.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol


class Pausable(Protocol):
    """A process that can be stopped and continued from outside, at once."""

    def stop(self) -> None: ...
    def go(self) -> None: ...


class TrainingPause:
    """Counted holds, each with its reason. The first stops every member before it returns; the last release lets them continue.

    `settle_s` is how long members stay stopped after the last release, so that a burst of requests is one stop.
    """

    def __init__(self, *, settle_s: float = 0.0) -> None:
        self._settle_s = settle_s
        self._holds: dict[str, int] = {}
        self._members: list[Pausable] = []
        self._is_still = False
        self._settling: asyncio.TimerHandle | None = None

    @property
    def is_still(self) -> bool:
        """Whether members are stopped now."""
        return self._is_still

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why they are stopped; empty while they run, and during `settle_s`."""
        return tuple(self._holds)

    def hold(self, reason: str) -> None:
        """Stop all members until the matching `release`; they are stopped when this returns."""
        self._holds[reason] = self._holds.get(reason, 0) + 1
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        if not self._is_still:
            self._is_still = True
            for member in self._members:
                member.stop()

    def release(self, reason: str) -> None:
        """Take one hold back. Raises ValueError if there is none for this reason."""
        count = self._holds.get(reason)
        if count is None:
            raise ValueError(f"training is not paused for {reason!r}")
        if count > 1:
            self._holds[reason] = count - 1
            return
        del self._holds[reason]
        if not self._holds:
            self._settle()

    @contextlib.contextmanager
    def holding(self, reason: str) -> Iterator[None]:
        """Hold for as long as a block runs."""
        self.hold(reason)
        try:
            yield
        finally:
            self.release(reason)

    def attach(self, member: Pausable) -> None:
        """Add a member; it is stopped at once while there is a hold."""
        self._members.append(member)
        if self._is_still:
            member.stop()

    def detach(self, member: Pausable) -> None:
        """Remove a member; unknown ones are ignored."""
        if member in self._members:
            self._members.remove(member)

    def _settle(self) -> None:
        try:
            loop = asyncio.get_running_loop() if self._settle_s > 0 else None
        except RuntimeError:
            loop = None  # before the program runs there is no burst to wait for
        if loop is None:
            self._go()
        else:
            self._settling = loop.call_later(self._settle_s, self._go)

    def _go(self) -> None:
        self._settling = None
        self._is_still = False
        for member in self._members:
            member.go()


if sys.platform != "win32":

    class ProcessGroup:
        """All processes of a group, stopped by signal. Detach it before its leader is waited for: process ids are reused."""

        def __init__(self, leader: int) -> None:
            self._leader = leader

        def stop(self) -> None:
            """SIGSTOP; nothing in the group can put it off."""
            self._send(signal.SIGSTOP)

        def go(self) -> None:
            """SIGCONT."""
            self._send(signal.SIGCONT)

        def kill(self) -> None:
            """SIGKILL, which also ends a group that stands still."""
            self._send(signal.SIGKILL)

        def _send(self, number: signal.Signals) -> None:
            # A group that has gone, or of which only an unburied leader is left (macOS: not permitted), needs no signal.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._leader, number)


class FlagFile:
    """For systems without such signals (Windows): a process that looks at a file between two pieces of work."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def stop(self) -> None:
        """The file is there: stand still."""
        self._path.touch()

    def go(self) -> None:
        """The file is gone: go on."""
        self._path.unlink(missing_ok=True)

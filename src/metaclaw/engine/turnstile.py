"""The turnstile: whoever works beside serving stands still while anybody holds it.

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


class Walker(Protocol):
    """What can be made to stand still, at once and from outside."""

    def stop(self) -> None: ...
    def go(self) -> None: ...


class Turnstile:
    """Counted holds, each with its reason. The first stops every walker before it returns, the last release lets them go.

    `settle_s` is how long everybody stands on after the last release, so that a burst of requests is one stop and not many.
    """

    def __init__(self, *, settle_s: float = 0.0) -> None:
        self._settle_s = settle_s
        self._holds: dict[str, int] = {}
        self._walkers: list[Walker] = []
        self._is_still = False
        self._settling: asyncio.TimerHandle | None = None

    @property
    def is_still(self) -> bool:
        """Whether walkers stand still now."""
        return self._is_still

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why they stand still; empty while they go, and while they settle."""
        return tuple(self._holds)

    def hold(self, reason: str) -> None:
        """Everybody stands still when this returns, until the matching `release`."""
        self._holds[reason] = self._holds.get(reason, 0) + 1
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        if not self._is_still:
            self._is_still = True
            for walker in self._walkers:
                walker.stop()

    def release(self, reason: str) -> None:
        """Take one hold back. Raises ValueError if there is none for this reason."""
        count = self._holds.get(reason)
        if count is None:
            raise ValueError(f"nobody holds the turnstile for {reason!r}")
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

    def attach(self, walker: Walker) -> None:
        """From now on this one stands and goes with the others; at once, if the turnstile is held."""
        self._walkers.append(walker)
        if self._is_still:
            walker.stop()

    def detach(self, walker: Walker) -> None:
        """Forget a walker; one that is not attached is no error."""
        if walker in self._walkers:
            self._walkers.remove(walker)

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
        for walker in self._walkers:
            walker.go()


if sys.platform != "win32":

    class ProcessGroup:
        """A walker: all processes of a group, by signal. Let go of it before its leader is waited for: numbers are given again."""

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
    """A walker where there are no such signals (Windows): one who agreed to look at a file between two pieces of work."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def stop(self) -> None:
        """The file is there: stand still."""
        self._path.touch()

    def go(self) -> None:
        """The file is gone: go on."""
        self._path.unlink(missing_ok=True)

"""Keyboard and mouse input as a signal, from sources that report it or must be polled; and
terminals, a source on every system.

The signal keeps the last report of its source. A source that ends or fails is restarted after
growing pauses, in which the reading is unknown."""

import asyncio
import ctypes
import logging
import os
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

import anyio

from metaclaw.clock import utc_now
from metaclaw.errors import MetaClawError
from metaclaw.schedule.clock import Clock
from metaclaw.schedule.forecast import Patience
from metaclaw.schedule.presence import Presence, Reading, ago

log = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 300.0
# Poll intervals: short while a window is open, long while the last input is too recent for one to
# open. Interval plus answer time stay below a second.
ASK_OPEN_S: Final = 0.3
ASK_SHUT_S: Final = 0.5
ASK_FRESH_S: Final = 5.0
ANSWER_WITHIN_S: Final = 0.45


class SignalError(MetaClawError):
    """A signal cannot be read; its reading is unknown until the owner solves the problem."""


class InputReport(Protocol):
    """The receiver of a source's reports. Used on the event loop."""

    def input(self) -> None:
        """Report a key or the mouse, just now."""

    def idle(self, seconds: float) -> None:
        """Report that the last input was `seconds` ago."""

    def lock(self, is_locked: bool) -> None:
        """Report that the screen was locked or unlocked."""

    def ask_again_s(self) -> float:
        """The poll interval of a source that must be polled."""


class InputSource(Protocol):
    """A source of input events. `follow` reports until it is cancelled; raises SignalError if it
    cannot.

    With a source that misses some input (`hears_all` is false), the user is away only while it
    reports idle. A screen's source hears the keyboard and mouse of a desktop."""

    @property
    def name(self) -> str: ...
    @property
    def hears_all(self) -> bool: ...
    @property
    def is_screen(self) -> bool: ...
    async def follow(self, report: InputReport) -> None: ...


@dataclass(eq=False)
class Inactivity:
    """The signal of one input source. `hear` is called on input, with the seconds since then;
    `is_open`: a window is open; `is_blind`: there is a screen and its input is not heard, so that
    silent terminals mean nothing."""

    source: InputSource
    _: KW_ONLY
    clock: Clock
    patience: Callable[[], Patience]
    hear: Callable[[float], None]
    is_open: Callable[[], bool] = lambda: True
    is_blind: Callable[[], bool] = lambda: False
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep

    def __post_init__(self) -> None:
        self._last: float | None = None
        self._is_locked, self._is_idle = False, False
        self._trouble = "not asked yet"

    @property
    def name(self) -> str:
        """The name shown to people."""
        return self.source.name

    @property
    def knows(self) -> bool:
        """Whether it currently has information."""
        return (
            self._is_locked or self._is_idle or (self._last is not None and self.source.hears_all)
        )

    def input(self) -> None:
        self._is_idle = False
        self._note(self.clock.monotonic(), 0.0)

    def idle(self, seconds: float) -> None:
        self._is_idle = True
        ago_s = max(0.0, seconds)
        self._note(self.clock.monotonic() - ago_s, ago_s)

    def lock(self, is_locked: bool) -> None:
        """Record that the screen was locked or unlocked; unlocking counts as input."""
        if self._is_locked and not is_locked:
            self.input()
        self._is_locked, self._trouble = is_locked, "neither idle nor locked"

    def ask_again_s(self) -> float:
        """The poll interval: short once a window may open or is open."""
        if self.is_open():
            return ASK_OPEN_S
        if self._last is None:
            return ASK_SHUT_S
        silence_s = max(0.0, self.clock.monotonic() - self._last)
        return min(ASK_FRESH_S, max(ASK_SHUT_S, self.patience().present_s - silence_s - 1.0))

    def jumped(self) -> None:
        """Restart after a sleep of the machine or a clock change."""
        if self._last is not None:
            self._last = self.clock.monotonic()

    def read(self, now: datetime) -> Reading:
        """How long ago the last input was."""
        if self._last is None and not self._is_locked:
            return Reading(Presence.UNKNOWN, self._trouble)
        silence_s = max(0.0, self.clock.monotonic() - (self._last or 0.0))
        patience, present_s = self.patience(), self.patience().present_s
        if self._last is not None and silence_s < present_s:
            return Reading(
                Presence.PRESENT,
                f"input {ago(silence_s)}",
                now + timedelta(seconds=present_s - silence_s),
            )
        if self._is_locked:
            return Reading(Presence.AWAY, "the screen is locked")
        if self.source.hears_all and self.is_blind():
            return Reading(
                Presence.UNKNOWN,
                f"last input {ago(silence_s)}; this desktop does not report keyboard and mouse",
            )
        if silence_s < patience.away_s or not self.knows:
            wait = timedelta(seconds=max(0.0, patience.away_s - silence_s))
            return Reading(Presence.UNKNOWN, f"last input {ago(silence_s)}", now + wait)
        return Reading(Presence.AWAY, f"no input for {ago(silence_s).removesuffix(' ago')}")

    def _note(self, when: float, ago_s: float) -> None:
        last = self._last
        if last is None or when > last:
            self._last = when
        if last is None or when > last + 0.5:
            self.hear(ago_s)

    async def follow(self) -> None:
        """Follow the source; restart it when it fails."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                await self.source.follow(self)
                self._trouble = "it has ended"
            except SignalError as error:
                self._trouble = str(error)
                log.debug(
                    "source_failed source=%s reason=%s again_in_s=%g", self.name, error, pause_s
                )
            pause_s = (
                _FIRST_PAUSE_S if self._last is not None else min(pause_s * 2, _LONGEST_PAUSE_S)
            )
            self._last, self._is_locked, self._is_idle = None, False, False
            await self.sleep(pause_s)


Ask = Callable[[], Awaitable[float]]
Sleep = Callable[[float], Awaitable[None]]


async def poll_input(
    ask: Ask,
    report: InputReport,
    *,
    sleep: Sleep = anyio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Report the seconds since the last input that `ask` returns, for ever. Raises SignalError if
    it is slow.
    """
    while True:
        polled_at = clock()
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                report.idle(await ask())
        except TimeoutError as error:
            raise SignalError(
                f"the query for the last input was not answered within {ANSWER_WITHIN_S:g} s"
            ) from error
        await sleep(max(0.0, report.ask_again_s() - (clock() - polled_at)))


_TTY_LOOK_EVERY_S: Final = 10.0
_IN_ACCESS: Final = 0x1
_TERMINALS: Final = ("pts/*", "tty[0-9]*")


class TtyInput:
    """All terminals of this user: when each was last read from, as `w` shows it.

    The kernel reports a read at once (inotify), but updates its time only every eight seconds, so
    the report counts."""

    name = "input (terminals)"
    hears_all = True
    is_screen = False

    def __init__(self, devices: Path = Path("/dev")) -> None:
        self._devices = devices

    async def follow(self, report: InputReport) -> None:
        """Report reads as they happen. Raises SignalError if there is no terminal."""
        notices = _Notices()
        try:
            while True:
                found = self._mine()
                if not found:
                    raise SignalError("no user is logged in on a terminal")
                notices.watch(found)
                report.idle(min(utc_now().timestamp() - last for last in found.values()))
                if await notices.wait(_TTY_LOOK_EVERY_S):
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
                if (
                    stat.st_uid == os.getuid()
                    and path.name != "ptmx"
                    and not _is_console(path, stat.st_uid)
                ):
                    found[path] = stat.st_atime
        return found


class _Notices:
    """inotify events of reads from some files; without inotify, the files are polled."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._handle = (
            self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if hasattr(self._libc, "inotify_init1")
            else -1
        )
        self._watched: set[Path] = set()

    def watch(self, paths: dict[Path, float]) -> None:
        """Watch these files; the kernel drops removed ones."""
        if self._handle >= 0:
            for path in paths.keys() - self._watched:
                self._libc.inotify_add_watch(self._handle, os.fsencode(path), _IN_ACCESS)
            self._watched = set(paths)

    async def wait(self, within_s: float) -> bool:
        """Wait at most `within_s` for a read; return whether there was one."""
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
        """Read the pending events; return whether one of them is a read (a closed terminal also
        gives an event).
        """
        try:
            content = os.read(self._handle, 65_536)
        except BlockingIOError:
            return False
        return any(mask & _IN_ACCESS for _, mask, _, _ in struct.iter_unpack("iIII", content))


def _is_console(path: Path, owner: int) -> bool:
    """Whether it is a virtual console without a login, which belongs to root."""
    return owner == 0 and path.parent.name != "pts"

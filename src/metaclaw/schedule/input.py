"""Keyboard and mouse input as a signal, from sources that report it or must be polled; and terminals, a source on every system.

The signal keeps the last report of its source. A source that ends or fails is restarted after growing pauses, in which the reading
is unknown.
"""

import asyncio
import ctypes
import logging
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

import anyio

from metaclaw.errors import MetaClawError
from metaclaw.schedule.clock import Clock
from metaclaw.schedule.forecast import Patience
from metaclaw.schedule.presence import Presence, Reading, ago

log = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 300.0
# Poll intervals: short while a window is open, long while the last input is too recent for one to open. Interval plus answer time
# stay below a second.
ASK_OPEN_S: Final = 0.3
ASK_SHUT_S: Final = 0.5
ASK_FRESH_S: Final = 5.0
ANSWER_WITHIN_S: Final = 0.45


class SignalError(MetaClawError):
    """A signal cannot be read; its reading is unknown until the owner solves the problem."""


class NotOfferedError(SignalError):
    """The desktop does not offer this source."""


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
    """A source of input events. `follow` reports until it is cancelled; raises SignalError if it cannot.

    With a source that misses some input (`hears_all` is false), the user is away only while it reports idle. If a source reports
    input only after a longer silence (`tells_after_s`), the user counts as present until then, because it could not shut a window.
    """

    @property
    def name(self) -> str: ...
    @property
    def hears_all(self) -> bool: ...
    @property
    def tells_after_s(self) -> float: ...
    async def follow(self, report: InputReport) -> None: ...


@dataclass(eq=False)
class Inactivity:
    """The signal of one input source. `hear` is called on input, with the seconds since then; `is_open`: a window is open."""

    source: InputSource
    _: KW_ONLY
    clock: Clock
    patience: Callable[[], Patience]
    hear: Callable[[float], None]
    is_open: Callable[[], bool] = lambda: True
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
        return self._is_locked or self._is_idle or (self._last is not None and self.source.hears_all)

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
        return min(ASK_FRESH_S, max(ASK_SHUT_S, self._present_s() - silence_s - 1.0))

    def jumped(self) -> None:
        """Restart after a sleep of the machine or a clock change."""
        if self._last is not None:
            self._last = self.clock.monotonic()

    def read(self, now: datetime) -> Reading:
        """How long ago the last input was."""
        if self._last is None and not self._is_locked:
            return Reading(Presence.UNKNOWN, self._trouble)
        silence_s = max(0.0, self.clock.monotonic() - (self._last or 0.0))
        patience, present_s = self.patience(), self._present_s()
        if self._last is not None and silence_s < present_s:
            return Reading(Presence.PRESENT, f"input {ago(silence_s)}", now + timedelta(seconds=present_s - silence_s))
        if self._is_locked:
            return Reading(Presence.AWAY, "the screen is locked")
        if silence_s < patience.away_s or not self.knows:
            wait = timedelta(seconds=max(0.0, patience.away_s - silence_s))
            return Reading(Presence.UNKNOWN, f"last input {ago(silence_s)}", now + wait)
        return Reading(Presence.AWAY, f"no input for {ago(silence_s).removesuffix(' ago')}")

    def _present_s(self) -> float:
        return max(self.patience().present_s, self.source.tells_after_s)

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
                log.debug("source_failed source=%s reason=%s again_in_s=%g", self.name, error, pause_s)
            pause_s = _FIRST_PAUSE_S if self._last is not None else min(pause_s * 2, _LONGEST_PAUSE_S)
            self._last, self._is_locked, self._is_idle = None, False, False
            await self.sleep(pause_s)


Ask = Callable[[], Awaitable[float | None]]
Sleep = Callable[[float], Awaitable[None]]


class InputWakeup(Protocol):
    """Notifies that there may have been input; the source is then polled at once. False alarms are harmless."""

    @property
    def is_heard(self) -> bool:
        """Whether notifications arrive."""

    async def begin(self) -> None:
        """Start listening. Raises SignalError if it is not available."""

    async def fires(self, within_s: float) -> bool:
        """Arm it and wait at most `within_s`; return whether it fired. It stays armed until it fires."""

    def disarm(self) -> None:
        """Ignore notifications until it is armed again."""

    def end(self) -> None:
        """Stop listening."""


async def has_fired(fired: asyncio.Event, within_s: float) -> bool:
    """Wait at most `within_s`; return whether the event was set."""
    try:
        async with asyncio.timeout(within_s):
            await fired.wait()
    except TimeoutError:
        return False
    return True


async def poll_input(
    ask: Ask,
    report: InputReport,
    *,
    wakeup: InputWakeup | None = None,
    sleep: Sleep = anyio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Report the seconds since the last input that `ask` returns (None: unknown), for ever. Raises SignalError if it is slow."""
    was_fired = False
    while True:
        polled_at = clock()
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                idle_s = await ask()
        except TimeoutError as error:
            raise SignalError(f"the query for the last input was not answered within {ANSWER_WITHIN_S:g} s") from error
        if idle_s is not None:
            report.idle(idle_s)
        again_s = report.ask_again_s()
        rest_s = max(0.0, again_s - (clock() - polled_at))
        # One notification, one poll: after a false alarm, wait for the next regular poll.
        if wakeup is not None and not was_fired and again_s <= ASK_SHUT_S:
            was_fired = await wakeup.fires(rest_s)
            continue
        if wakeup is not None:
            wakeup.disarm()
        was_fired = False
        await sleep(rest_s)


class PolledSource:
    """A source that is polled, and polled at once when its wakeup fires. If the wakeup is not available, its name says that it is
    only polled. `reports_after_s` is the silence after which the wakeup reports the next input."""

    hears_all = True

    def __init__(
        self, system: str, ask: Ask, wakeup: InputWakeup, *, reports_after_s: float = 0.0, sleep: Sleep = anyio.sleep
    ) -> None:
        self._system = system
        self._reports_after_s = reports_after_s
        self._ask = ask
        self._wakeup = wakeup
        self._sleep = sleep

    @property
    def name(self) -> str:
        """The name shown to people."""
        return f"input ({self._system}{'' if self._wakeup.is_heard else ', asked'})"

    @property
    def tells_after_s(self) -> float:
        """0 without a wakeup."""
        return self._reports_after_s if self._wakeup.is_heard else 0.0

    async def follow(self, report: InputReport) -> None:
        """Poll for ever. Raises SignalError without an answer."""
        try:
            wakeup = await self._begun()
            await poll_input(self._ask, report, wakeup=wakeup, sleep=self._sleep)
        finally:
            self._wakeup.end()

    async def _begun(self) -> InputWakeup | None:
        try:
            await self._wakeup.begin()
        except SignalError as error:
            log.info("input_only_asked system=%s reason=%s", self._system, error)
            return None
        return self._wakeup


class FallbackSource:
    """A source that reports input, or, if the desktop does not offer it, a polled source."""

    hears_all = True

    def __init__(self, reporting: InputSource, polled: InputSource) -> None:
        self._reporting, self._polled = reporting, polled
        self._used = reporting

    @property
    def name(self) -> str:
        """The name of the source in use."""
        return self._used.name

    @property
    def tells_after_s(self) -> float:
        """The value of the source in use."""
        return self._used.tells_after_s

    async def follow(self, report: InputReport) -> None:
        """Follow the first source, or else the second. Raises SignalError if neither works."""
        self._used = self._reporting
        try:
            await self._reporting.follow(report)
        except NotOfferedError as missing:
            self._used = self._polled
            try:
                await self._polled.follow(report)
            except SignalError as error:
                raise SignalError(f"{missing}; {error}") from error


_TTY_LOOK_EVERY_S: Final = 10.0
_IN_ACCESS: Final = 0x1
_TERMINALS: Final = ("pts/*", "tty[0-9]*")


class TtyInput:
    """All terminals of this user: when each was last read from, as `w` shows it.

    The kernel reports a read at once (inotify), but updates its time only every eight seconds, so the report counts.
    """

    name = "input (terminals)"
    hears_all = True
    tells_after_s = 0.0

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
                report.idle(min(time.time() - last for last in found.values()))
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
        """Read the pending events; return whether one of them is a read (a closed terminal also gives an event)."""
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

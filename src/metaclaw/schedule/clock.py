"""Clocks and time zones: wall time, monotonic time, jumps of the wall clock, and the machine's
current zone.
"""

import os
import time
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Final, Protocol
from zoneinfo import ZoneInfo

from metaclaw.clock import local_now, utc_now

JUMP_S: Final = 5.0


class Clock(Protocol):
    """A source of time. `now` is in UTC and may jump; `monotonic` never goes back, and may stop
    while the machine sleeps.
    """

    def now(self) -> datetime: ...
    def monotonic(self) -> float: ...


class SystemClock:
    """This machine's clocks."""

    def now(self) -> datetime:
        """The current time in UTC."""
        return utc_now()

    # The function itself, without a wrapper, because it is called on every request.
    monotonic = staticmethod(time.monotonic)


class ClockJumps:
    """Detects when the wall clock jumps against the monotonic one: the machine slept, or the clock
    was set.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen = clock.now(), clock.monotonic()

    def look(self) -> timedelta | None:
        """The jump of the wall clock since the last call, or None."""
        wall, steady = self._seen
        self._seen = self._clock.now(), self._clock.monotonic()
        apart = self._seen[0] - wall - timedelta(seconds=self._seen[1] - steady)
        return apart if abs(apart.total_seconds()) >= JUMP_S else None


Zone = Callable[[], tzinfo]
_LOCALTIME: Final = Path("/etc/localtime")


def fixed(name: str) -> Zone:
    """A constant zone."""
    zone = ZoneInfo(name)
    return lambda: zone


class LocalZone:
    """The machine's zone, read again when the system's setting changes, because a laptop
    travels.
    """

    def __init__(self, localtime: Path = _LOCALTIME) -> None:
        self._localtime = localtime
        self._seen: object = None
        self._zone: tzinfo | None = None

    def __call__(self) -> tzinfo:
        """The zone as it is set now."""
        mark = os.environ.get("TZ"), self._mark()
        if self._zone is None or mark != self._seen:
            self._zone, self._seen = self._read(mark[0]), mark
        return self._zone

    def _mark(self) -> object:
        try:
            stat = self._localtime.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns

    def _read(self, named: str | None) -> tzinfo:
        if named:
            try:
                return ZoneInfo(named.removeprefix(":"))
            except (ValueError, OSError, KeyError):  # POSIX rules such as "CET-1CEST" are not names
                return _offset()
        try:
            with self._localtime.open("rb") as file:
                return ZoneInfo.from_file(file)
        except (ValueError, OSError):
            return _offset()


def _offset() -> tzinfo:
    """The C library's current offset, without rules for summer time."""
    zone = local_now().tzinfo
    assert zone is not None
    return zone

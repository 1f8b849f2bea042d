"""The time zone this machine is in, now: a laptop travels, and its zone is set anew while the program runs."""

import os
from collections.abc import Callable
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

Zone = Callable[[], tzinfo]
_LOCALTIME: Final = Path("/etc/localtime")


def fixed(name: str) -> Zone:
    """Always the zone of this name."""
    zone = ZoneInfo(name)
    return lambda: zone


class LocalZone:
    """The machine's zone with its rules for summer time, read again whenever the system's setting changes."""

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
            except (ValueError, OSError, KeyError):  # "CET-1CEST" and other things that are no name
                return _offset()
        try:
            with self._localtime.open("rb") as file:
                return ZoneInfo.from_file(file)
        except (ValueError, OSError):
            return _offset()


def _offset() -> tzinfo:
    """What the C library thinks, without rules for summer time; read again with every change of the setting only."""
    zone = datetime.now().astimezone().tzinfo
    assert zone is not None
    return zone

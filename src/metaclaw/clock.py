"""The time of day. Every part of the program reads it here.

METACLAW_CLOCK, read at the first use, names a file with the seconds by which this clock is ahead of
the machine's, so that tests and simulations live through days. Waits use the monotonic clock, which
it does not move."""

import os
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path


def utc_now() -> datetime:
    """This moment, in UTC."""
    now, file = datetime.now(UTC), _file()
    return now if file is None else now + timedelta(seconds=_ahead_s(file))


def local_now() -> datetime:
    """This moment, in the machine's time zone."""
    return utc_now().astimezone()


def local_today() -> date:
    """Today's date where the machine is."""
    return date.today() if _file() is None else local_now().date()


@cache
def _file() -> str | None:
    return os.environ.get("METACLAW_CLOCK")


def _ahead_s(file: str) -> float:
    try:
        return float(Path(file).read_text() or 0)
    except (OSError, ValueError):
        return 0.0

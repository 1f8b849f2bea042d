"""The time of day. Every part of the program reads it here.

METACLAW_CLOCK names a file with the seconds by which this clock is ahead of the machine's, so that
tests and simulations live through days. Waits use the monotonic clock, which it does not move."""

import os
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

_FILE = "METACLAW_CLOCK"


def utc_now() -> datetime:
    """This moment, in UTC."""
    now = datetime.now(UTC)
    return now + timedelta(seconds=_ahead_s()) if _FILE in os.environ else now


def local_now() -> datetime:
    """This moment, in the machine's time zone."""
    return utc_now().astimezone()


def local_today() -> date:
    """Today's date where the machine is."""
    return local_now().date()


def _ahead_s() -> float:
    try:
        return float(Path(os.environ[_FILE]).read_text() or 0)
    except (OSError, ValueError):
        return 0.0

"""Python imports this at its start where this folder is on PYTHONPATH: the wall clock then runs as
far ahead as a file says.

The file named by FAKE_CLOCK holds seconds and is read at every look at the clock, so that a test
can move the clock of a running program. The monotonic clock is left alone, as it is when somebody
sets the time."""

import copyreg
import datetime
import os
import time
from pathlib import Path

_real_now, _real_time = datetime.datetime.now, time.time
_real = datetime.datetime


def _ahead_s() -> float:
    try:
        return float(Path(os.environ["FAKE_CLOCK"]).read_text() or 0)
    except (OSError, KeyError):
        return 0.0


def _restored(text: str) -> datetime.datetime:
    return _real.fromisoformat(text)


class _Kind(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _real)


class _Shifted(datetime.datetime, metaclass=_Kind):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
        return _real_now(tz) + datetime.timedelta(seconds=_ahead_s())


# Pickling looks a class up by its name, which now means the shifted one.
copyreg.pickle(_real, lambda value: (_restored, (value.isoformat(),)))
datetime.datetime = _Shifted  # type: ignore[misc]
time.time = lambda: _real_time() + _ahead_s()

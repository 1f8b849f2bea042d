"""Two clocks: what the wall shows, which people and calendars mean, and one that only goes forward, by which spans are measured."""

import time
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

JUMP_S: Final = 5.0


class Clock(Protocol):
    """Where time comes from. `now` is in UTC and may jump; `monotonic` never goes back and may stand still while the machine
    sleeps."""

    def now(self) -> datetime: ...
    def monotonic(self) -> float: ...


class SystemClock:
    """This machine's clocks."""

    def now(self) -> datetime:
        """What the wall shows."""
        return datetime.now(UTC)

    # Read on every request: the function itself, without a call around it.
    monotonic = staticmethod(time.monotonic)


class Jumps:
    """Notices when the two clocks part: the machine slept, or somebody set the clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen = clock.now(), clock.monotonic()

    def look(self) -> timedelta | None:
        """By how much the wall clock has jumped since the last look; None where it has not."""
        wall, steady = self._seen
        self._seen = self._clock.now(), self._clock.monotonic()
        apart = self._seen[0] - wall - timedelta(seconds=self._seen[1] - steady)
        return apart if abs(apart.total_seconds()) >= JUMP_S else None

"""Traffic: a main turn through the proxy means present, whatever the keyboard says; heartbeats and side turns do not.

Called from the request path, so it only notes the time and, for a main turn, tells whoever listens at once.
"""

import time
from collections.abc import Callable
from datetime import datetime, timedelta

from metaclaw.domain.turn import TurnKind
from metaclaw.schedule.reading import Presence, Reading


class Traffic:
    """A signal. Present for `present_for` after a main turn began, away once none came for `away_after`; in between nobody knows."""

    name = "traffic"

    def __init__(self, present_for: timedelta, away_after: timedelta, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._present_s = present_for.total_seconds()
        self._away_s = max(away_after.total_seconds(), self._present_s)
        self._clock = clock
        self._last = clock()
        self._hear: Callable[[], None] | None = None

    def on_main_turn(self, hear: Callable[[], None]) -> None:
        """Call this at once when a main turn begins. It must not block."""
        self._hear = hear

    def began(self, kind: TurnKind) -> None:
        """A request came in."""
        if kind is TurnKind.MAIN:
            self._last = self._clock()
            if self._hear is not None:
                self._hear()

    def read(self, now: datetime) -> Reading:
        """How long ago the last main turn was."""
        idle_s = max(0.0, self._clock() - self._last)
        if idle_s < self._present_s:
            until = now + timedelta(seconds=self._present_s - idle_s)
            return Reading(Presence.PRESENT, f"a main turn {_ago(idle_s)}", until)
        if idle_s < self._away_s:
            return Reading(Presence.UNKNOWN, f"last main turn {_ago(idle_s)}", now + timedelta(seconds=self._away_s - idle_s))
        return Reading(Presence.AWAY, f"no main turn for {round(idle_s / 60)} min")


def _ago(seconds: float) -> str:
    return f"{round(seconds)} s ago" if seconds < 120 else f"{round(seconds / 60)} min ago"

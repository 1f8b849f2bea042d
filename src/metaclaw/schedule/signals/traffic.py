"""Traffic: a main turn through the proxy means present, whatever the keyboard says; heartbeats and side turns do not.

Called from the request path, so it only notes the time and, for a main turn, tells whoever listens at once.
"""

import time
from collections.abc import Callable
from datetime import datetime, timedelta

from metaclaw.domain.turn import TurnKind
from metaclaw.schedule.habits import Patience
from metaclaw.schedule.reading import Presence, Reading


class Traffic:
    """A signal. Present while a main turn is answered and some time after, away after a longer silence; in between nobody knows.

    Where a keyboard can be watched, silence here says nothing: who does not chat may be at work all the same. `patience` and
    `is_alone` are given by whoever listens.
    """

    name = "traffic"

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._has_come = False
        self._answers = 0
        self._is_main_answered = False
        self._hear: Callable[[], None] | None = None
        self._patience: Callable[[], Patience] | None = None
        self._is_alone: Callable[[], bool] = lambda: True

    def on_main_turn(self, hear: Callable[[], None], patience: Callable[[], Patience], is_alone: Callable[[], bool]) -> None:
        """Call `hear` at once when a main turn begins, and when the last answer is out. It must not block."""
        self._hear, self._patience, self._is_alone = hear, patience, is_alone

    def began(self, kind: TurnKind) -> None:
        """A request came in."""
        self._answers += 1
        if kind is TurnKind.MAIN:
            self._is_main_answered = True
            self._active()

    def ended(self) -> None:
        """Its answer is out. Which kind of turn it was is not said, so that present ends with the last of all answers."""
        self._answers -= 1
        if self._answers == 0 and self._is_main_answered:
            self._is_main_answered = False
            self._active()

    def jumped(self) -> None:
        """The machine slept or its clock was set: count anew."""
        self._last = self._clock()

    def read(self, now: datetime) -> Reading:
        """How long ago the last main turn was."""
        if self._is_main_answered:
            return Reading(Presence.PRESENT, "a main turn is being answered")
        silence_s = max(0.0, self._clock() - self._last)
        last = f"last main turn {ago(silence_s)}" if self._has_come else "no main turn yet"
        if self._patience is None:
            return Reading(Presence.UNKNOWN, last)
        patience = self._patience()
        if self._has_come and silence_s < patience.present_s:
            return Reading(Presence.PRESENT, last, now + timedelta(seconds=patience.present_s - silence_s))
        if not self._is_alone():
            return Reading(Presence.UNKNOWN, f"{last}; the keyboard knows better")
        if silence_s < patience.away_s:
            return Reading(Presence.UNKNOWN, last, now + timedelta(seconds=patience.away_s - silence_s))
        return Reading(Presence.AWAY, f"no main turn for {ago(silence_s).removesuffix(' ago')}")

    def _active(self) -> None:
        self._last, self._has_come = self._clock(), True
        if self._hear is not None:
            self._hear()


def ago(seconds: float) -> str:
    """How long ago, for people."""
    return f"{round(seconds)} s ago" if seconds < 120 else f"{round(seconds / 60)} min ago"

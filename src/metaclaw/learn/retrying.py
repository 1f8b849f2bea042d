"""Asking the judge again about turns of which it could say nothing: later each time, and only so often, over restarts too."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from metaclaw.domain.ids import TurnId
from metaclaw.domain.verdict import Outcome, Verdict
from metaclaw.store import SqlVerdicts

MOST_TRIES: Final = 4
FIRST_PAUSE_S: Final = 60.0
_MOST_WAITING: Final = 1000
_LOOKED_AT: Final = 1000


@dataclass(frozen=True, slots=True)
class Due:
    """A turn to ask about again, and the how-manyeth time that is."""

    turn: TurnId
    tries: int
    at_s: float


class Retrying:
    """Who waits to be asked about again. What is asked how often is known from the verdicts themselves.

    `now` is a monotonic clock in seconds: a wall clock that is set back would keep them waiting.
    """

    def __init__(self, verdicts: SqlVerdicts, now: Callable[[], float]) -> None:
        self._verdicts = verdicts
        self._now = now
        self._waiting: deque[Due] = deque(maxlen=_MOST_WAITING)

    def later(self, turn: TurnId, tries: int) -> None:
        """Asked so many times in vain: once more, unless that was often enough."""
        if tries < MOST_TRIES:
            self._waiting.append(Due(turn, tries + 1, self._now() + FIRST_PAUSE_S * 2 ** (tries - 1)))

    def due(self) -> list[Due]:
        """Those whose time has come; they wait no longer."""
        now = self._now()
        found = [one for one in self._waiting if one.at_s <= now]
        if found:
            self._waiting = deque((one for one in self._waiting if one.at_s > now), maxlen=_MOST_WAITING)
        return found

    def recall(self) -> None:
        """After a start: find those that waited before, newest first. Blocks."""
        self._waiting.clear()
        for turn in reversed(self._verdicts.recent(Outcome.UNKNOWN, _LOOKED_AT)):
            tries = sum(map(has_no_vote, self._verdicts.verdicts_of(turn)))
            if tries:
                self.later(turn, tries)


def has_no_vote(verdict: Verdict) -> bool:
    """Whether a judge was asked and no vote of it could be read. One that says it cannot tell has voted, and gives a reason."""
    return verdict.votes is not None and verdict.votes.share_failed is None and not verdict.votes.reasons

"""When the judge is asked about a turn: its share of the turns, questions that wait for share or budget, and retries.

A question that waits has an unknown verdict that says why, so it outlives the process. The most useful are asked first: the turns
most likely to have failed, the newest among equals. A turn on which the judge gave no vote is asked about again, later each time.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from metaclaw.domain.ids import TurnId
from metaclaw.domain.verdict import Outcome, Source, Verdict
from metaclaw.outcome import fuse
from metaclaw.store import SqlVerdicts

BUDGET_USED: Final = "waits for the learning budget"
SHARE_USED: Final = "the judge's share is used up"
MOST_TRIES: Final = 4
FIRST_PAUSE_S: Final = 60.0
_IN_HAND: Final = 20.0
_MOST_PUT_OFF: Final = 1000
_MOST_RETRIES: Final = 1000
_LOOKED_AT: Final = 1000


class Allowance:
    """Every turn adds a share of a question, up to a few; every question takes one."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._most = _IN_HAND if share > 0 else 0.0
        self._left = self._most
        self.turns = 0
        self.questions = 0

    def earn(self) -> None:
        """A main turn was made."""
        self.turns += 1
        self._left = min(self._left + self._share, self._most)

    def take(self, *, is_needed: bool = False) -> bool:
        """Whether one more question may be asked; it is then counted. One that is needed may always be, unless none may."""
        if self._left < 1.0 and not (is_needed and self._most):
            return False
        self._left = max(0.0, self._left - 1.0)
        self.questions += 1
        return True

    def give_back(self) -> None:
        """A question that was taken is not asked after all."""
        self._left += 1.0
        self.questions -= 1


class PutOffQuestions:
    """Turns to ask about later; beyond a thousand the least useful are left unknown."""

    def __init__(self, verdicts: SqlVerdicts) -> None:
        self._verdicts = verdicts
        self._heap: list[tuple[float, int, TurnId, str]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def waiting_for_budget(self) -> int:
        """How many wait for the budget."""
        return sum(why == BUDGET_USED for *_, why in self._heap)

    def put(self, verdict: Verdict) -> None:
        """Ask about the turn of this unknown verdict later; its comment says why."""
        self._count += 1
        heapq.heappush(self._heap, (-fuse(verdict.signals), -self._count, verdict.turn, verdict.comment))
        if len(self._heap) > _MOST_PUT_OFF:
            self._heap.remove(max(self._heap))
            heapq.heapify(self._heap)

    def pop(self) -> TurnId:
        """The most useful one, which does not wait any longer."""
        return heapq.heappop(self._heap)[2]

    def recall(self) -> None:
        """Find the questions that were put off before the start. Blocks."""
        self._heap.clear()
        for turn in reversed(self._verdicts.recent(Outcome.UNKNOWN, _MOST_PUT_OFF)):
            verdict = self._verdicts.verdict_of(turn)
            if verdict is not None and verdict.source is Source.NOBODY and verdict.comment in (BUDGET_USED, SHARE_USED):
                self.put(verdict)


@dataclass(frozen=True, slots=True)
class Due:
    """A turn to ask about again, and the number of that try."""

    turn: TurnId
    tries: int
    at_s: float


class JudgeRetries:
    """Turns to ask the judge about again. The number of tries is read from the verdicts.

    `now` is a monotonic clock in seconds: a wall clock that is set back would keep them waiting.
    """

    def __init__(self, verdicts: SqlVerdicts, now: Callable[[], float]) -> None:
        self._verdicts = verdicts
        self._now = now
        self._waiting: deque[Due] = deque(maxlen=_MOST_RETRIES)

    def later(self, turn: TurnId, tries: int) -> None:
        """Asked so many times in vain: once more, unless that was often enough."""
        if tries < MOST_TRIES:
            self._waiting.append(Due(turn, tries + 1, self._now() + FIRST_PAUSE_S * 2 ** (tries - 1)))

    def due(self) -> list[Due]:
        """Those whose time has come; they wait no longer."""
        now = self._now()
        found = [one for one in self._waiting if one.at_s <= now]
        if found:
            self._waiting = deque((one for one in self._waiting if one.at_s > now), maxlen=_MOST_RETRIES)
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

"""Questions to the judge that are put off: the day's budget, or the judge's share of the turns, is used up.

Each such turn has an unknown verdict that says why, so the question outlives the process. The most useful are asked first: the
turns that are most likely to have failed, and the newest among equals.
"""

import heapq
from typing import Final

from metaclaw.domain.ids import TurnId
from metaclaw.domain.verdict import Outcome, Source, Verdict
from metaclaw.outcome import fuse
from metaclaw.store import SqlVerdicts

BUDGET_USED: Final = "waits for the learning budget"
SHARE_USED: Final = "the judge's share is used up"
_MOST: Final = 1000


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
        if len(self._heap) > _MOST:
            self._heap.remove(max(self._heap))
            heapq.heapify(self._heap)

    def pop(self) -> TurnId:
        """The most useful one, which does not wait any longer."""
        return heapq.heappop(self._heap)[2]

    def recall(self) -> None:
        """Find the questions that were put off before the start. Blocks."""
        self._heap.clear()
        for turn in reversed(self._verdicts.recent(Outcome.UNKNOWN, _MOST)):
            verdict = self._verdicts.verdict_of(turn)
            if verdict is not None and verdict.source is Source.NOBODY and verdict.comment in (BUDGET_USED, SHARE_USED):
                self.put(verdict)

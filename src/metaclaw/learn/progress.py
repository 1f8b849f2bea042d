"""How far a loop has come that does some of its work aside: everything before this point is done, also if it stops now."""

from collections import Counter
from typing import Final

TURNS_CURSOR: Final = "sensing"
"""The name of the cursor behind which every turn has been sensed."""
LISTEN_CURSOR: Final = "listening"
"""The name of the cursor behind which every message of a person has been read."""
ENDS_CURSOR: Final = "sensing session ends"
"""The name of the cursor behind which the end of every session has been looked at."""


class Progress:
    """A point that moves forward, held back by the oldest thing that is still under way."""

    def __init__(self, reached: int = 0) -> None:
        self._reached = reached
        self._under_way: Counter[int] = Counter()

    @property
    def reached(self) -> int:
        """Up to where everything has been taken up."""
        return self._reached

    @property
    def settled(self) -> int:
        """Up to where everything is done: a reader that begins behind this point misses nothing."""
        return min(self._reached, min(self._under_way, default=self._reached + 1) - 1)

    def reach(self, point: int) -> None:
        """Everything up to here has been taken up."""
        self._reached = max(self._reached, point)

    def begin(self, point: int) -> None:
        """Something of this point is under way; several things may be."""
        self._under_way[point] += 1

    def end(self, point: int) -> None:
        """It is done."""
        self._under_way[point] -= 1
        if self._under_way[point] <= 0:
            del self._under_way[point]

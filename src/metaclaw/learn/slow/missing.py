"""Versions that are to answer and could not be loaded: how often each was tried, and when to try it again.

Whoever cannot be reached comes back, however long it takes. Weights that somebody has looked at a few times and could not use are
lost. What anything else means nobody knows: it is tried on, but a trial cannot wait for it for ever.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from metaclaw.errors import BackendDownError, TrainingError, WeightsLostError

_MOST_LOOKS: Final = 3
_MOST_REFUSALS: Final = 10
"""By the pauses between them, about a quarter of an hour."""
_FIRST_PAUSE_S: Final = 2.0
_LONGEST_PAUSE_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class _Failure:
    """`looks` are the tries in which somebody saw that the weights are unusable, `refusals` those that failed for any reason but
    that nobody was there."""

    error: TrainingError
    tries: int
    looks: int
    refusals: int
    again_at: float


class Missing:
    """What is known of versions that are not there."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._failures: dict[int, _Failure] = {}

    def __contains__(self, version: int) -> bool:
        return version in self._failures

    def is_due(self, version: int) -> bool:
        """Whether it may be tried now."""
        failure = self._failures.get(version)
        return failure is None or failure.again_at <= self._now()

    def failed(self, version: int, error: TrainingError) -> bool:
        """It could not be loaded; whether that is news."""
        before = self._failures.get(version)
        tries, looks, refusals = (0, 0, 0) if before is None else (before.tries, before.looks, before.refusals)
        again_at = self._now() + min(_FIRST_PAUSE_S * 2**tries, _LONGEST_PAUSE_S)
        looks += isinstance(error, WeightsLostError)
        refusals += not isinstance(error, BackendDownError)
        self._failures[version] = _Failure(error, tries + 1, looks, refusals, again_at)
        return before is None or type(before.error) is not type(error)

    def came(self, version: int) -> None:
        """It is there, or nobody wants it any more."""
        self._failures.pop(version, None)

    def is_waited_for(self, version: int) -> bool:
        """Whether it is not there because nobody could be reached."""
        failure = self._failures.get(version)
        return failure is not None and isinstance(failure.error, BackendDownError)

    def is_lost(self, version: int, *, on_trial: bool) -> bool:
        """Whether there is no hope for it, or, of one on trial, not enough to wait for."""
        failure = self._failures.get(version)
        return failure is not None and (failure.looks >= _MOST_LOOKS or (on_trial and failure.refusals >= _MOST_REFUSALS))

    def why(self, version: int) -> str:
        """What went wrong when it was tried last."""
        return str(self._failures[version].error)

    def told(self, version: int) -> str:
        """The same for people, and when it is tried again."""
        pause_s = max(0.0, self._failures[version].again_at - self._now())
        return f"{self.why(version)}; tried again in {pause_s:.0f} s"

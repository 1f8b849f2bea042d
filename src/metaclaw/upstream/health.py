"""How the providers are: who failed last, why, how often in a row, and who is left alone for a while because of it."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProviderFailure:
    """The last failure of a provider. `in_a_row` is 0 once it has answered again; `is_unreachable` if no connection was made."""

    reason: str
    at: datetime
    in_a_row: int
    is_unreachable: bool = False


class ProviderHealth:
    """Keeps the last failure of each provider. One that cannot be reached rests for `rest_s`, so that a dead provider costs one
    connect timeout now and then, not on every request."""

    def __init__(self, rest_s: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._rest_s = rest_s
        self._clock = clock
        self._rests_until: dict[str, float] = {}
        self._failures: dict[str, ProviderFailure] = {}

    @property
    def has_resting(self) -> bool:
        """Whether any provider rests, or has just rested."""
        return bool(self._rests_until)

    def admits(self, name: str) -> bool:
        """Whether to try it. After its rest one caller is let through to probe, and the rest begins anew for all others."""
        until = self._rests_until.get(name)
        if until is None:
            return True
        now = self._clock()
        if now < until:
            return False
        self._rests_until[name] = now + self._rest_s
        return True

    def failed(self, name: str, reason: str, *, rests: bool = False) -> None:
        """It gave no answer; it `rests` if it could not even be reached."""
        before = self._failures.get(name)
        in_a_row = 1 if before is None else before.in_a_row + 1
        self._failures[name] = ProviderFailure(reason, datetime.now(UTC), in_a_row, rests)
        log.log(logging.WARNING if in_a_row == 1 else logging.INFO, "provider_failed name=%s reason=%s", name, reason)
        if rests:
            self._rests_until[name] = self._clock() + self._rest_s

    def reached(self, name: str) -> None:
        """It was reached."""
        if self._rests_until:
            self._rests_until.pop(name, None)

    def answered(self, name: str) -> None:
        """It gave an answer."""
        failure = self._failures.get(name)
        if failure is not None and failure.in_a_row:
            self._failures[name] = ProviderFailure(failure.reason, failure.at, 0, failure.is_unreachable)
            log.info("provider_recovered name=%s failures=%d", name, failure.in_a_row)

    def last_failure(self, name: str) -> ProviderFailure | None:
        """Its last failure, if it ever failed."""
        return self._failures.get(name)

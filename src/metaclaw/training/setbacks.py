"""What keeps training from going on: failures, what is waited for, and windows that never open."""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from anyio.to_thread import run_sync

from metaclaw.domain.policy import PolicyVersion
from metaclaw.domain.status import LoopState
from metaclaw.domain.training import Window
from metaclaw.errors import (
    BackendDownError,
    MissingPackageError,
    TrainerMemoryError,
    TrainingBudgetError,
    TrainingError,
)
from metaclaw.learn import LoopWakeup
from metaclaw.ports import Windows
from metaclaw.store import TrainingBatch
from metaclaw.training.journal import DriftError, StaleError
from metaclaw.training.trainer import BatchTrainer

log = logging.getLogger(__name__)

_MOST_TRIES: Final = 5
_STARVES_AFTER_S: Final = 86_400.0
_WAITS_FOR: Final[Mapping[type[TrainingError], LoopState]] = {
    BackendDownError: LoopState.DOWN,
    MissingPackageError: LoopState.MISSING,
    TrainingBudgetError: LoopState.UNPAID,
    TrainerMemoryError: LoopState.MEMORY,
}


@dataclass(eq=False, kw_only=True)
class Setbacks:
    """Decides what becomes of a batch or a candidate that failed. `tell` publishes what a person
    should know; `retry_s` is how long it waits before the next try.
    """

    trainer: BatchTrainer
    tell: Callable[[str], Awaitable[object]]
    retry_s: float

    def __post_init__(self) -> None:
        self.status = self.trainer.status
        self._tries = 0
        self._told: str | None = None
        self.wakeup = LoopWakeup()

    def clear(self) -> None:
        """All went well."""
        self._tries, self.status.trouble, self._told = 0, None, None

    async def met(
        self, batch: TrainingBatch | None, candidate: PolicyVersion | None, error: TrainingError
    ) -> None:
        """What cannot succeed is dropped, and its turns may train again; what may is tried again, a
        few times. What fails for want of a service, a package, memory or budget waits. A candidate
        that cannot be tested is rejected."""
        states = (state for kind, state in _WAITS_FOR.items() if isinstance(error, kind))
        if (state := next(states, None)) is not None:
            await self._wait(batch, state, error)
            return
        self.status.trouble = None
        self._tries += 1
        is_hopeless = isinstance(error, StaleError | DriftError) or self._tries >= _MOST_TRIES
        number = None if batch is None else batch.number
        log.warning("training_failed batch=%s tries=%d reason=%s", number, self._tries, error)
        if not is_hopeless:
            await self.wakeup.wait(self.retry_s)
            return
        self._tries = 0
        if candidate is not None:
            reason = f"could not be tested: {error}"
            await run_sync(self.trainer.policies.reject, candidate.number, None, reason)
        elif batch is not None:
            await self.trainer.give_up(batch, str(error))

    async def _wait(
        self, batch: TrainingBatch | None, state: LoopState, error: TrainingError
    ) -> None:
        """Say what is waited for, and wait a while. A run that waits for the budget is closed: what
        it has is on disk, and it holds no memory."""
        reason = f"waits: {error}; retrying in {self.retry_s:.0f} s"
        if state is LoopState.UNPAID:
            reason = await self.trainer.judging.reason()
            try:
                await self.trainer.backend.close(discard=False)
            except TrainingError as again:
                log.warning("run_not_closed reason=%s", again)
        if reason != self._told:
            self._told = reason
            number = None if batch is None else batch.number
            log.warning("training_waits batch=%s reason=%s", number, reason)
            await self.tell(f"training {reason}")
        self.status.state, self.status.trouble = state, reason
        await self.wakeup.wait(self.retry_s)


_NEEDS_A_WINDOW: Final = frozenset({LoopState.SHUT, LoopState.TRAINING, LoopState.PROVING})


@dataclass(eq=False)
class Starvation:
    """Remembers when a window was open last."""

    windows: Windows
    now: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._last_open = self.now()
        self.windows.on_change(self._changed)

    def warning(self, state: LoopState) -> str | None:
        """That training starves, why, and what to do; None while it does not."""
        shut_s = self.now() - self._last_open
        if (
            self.windows.window is not None
            or state not in _NEEDS_A_WINDOW
            or shut_s < _STARVES_AFTER_S
        ):
            return None
        return (
            f"training starves: it waits for a window for {shut_s / 3600:.0f} h"
            f" ({self.windows.shut_because}). On a CPU it runs only while you are away. Train now"
            " with metaclaw policy train, set sleep hours in [schedule], or use a GPU or a"
            " training service, which train while you work"
        )

    def _changed(self, window: Window | None) -> None:
        # Both when it opens and when it shuts: it was open until now.
        self._last_open = self.now()

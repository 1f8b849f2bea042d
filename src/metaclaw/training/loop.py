"""The slow loop: query turns become a batch, the batch becomes steps, the gate weighs what came of
them, and what passes serves.

    θ ← θ + α ∇ E[ R(π_θ(· | task, S)) ]      over turns made with the rules and skills in force (paper, equation 4)

One batch at a time, and it is finished or dropped before the next begins: what was interrupted goes
on, whatever interrupted it."""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import anyio
from anyio.to_thread import run_sync

from metaclaw.clock import utc_now
from metaclaw.domain.policy import GateReport, PolicyState, PolicyVersion
from metaclaw.domain.status import LoopState
from metaclaw.errors import TrainingError
from metaclaw.ports import Windows
from metaclaw.store import SqlBatches, SqlPolicies, TrainingBatch
from metaclaw.telemetry import Observer, TrainingSpan, tell
from metaclaw.training.absorption import AbsorptionTest
from metaclaw.training.serving_versions import Versions
from metaclaw.training.setbacks import Setbacks
from metaclaw.training.status import LoopStatus
from metaclaw.training.trainer import BatchTrainer
from metaclaw.training.training_turns import QueryTurns, TurnCount
from metaclaw.training.trial import CandidateTrial

log = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 30.0


@dataclass(eq=False, kw_only=True)
class SlowLoop:
    """Trains. A run needs `least` turns to begin by itself and takes at most `most` new ones;
    `draw_seed` gives each run its seed.
    """

    turns: QueryTurns
    batches: SqlBatches
    policies: SqlPolicies
    versions: Versions
    windows: Windows
    least: TurnCount
    most: int
    trainer: BatchTrainer
    trial: CandidateTrial
    absorption: AbsorptionTest
    setbacks: Setbacks
    status: LoopStatus
    draw_seed: Callable[[], int]
    observer: Observer | None = None

    def __post_init__(self) -> None:
        self._is_demanded = False
        self._in_hand: int | None = None
        self._let_go = anyio.Event()
        self.wakeup = self.setbacks.wakeup

    async def run(self) -> None:
        """Train whenever there is something to train on and a window to do it in."""
        while True:
            is_demanded, self._is_demanded = self._is_demanded, False
            if not await self.once(TurnCount(1) if is_demanded else self.least):
                await self.wakeup.wait(_LOOK_EVERY_S)

    async def once(self, least: TurnCount) -> bool:
        """One batch, or one candidate that waits for its trial, from where it stands to its end;
        False where there is none."""
        candidate = await run_sync(self.candidate)
        # Its successor inherits what the version that serves has absorbed: that comes first.
        has_looked = candidate is None and await self.absorption.once()
        batch = None if candidate is not None else await self._batch(least)
        if candidate is None and batch is None:
            self.status.state = LoopState.WAITING
            return has_looked
        self._in_hand, self._let_go = None if batch is None else batch.number, anyio.Event()
        began, fault = utc_now(), None
        try:
            if batch is not None:
                candidate = await self.trainer.train(batch)
            assert candidate is not None
            await self._serve(candidate, await self.trial.weigh(candidate))
            self.setbacks.clear()
        except TrainingError as error:
            fault = type(error).__name__
            await self.setbacks.met(batch, candidate, error)
        finally:
            if self.observer is not None and batch is not None:
                number = None if candidate is None else candidate.number
                done = TrainingSpan(batch.number, began, utc_now(), number, fault)
                tell(self.observer.training, done)
            self.status.clear()
            self._in_hand = None
            self._let_go.set()
        return True

    async def _batch(self, least: TurnCount) -> TrainingBatch | None:
        """The batch that was begun; else, in a window, a new one."""
        batch = await run_sync(self.batches.open_batch_now)
        if batch is not None:
            return batch
        if not await run_sync(self.turns.has_enough, least):
            return None
        is_shut = self.windows.window is None
        self.status.state = LoopState.SHUT if is_shut else LoopState.PREPARING
        await self.windows.until_open()
        number = await run_sync(self.turns.open_batch, least, self.most, self.draw_seed())
        return None if number is None else await run_sync(self.batches.batch, number)

    async def _serve(self, candidate: PolicyVersion, report: GateReport) -> None:
        """What passed is promoted, what did not is rejected."""
        reason = "; ".join(report.reasons)
        if not await self.trial.is_undecided(candidate):
            log.info("a_person_decided version=%d the_gate_says=%s", candidate.number, reason)
        elif report.is_passed:
            await self.versions.promote(candidate.number, reason, report)
        else:
            await run_sync(self.policies.reject, candidate.number, report, reason)
        await self.trial.forget(candidate)

    def candidate(self) -> PolicyVersion | None:
        """A version that was trained and not yet ruled on. Blocks."""
        newest = self.policies.versions(5)
        return next((one for one in newest if one.state is PolicyState.CANDIDATE), None)

    def has_unfinished_run(self) -> bool:
        """Whether a run has begun and is not over, or its version is not ruled on yet. Blocks."""
        return self.batches.open_batch_now() is not None or self.candidate() is not None

    def demand(self) -> None:
        """Do not wait for a whole batch: whatever may train now is to be trained on."""
        self._is_demanded = True
        if self.status.state is LoopState.WAITING:
            self.status.state = LoopState.PREPARING
        self.wakeup.notify()

    async def drop(self, batches: Collection[int], within_s: float) -> bool:
        """Stop training on these batches, which were dropped; whether that is done within this
        time.
        """
        self.trainer.drop(batches)
        if not self.trainer.is_dropped(self._in_hand):
            return True
        with anyio.move_on_after(within_s):
            await self._let_go.wait()
        return not self.trainer.is_dropped(self._in_hand)

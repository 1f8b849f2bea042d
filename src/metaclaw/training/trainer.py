"""One batch becomes a candidate: the run that trains it, its size, and its files."""

import logging
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from anyio.to_thread import run_sync

from metaclaw.domain.ids import SkillName
from metaclaw.domain.policy import BASE_POLICY, PolicyState, PolicyVersion, Weights
from metaclaw.domain.status import LoopState
from metaclaw.errors import TrainingError
from metaclaw.ports import RunPlan, TrainingBackend, Windows
from metaclaw.store import RefusedError, SqlBatches, SqlPolicies, TrainingBatch
from metaclaw.training.examples import Examples
from metaclaw.training.hosts.run_sampler import RolloutServer
from metaclaw.training.journal import Journal, StaleError, keep_curve
from metaclaw.training.recipe import JudgingBudget, Recipe, RunSize
from metaclaw.training.rewards import Rewards
from metaclaw.training.run import TrainingRun
from metaclaw.training.serving_versions import Versions
from metaclaw.training.status import LoopStatus
from metaclaw.training.training_turns import QueryTurns, TrainingTurn
from metaclaw.training.variations import Variations

log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class BatchTrainer:
    """Trains on batches. `base` names the untrained model, `folder` is where the pieces of runs
    lie, `broken_share` is the share of turns in which a rule was broken.
    `server`, if there is one, draws the rollouts of runs.
    """

    turns: QueryTurns
    batches: SqlBatches
    policies: SqlPolicies
    versions: Versions
    backend: TrainingBackend
    recipe: Recipe
    rewards: Rewards
    judging: JudgingBudget
    examples: Examples
    variations: Variations
    windows: Windows
    folder: Path
    base: str
    broken_share: Callable[[SkillName], float]
    status: LoopStatus
    server: RolloutServer | None = None

    def __post_init__(self) -> None:
        self._dropped: set[int] = set()

    def drop(self, batches: Collection[int]) -> None:
        """Stop training on these batches."""
        self._dropped |= set(batches)

    def is_dropped(self, batch: int | None) -> bool:
        """Whether a batch was dropped."""
        return batch in self._dropped

    async def train(self, batch: TrainingBatch) -> PolicyVersion:
        """The candidate that the batch teaches. Raises TrainingError."""
        turns = await run_sync(self.turns.of_batch, batch)
        run = await self._run(batch, turns)
        self.status.state, self.status.tally = LoopState.TRAINING, run.tally
        if not turns:
            raise StaleError(f"batch {batch.number}: none of its turns is left")
        weights = await run.complete(await run_sync(self._label))
        parent = await run_sync(self.policies.version, batch.policy_version)
        version = await run_sync(
            lambda: self.policies.publish(
                weights,
                parent=batch.policy_version,
                base=self.base,
                batch=batch.number,
                steps=run.tally.moved,
                note=run.drawn_by(),
                # It learned from prompts without them, and is proven on such.
                absorbed=() if parent is None else self.versions.absorbed_still(parent),
            )
        )
        await self.backend.close(discard=True)
        folder = self._run_folder(batch)
        await keep_curve(self.folder, folder)
        await run_sync(lambda: shutil.rmtree(folder, ignore_errors=True))
        log.info(
            "policy_trained version=%d batch=%d turns=%d", version.number, batch.number, len(turns)
        )
        return version

    async def give_up(self, batch: TrainingBatch, reason: str) -> None:
        """Drop a batch and the files of its run; its turns may train again."""
        try:
            await run_sync(self.batches.drop_batch, batch.number, reason)
        except RefusedError as again:  # it was dropped already
            log.info("batch_not_dropped batch=%d reason=%s", batch.number, again)
        try:
            await self.backend.close(discard=True)
        except TrainingError as again:
            log.warning("run_not_discarded batch=%d reason=%s", batch.number, again)
        await run_sync(lambda: shutil.rmtree(self._run_folder(batch), ignore_errors=True))

    async def _run(self, batch: TrainingBatch, turns: Sequence[TrainingTurn]) -> TrainingRun:
        start, folder = await self._start(batch), self._run_folder(batch)
        journal = Journal(folder / "drawn")
        size = await self._size(journal, turns)
        return TrainingRun(
            plan=RunPlan(f"batch-{batch.number}", start, self.recipe.rank, batch.seed, folder),
            turns=turns,
            recipe=self.recipe.resized(size),
            backend=self.backend,
            rewards=self.rewards,
            journal=journal,
            windows=self.windows,
            may_step=lambda: self._may_step(size),
            is_stale=lambda: self.is_dropped(batch.number) or self.turns.is_outdated(batch),
            find_demonstrations=self.examples.of,
            varied=await run_sync(self.variations.of, turns, batch.seed),
            broken_share=self.broken_share,
            server=self.server,
        )

    async def _size(self, journal: Journal, turns: Sequence[TrainingTurn]) -> RunSize:
        """The size of the run: what the learning budget carries; where a judge scores, the one it
        was begun with.
        """
        recipe, judging = self.recipe, self.judging
        size = await journal.find("size", RunSize)
        if size is None:
            size = await judging.size(turns, recipe)
            if size.tokens_a_step:
                await journal.keep("size", size)
        self.status.notice = await judging.reduction(size, recipe)
        if self.status.notice is not None:
            log.info(
                "run_made_smaller steps=%d prompts=%d tokens=%d reason=%s",
                size.steps,
                size.prompts,
                size.tokens,
                self.status.notice,
            )
        return size

    async def _may_step(self, size: RunSize) -> None:
        """Raise TrainingBudgetError where the judging of a whole step cannot be paid for."""
        await self.judging.require(size.tokens_a_step)
        self.status.trouble = None

    def _run_folder(self, batch: TrainingBatch) -> Path:
        return self.folder / "runs" / f"{batch.number:06d}"

    def _label(self) -> str:
        """The name of the folder of the version that comes next."""
        newest = self.policies.versions(1)
        return f"{(newest[0].number if newest else BASE_POLICY) + 1:06d}"

    async def _start(self, batch: TrainingBatch) -> Weights | None:
        """The weights a batch goes on from."""
        if batch.policy_version == BASE_POLICY:
            return None
        parent = await run_sync(self.policies.version, batch.policy_version)
        if parent is None or not parent.is_kept or parent.state is PolicyState.ROLLED_BACK:
            raise StaleError(
                f"batch {batch.number}: version {batch.policy_version}, from which it began, was"
                " given up"
            )
        return await self.versions.local(parent)

"""The slow loop: when a window is open and enough query turns are there, train on them, prove what
came of it, and serve it.

One batch at a time, and it is finished or dropped before the next begins: what was interrupted goes
on, whatever interrupted it."""

import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import anyio
from anyio.to_thread import run_sync

from metaclaw.domain.ids import SkillName
from metaclaw.domain.policy import BASE_POLICY, GateReport, PolicyState, PolicyVersion, Weights
from metaclaw.domain.skill import Skill, SkillKind
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
from metaclaw.ports import RunPlan, TrainingBackend, Windows
from metaclaw.store import RefusedError, SqlBatches, SqlPolicies, TrainingBatch
from metaclaw.training.absorption import AbsorbedSkills, AbsorptionTest
from metaclaw.training.derived_prompts import Examples, Variations
from metaclaw.training.habits import HabitTest
from metaclaw.training.hosts.run_sampler import RolloutServer
from metaclaw.training.journal import DriftError, Journal, StaleError, keep_curve
from metaclaw.training.progress import RunSize
from metaclaw.training.proof import Proof
from metaclaw.training.recipe import JudgingBudget, Recipe
from metaclaw.training.rewards import Rewards
from metaclaw.training.run import RunTally, TrainingRun
from metaclaw.training.serving_versions import Versions
from metaclaw.training.training_turns import Clocks, LeastTurns, QueryTurns, TrainingTurn

log = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 30.0
_MOST_TRIES: Final = 5
_HELD_OUT: Final = 200
_MORE_PROMPTS: Final = 8
_STARVES_AFTER_S: Final = 86_400.0


_SMALLER: Final = (0.8, 0.64)
"""The sizes in which a candidate that lost general abilities is tried again."""


@dataclass(frozen=True, slots=True)
class LoopThresholds:
    """A run begins with `batch_turns` turns and takes at most `batch_most`."""

    batch_turns: int
    batch_most: int = 1024

    @property
    def least(self) -> LeastTurns:
        """What a run needs to begin by itself: a quarter of its turns must be new."""
        return LeastTurns(self.batch_turns, max(1, self.batch_turns // 4))


@dataclass(frozen=True, slots=True)
class CandidateScale:
    """How much of its change a candidate has that was made smaller: kept in a file, so that a
    program that was killed goes on with the next size. Blocks."""

    path: Path

    def read(self) -> float:
        """The last size it was to be tried in; 1 where it was never made smaller."""
        try:
            return float(self.path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return 1.0

    def write(self, scale: float) -> None:
        """It is tried in this size from now on."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(f"{scale:g}", encoding="utf-8")

    def forget(self) -> None:
        """It was judged."""
        self.path.unlink(missing_ok=True)


@dataclass(eq=False, kw_only=True)
class SlowLoop:
    """Trains. `judge` names who scores where no check does, for the report; `tell` publishes what a
    person should know; `draw_seed` gives each run its seed; `folder` is where the pieces of runs
    lie. `server`, if there is one, draws the rollouts of runs.
    """

    turns: QueryTurns
    batches: SqlBatches
    policies: SqlPolicies
    versions: Versions
    backend: TrainingBackend
    recipe: Recipe
    rewards: Rewards
    judging: JudgingBudget
    proof: Proof
    absorption: AbsorptionTest
    habits: HabitTest
    folder: Path
    base: str
    examples: Examples
    variations: Variations
    windows: Windows
    rules: LoopThresholds
    judge: Callable[[], str | None]
    skills: Callable[[], Sequence[Skill]]
    broken_share: Callable[[SkillName], float]
    tell: Callable[[str], Awaitable[None]]
    draw_seed: Callable[[], int]
    retry_s: float
    server: RolloutServer | None = None

    def __post_init__(self) -> None:
        self._told: str | None = None
        self._tries = 0
        self._is_demanded = False
        self._absorption_from: dict[Clocks, int] = {}
        self._dropped: set[int] = set()
        self._in_hand: int | None = None
        self._let_go = anyio.Event()
        self.wakeup = LoopWakeup()
        self.state = LoopState.WAITING
        self.trouble: str | None = None
        self.notice: str | None = None
        self.tally: RunTally | None = None

    async def run(self) -> None:
        """Train whenever there is something to train on and a window to do it in."""
        while True:
            is_demanded, self._is_demanded = self._is_demanded, False
            least = LeastTurns(1) if is_demanded else self.rules.least
            if not await self.once(least):
                await self.wakeup.wait(_LOOK_EVERY_S)

    def demand(self) -> None:
        """Do not wait for a whole batch: whatever may train now is to be trained on."""
        self._is_demanded = True
        if self.state is LoopState.WAITING:
            self.state = LoopState.PREPARING
        self.wakeup.notify()

    async def drop(self, batches: Collection[int], within_s: float) -> bool:
        """Stop training on these batches, which were dropped; whether that is done within this
        time.
        """
        self._dropped |= set(batches)
        if self._in_hand not in self._dropped:
            return True
        with anyio.move_on_after(within_s):
            await self._let_go.wait()
        return self._in_hand not in self._dropped

    async def once(self, least: LeastTurns) -> bool:
        """One batch, or one candidate that waits to be proven, from where it stands to its end;
        False where there is none."""
        waiting = await run_sync(self._candidate)
        # Before its successor is begun, which inherits it, it is found out what the version that
        # serves has absorbed.
        was_tested = waiting is None and await self._find_absorbed()
        batch = None if waiting is not None else await self._batch(least)
        if waiting is None and batch is None:
            self.state = LoopState.WAITING
            return was_tested
        self._in_hand, self._let_go = None if batch is None else batch.number, anyio.Event()
        try:
            if batch is not None:
                waiting = await self._train(batch)
            if waiting is not None:
                await self._prove(waiting)
            self._tries, self.trouble, self._told = 0, None, None
        except TrainingError as error:
            await self._failed(batch, waiting, error)
        finally:
            self.state, self.tally, self._in_hand, self.notice = LoopState.WAITING, None, None, None
            self._let_go.set()
        return True

    def has_unfinished_run(self) -> bool:
        """Whether a run has begun and is not over, or its version is not judged yet. Blocks."""
        return self.batches.open_batch_now() is not None or self._candidate() is not None

    def _candidate(self) -> PolicyVersion | None:
        """A version that was trained and not yet judged: the program was stopped in between."""
        return next(
            (one for one in self.policies.versions(5) if one.state is PolicyState.CANDIDATE), None
        )

    async def _batch(self, least: LeastTurns) -> TrainingBatch | None:
        """The batch that was begun; else, in a window, a new one."""
        batch = await run_sync(self.batches.open_batch_now)
        if batch is not None:
            return batch
        if not await run_sync(self.turns.has_enough, least):
            return None
        self.state = LoopState.SHUT if self.windows.window is None else LoopState.PREPARING
        await self.windows.until_open()
        most = max(self.rules.batch_most, self.rules.batch_turns)
        number = await run_sync(self.turns.open_batch, least, most, self.draw_seed())
        return None if number is None else await run_sync(self.batches.batch, number)

    async def _train(self, batch: TrainingBatch) -> PolicyVersion | None:
        start = await self._start(batch)
        turns = await run_sync(self.turns.of_batch, batch)
        folder = self._run_folder(batch)
        plan = RunPlan(f"batch-{batch.number}", start, self.recipe.rank, batch.seed, folder)
        journal = Journal(folder / "drawn")
        size = await self._size(journal, turns)
        run = TrainingRun(
            plan=plan,
            turns=turns,
            recipe=self.recipe.resized(size),
            backend=self.backend,
            rewards=self.rewards,
            journal=journal,
            windows=self.windows,
            may_step=lambda: self._may_step(size),
            is_stale=lambda: batch.number in self._dropped or self.turns.is_outdated(batch),
            find_demonstrations=self.examples.of,
            varied=await run_sync(self.variations.of, turns, batch.seed),
            broken_share=self.broken_share,
            server=self.server,
        )
        self.state, self.tally = LoopState.TRAINING, run.tally
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
        await run_sync(keep_curve, self.folder, batch.number, folder)
        await run_sync(lambda: shutil.rmtree(folder, ignore_errors=True))
        log.info(
            "policy_trained version=%d batch=%d turns=%d", version.number, batch.number, len(turns)
        )
        return version

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
        self.notice = await judging.reduction(size, recipe)
        if self.notice is not None:
            log.info(
                "run_made_smaller steps=%d prompts=%d tokens=%d reason=%s",
                size.steps,
                size.prompts,
                size.tokens,
                self.notice,
            )
        return size

    async def _may_step(self, size: RunSize) -> None:
        """Raise TrainingBudgetError where the judging of a whole step cannot be paid for."""
        await self.judging.require(size.tokens_a_step)
        self.trouble = None

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
        return parent.weights

    async def _prove(self, candidate: PolicyVersion) -> None:
        """Weigh a candidate against what serves; what passes is promoted, what does not is
        rejected. Where general abilities are all that it lost, it is weighed again with its change
        made smaller."""
        self.state = LoopState.PROVING
        kept = CandidateScale(self.folder / "scales" / f"{candidate.number:06d}")
        scale = await run_sync(kept.read)
        report = await self._weigh(candidate, scale)
        while (
            report.lost_abilities
            and (smaller := self._smaller_than(scale)) is not None
            and await self._is_undecided(
                candidate
            )  # weights that a person promoted meanwhile stay as they are
        ):
            log.info(
                "candidate_made_smaller version=%d scale=%g reason=%s",
                candidate.number,
                smaller,
                report.reasons[0],
            )
            await run_sync(
                kept.write, smaller
            )  # before it is done: what is tried once more than needed is judged more strictly
            await self.backend.shrink(
                candidate.weights, smaller / scale, Path(candidate.weights.adapter).stem
            )
            scale = smaller
            report = await self._weigh(candidate, scale)
        if scale < 1.0:
            report = replace(
                report,
                reasons=(
                    *report.reasons,
                    f"with {scale:.0%} of its change: more of it cost general abilities",
                ),
            )
        report = replace(report, drawn_by=candidate.note or None)
        reason = "; ".join(report.reasons)
        if not await self._is_undecided(candidate):
            log.info("a_person_decided version=%d the_gate_says=%s", candidate.number, reason)
        elif not report.is_passed:
            await run_sync(self.policies.reject, candidate.number, report, reason)
        else:
            await self.versions.promote(candidate.number, reason, report)
        await run_sync(
            kept.forget
            # after the ruling: a program killed before it must not weigh smaller weights as the first
            # try
        )

    async def _is_undecided(self, candidate: PolicyVersion) -> bool:
        """Whether it is still a candidate: a person may promote it while the gate weighs it."""
        now = await run_sync(self.policies.version, candidate.number)
        return now is not None and now.state is PolicyState.CANDIDATE

    async def _weigh(self, candidate: PolicyVersion, scale: float) -> GateReport:
        """What the gate says of a candidate of which so much of its change is left. Raises
        TrainingError.
        """
        serving = await run_sync(self.policies.version, self.versions.serving.version)
        held_out = await run_sync(self.turns.held_out, _HELD_OUT)
        await self.judging.require_for_gate(held_out)
        self.trouble = None
        before = None if serving is None else serving.weights
        report = await self.proof.weigh(
            candidate.weights,
            before,
            held_out,
            seed=candidate.number,
            judge=self.judge(),
            number=(1.0, *_SMALLER).index(scale) + 1,
        )
        if not report.is_passed:
            return report
        return replace(
            report, habits=await self.habits.compare(candidate.weights, before, held_out)
        )

    def _smaller_than(self, scale: float) -> float | None:
        """The next size to try; None where all were tried, or the backend cannot make a change
        smaller.
        """
        return (
            next((one for one in _SMALLER if one < scale), None)
            if self.backend.abilities.scales
            else None
        )

    async def _find_absorbed(self) -> bool:
        """Find out which of the skills the weights that serve have absorbed; whether there was
        anything to find out. It is done once for these weights and skills, and again with more
        prompts while those there were do not decide."""
        clocks = self.turns.clocks()
        if clocks.version == BASE_POLICY or self.windows.window is None:
            return False
        prompts = await run_sync(self.turns.kept, _HELD_OUT)
        version = await run_sync(self.policies.version, clocks.version)
        if version is None or prompts < self._absorption_from.get(clocks, 0):
            return False
        self._absorption_from = {clocks: _HELD_OUT + 1}
        self.state = LoopState.ABSORBING
        try:
            found = await self._absorbed(version)
        except TrainingBudgetError:
            self._absorption_from.clear()
            return False
        except TrainingError as error:
            log.warning("absorption_not_tested version=%d reason=%s", version.number, error)
            if isinstance(error, BackendDownError | TrainerMemoryError):
                self._absorption_from.clear()
            return False
        finally:
            self.state = LoopState.WAITING
        if found.is_open:
            self._absorption_from = {clocks: prompts + _MORE_PROMPTS}
        if found.absorbed != version.absorbed:
            await run_sync(self.policies.absorb, version.number, found.absorbed)
            await self.versions.refresh()
        return True

    async def _absorbed(self, version: PolicyVersion) -> AbsorbedSkills:
        # What was absorbed is what a skill said when the version was made: one that was changed
        # since is told whatever is found. A fact stays in the prompt: it may change without the
        # turns that were made with it becoming too old.
        lasting = [skill for skill in self.skills() if skill.kind is not SkillKind.FACT]
        skills = [
            skill for skill in lasting if self.versions.is_same(skill.name, version.generation)
        ]
        turns = await run_sync(self.turns.held_out, _HELD_OUT)
        await self.judging.require_for_gate(turns)
        return await self.absorption.find(version, version.absorbed, skills, turns)

    async def _failed(
        self, batch: TrainingBatch | None, candidate: PolicyVersion | None, error: TrainingError
    ) -> None:
        """What cannot succeed is dropped, and its turns may train again; what may is tried again, a
        few times. What fails for want of a service, a package, memory or budget waits. A candidate
        that cannot be tested is rejected."""
        if (
            state := next(
                (state for kind, state in _WAITS_FOR.items() if isinstance(error, kind)), None
            )
        ) is not None:
            await self._wait(batch, state, error)
            return
        self.trouble = None
        self._tries += 1
        is_hopeless = isinstance(error, StaleError | DriftError) or self._tries >= _MOST_TRIES
        log.warning(
            "training_failed batch=%s tries=%d reason=%s",
            None if batch is None else batch.number,
            self._tries,
            error,
        )
        if not is_hopeless:
            await self.wakeup.wait(self.retry_s)
            return
        self._tries = 0
        if candidate is not None:
            await run_sync(
                self.policies.reject, candidate.number, None, f"could not be tested: {error}"
            )
            return
        assert batch is not None
        try:
            await run_sync(self.batches.drop_batch, batch.number, str(error))
        except RefusedError as again:
            log.info(
                "batch_not_dropped batch=%d reason=%s", batch.number, again
            )  # it was dropped already
        try:
            await self.backend.close(discard=True)
        except TrainingError as again:
            log.warning("run_not_discarded batch=%d reason=%s", batch.number, again)
        await run_sync(lambda: shutil.rmtree(self._run_folder(batch), ignore_errors=True))

    async def _wait(
        self, batch: TrainingBatch | None, state: LoopState, error: TrainingError
    ) -> None:
        """Say what is waited for, and wait a while. A run that waits for the budget is closed: what
        it has is on disk, and it holds no memory."""
        reason = f"waits: {error}; retrying in {self.retry_s:.0f} s"
        if state is LoopState.UNPAID:
            reason = await self.judging.reason()
            try:
                await self.backend.close(discard=False)
            except TrainingError as again:
                log.warning("run_not_closed reason=%s", again)
        if reason != self._told:
            self._told = reason
            log.warning(
                "training_waits batch=%s reason=%s", None if batch is None else batch.number, reason
            )
            await self.tell(f"training {reason}")
        self.state, self.trouble = state, reason
        await self.wakeup.wait(self.retry_s)


_WAITS_FOR: Final[Mapping[type[TrainingError], LoopState]] = {
    BackendDownError: LoopState.DOWN,
    MissingPackageError: LoopState.MISSING,
    TrainingBudgetError: LoopState.UNPAID,
    TrainerMemoryError: LoopState.MEMORY,
}
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

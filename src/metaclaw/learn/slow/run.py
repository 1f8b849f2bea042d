"""One training run: a batch of turns, some optimiser steps, in pieces between which it may stop and from which it goes on.

Each step: every prompt is answered again by the weights as they are (drawn and scored pieces are in the journal, so nothing is
drawn twice), rewards become advantages, and the data are learned from piece by piece; then the optimiser moves. What was applied is
durable; what was begun and lost is done again from the journal and comes out the same.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from anyio.to_thread import run_sync

from metaclaw.domain.batch import Drawing
from metaclaw.domain.policy import Weights
from metaclaw.errors import TrainingError
from metaclaw.learn.slow.journal import Group, Journal, group_of, rollouts_of
from metaclaw.learn.slow.pace import Pace
from metaclaw.learn.slow.recipe import Lesson, Recipe
from metaclaw.learn.slow.rewards import Rewards
from metaclaw.ports import RunPlan, TrainingBackend
from metaclaw.train.distill.hindsight import Hindsight, nudge
from metaclaw.train.distill.teacher import taught
from metaclaw.train.drift import DriftWatch, StepFigures, figures
from metaclaw.train.scored import Harvest, Scored, Skipped, normaliser
from metaclaw.train.selection import cut_pieces

log = logging.getLogger(__name__)


class StaleError(TrainingError):
    """There is nothing left in this run to learn from: all its turns were made with other rules or skills, or are gone."""


class DriftError(TrainingError):
    """The weights drift where nobody wants them; the run is given up."""


@dataclass(slots=True)
class Tally:
    """How far a run is, for people."""

    steps: int = 0
    of_steps: int = 0
    moved: int = 0
    drawn: int = 0
    mean_reward: float | None = None
    kl: float | None = None
    skipped: Skipped = field(default_factory=Skipped)


class Run:
    """One batch. `is_stale` says whether nothing of it may be learned from any more; it may block."""

    def __init__(
        self,
        *,
        plan: RunPlan,
        lessons: Sequence[Lesson],
        recipe: Recipe,
        backend: TrainingBackend,
        rewards: Rewards,
        journal: Journal,
        pace: Pace,
        is_stale: Callable[[], bool],
    ) -> None:
        self._plan = plan
        self._lessons = list(lessons)
        self._recipe = recipe
        self._backend = backend
        self._rewards = rewards
        self._journal = journal
        self._pace = pace
        self._is_stale = is_stale
        self._drift = DriftWatch()
        self.tally = Tally(of_steps=recipe.steps)

    async def complete(self, label: str) -> Weights:
        """Everything that is left of the run, as windows allow; the weights at its end. Raises TrainingError."""
        await self._may_go_on("open")
        with self._pace.timed("open"):
            progress = await self._backend.open(self._plan)
        log.info("run_opened run=%s steps=%d pieces=%d", self._plan.name, progress.steps, progress.pieces)
        self.tally.moved = progress.steps
        first = await run_sync(self._journal.next_step, progress.steps)
        for step in range(first, self._recipe.steps):
            self.tally.steps = step
            await self._step(step, progress.pieces if step == first else 0)
        self.tally.steps = self._recipe.steps
        if not self.tally.moved:
            raise StaleError(f"run {self._plan.name}: nothing in it could be learned from")
        await self._may_go_on("keep")
        with self._pace.timed("keep"):
            return await self._backend.keep(label)

    async def _step(self, step: int, done: int) -> None:
        groups = [await self._drawn(step, number, piece) for number, piece in enumerate(self._pieces())]
        scored = [one for piece in groups for one in piece]
        harvest = self._recipe.advantage.judge(scored, self.tally.kl or 0.0) + await self._distilled(scored)
        self._count(groups, harvest)
        pieces = cut_pieces(harvest.data, self._recipe.tokens_a_piece, self._seed(step))
        if not pieces:
            log.info("step_without_data run=%s step=%d skipped=%d", self._plan.name, step, harvest.skipped.total)
            await run_sync(self._journal.mark_empty, step)
            return
        stats = []
        for piece in pieces[done:]:
            await self._may_go_on("accumulate")
            with self._pace.timed("accumulate"):
                stats.append(await self._backend.accumulate(piece, self._recipe.loss))
        self._refuse_drift(figures(stats, harvest))
        await self._may_go_on("apply")
        with self._pace.timed("apply"):
            self.tally.moved = (await self._backend.apply(self._recipe.adam, normaliser(harvest.data))).step
        await run_sync(self._recipe.advantage.applied)
        await run_sync(self._journal.forget_before, step + 1)

    async def _drawn(self, step: int, number: int, lessons: Sequence[Lesson]) -> list[Scored]:
        """A piece's groups: from the journal, or drawn and scored now."""
        kept = await run_sync(self._journal.read, step, number)
        if kept is None or [group.turn for group in kept] != [lesson.turn for lesson in lessons]:
            await self._may_go_on("draw")
            with self._pace.timed("draw"):
                kept = await self._draw(step, number, lessons)
            await run_sync(self._journal.write, step, number, kept)
        return [_scored(lesson, group) for lesson, group in zip(lessons, kept, strict=True)]

    async def _draw(self, step: int, number: int, lessons: Sequence[Lesson]) -> list[Group]:
        recipe = self._recipe
        drawing = Drawing(recipe.group_size, recipe.max_tokens, recipe.temperature, self._seed(step, number))
        drawn = await self._backend.sample([lesson.prompt for lesson in lessons], drawing)
        self.tally.drawn += sum(map(len, drawn))
        groups = []
        for lesson, rollouts in zip(lessons, drawn, strict=True):
            rewards = await self._rewards.score(lesson.step, rollouts)
            groups.append(group_of(lesson.turn, rollouts, rewards))
        return groups

    async def _distilled(self, scored: Sequence[Scored]) -> Harvest:
        """What those who know better say of the same answers: the policy itself in hindsight, or a teacher."""
        harvest = Harvest(())
        hints = {lesson.turn: lesson.hinted for lesson in self._lessons if lesson.hinted is not None}
        corrected = [group for group in scored if group.turn in hints] if self._recipe.hindsight else []
        for group in corrected:
            await self._may_go_on("score")
            with self._pace.timed("score"):
                found = await self._backend.score([(hints[group.turn], rollout.tokens_T) for rollout in group.rollouts_G])
            harvest += nudge([Hindsight(group.turn, group.prompt, group.rollouts_G, tuple(found))])
        if self._recipe.teacher is not None:
            harvest += await taught(self._recipe.teacher, [(group.turn, group.prompt, group.rollouts_G) for group in scored])
        return harvest

    def _pieces(self) -> Iterator[list[Lesson]]:
        size = self._recipe.prompts_a_piece
        return (self._lessons[at : at + size] for at in range(0, len(self._lessons), size))

    async def _may_go_on(self, kind: str) -> None:
        """Wait for a window with room for a piece of this kind; raise where there is no sense in going on."""
        if await run_sync(self._is_stale):
            raise StaleError(f"run {self._plan.name}: rules or skills have changed for all its turns, or it was dropped")
        await self._pace.room_for(kind)

    def _count(self, groups: Sequence[Sequence[Scored]], harvest: Harvest) -> None:
        rewards = [reward for piece in groups for group in piece for _, reward in group.known]
        self.tally.mean_reward = sum(rewards) / len(rewards) if rewards else None
        self.tally.skipped += harvest.skipped
        log.info(
            "step_drawn run=%s step=%d mean_reward=%s data=%d skipped=%d",
            self._plan.name,
            self.tally.steps,
            self.tally.mean_reward,
            len(harvest.data),
            harvest.skipped.total,
        )

    def _refuse_drift(self, seen: StepFigures) -> None:
        self._drift, drift = self._drift.see(seen)
        self.tally.kl = seen.kl
        if drift is not None:
            raise DriftError(f"run {self._plan.name} was stopped: {drift.reason}")

    def _seed(self, step: int, piece: int = 0) -> int:
        return (self._plan.seed * 1_000_003 + step * 1_009 + piece) % (1 << 62)


def _scored(lesson: Lesson, group: Group) -> Scored:
    rewards = tuple(one.reward for one in group.drawn)
    return Scored(lesson.turn, lesson.prompt, tuple(rollouts_of(group)), rewards, lesson.key)

"""Checkpoints of a run: kept on the way, measured at the end on validation prompts and the golden subset; the best one is taken."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import groupby

from anyio.to_thread import run_sync

from metaclaw.domain.policy import Weights
from metaclaw.domain.training import Drawing, Rollout
from metaclaw.errors import TrainingError
from metaclaw.learn.slow.journal import Journal, Measured
from metaclaw.learn.slow.pace import Pace
from metaclaw.learn.slow.recipe import Recipe
from metaclaw.ports import RunPlan, Tokeniser, TrainingBackend
from metaclaw.train import Checkpoint, GoldenItem, StepRecord, checkpoint_steps, choose_checkpoint, read_answer, to_measure

log = logging.getLogger(__name__)

_GOLDEN_TOKENS = 96
Sampler = Callable[[Sequence[Sequence[int]], Drawing], Awaitable[list[list[Rollout]]]]
"""Draws rollouts of some weights."""


class StaleError(TrainingError):
    """There is nothing left in this run to learn from: all its turns were made with other rules or skills, or are gone."""


class DriftError(TrainingError):
    """The weights drifted before a checkpoint was kept; the run is dropped."""


class RunCheckpoints:
    """The checkpoints of one run. `may_go_on` waits for a window with room for a piece of a kind; `greedy_reward` is the
    mean reward of weights on the validation prompts. All that is found is in the journal."""

    def __init__(
        self,
        *,
        plan: RunPlan,
        recipe: Recipe,
        backend: TrainingBackend,
        journal: Journal,
        pace: Pace,
        may_go_on: Callable[[str], Awaitable[None]],
        greedy_reward: Callable[[Weights], Awaitable[float]],
    ) -> None:
        self._plan = plan
        self._recipe = recipe
        self._backend = backend
        self._journal = journal
        self._pace = pace
        self._may_go_on = may_go_on
        self._greedy_reward = greedy_reward

    async def keep(self, label: str, records: Sequence[StepRecord]) -> None:
        """Keep the present weights where the schedule wants them; what a better point replaces goes."""
        due, done = checkpoint_steps(records, self._recipe.schedule), len(records)
        if done not in due or await run_sync(self._journal.weights, _name(done)) is not None:
            return
        await self._may_go_on("keep")
        with self._pace.timed("keep"):
            weights = await self._backend.keep(f"{label}-step-{done:05d}")
        before = await run_sync(self._journal.all_weights)
        await run_sync(self._journal.keep_weights, _name(done), weights)
        wanted = [await run_sync(self._journal.weights, _name(one)) for one in due]
        for old in before:
            if old not in wanted:
                await self._backend.discard(old)

    async def choose(self, label: str, records: Sequence[StepRecord], reason: str) -> Weights:
        """The weights of the best checkpoint, under the label where the backend can give them another."""
        steps = checkpoint_steps(records, self._recipe.schedule)
        if not steps:
            raise DriftError(f"run {self._plan.name} was dropped before it had learned anything: {reason}")
        scales, margin = self._backend.abilities.scales, self._recipe.golden_margin
        measured: list[Checkpoint] = []
        while (missing := to_measure(steps, measured, margin, scales=scales)) is not None:
            measured.append(await self._measure(label, records, *missing))
        chosen = choose_checkpoint(measured, margin)
        log.info("checkpoint_chosen run=%s chosen=%s of=%s", self._plan.name, chosen, measured)
        weights = await self._weights(chosen.step)
        if not scales:
            return weights
        await self._may_go_on("keep")
        return await self._backend.shrink(weights, chosen.scale, label)

    async def _measure(self, label: str, records: Sequence[StepRecord], step: int, scale: float) -> Checkpoint:
        """What weights of this step and size do on the validation prompts and the golden subset."""
        begun, found = await run_sync(self._journal.measured, "begun"), await run_sync(self._journal.measured, _name(step, scale))
        if begun is None:
            begun = Measured(0.0, await self._golden_share(self._plan.start))
            await run_sync(self._journal.keep_measured, "begun", begun)
        if found is None:
            weights = await self._weights(step)
            weights = weights if scale == 1.0 else await self._smaller(label, step, scale, weights)
            validated = records[step - 1].validated if scale == 1.0 else None
            reward = await self._greedy_reward(weights) if validated is None else validated
            found = Measured(reward, await self._golden_share(weights))
            await run_sync(self._journal.keep_measured, _name(step, scale), found)
        return Checkpoint(step, scale, found.reward, 100.0 * (found.golden - begun.golden))

    async def _smaller(self, label: str, step: int, scale: float, weights: Weights) -> Weights:
        kept = await run_sync(self._journal.weights, _name(step, scale))
        if kept is None:
            await self._may_go_on("keep")
            kept = await self._backend.shrink(weights, scale, f"{label}-step-{step:05d}-of-{scale:g}")
            await run_sync(self._journal.keep_weights, _name(step, scale), kept)
        return kept

    async def _weights(self, step: int) -> Weights:
        weights = await run_sync(self._journal.weights, _name(step))
        if weights is None:
            raise StaleError(f"run {self._plan.name}: the checkpoint after step {step} is gone")
        return weights

    async def _golden_share(self, weights: Weights | None) -> float:
        """The share of the golden subset that weights pass; None are the untrained ones."""
        tokeniser, items = self._recipe.tokeniser, self._recipe.golden
        if tokeniser is None or not items:
            return 0.0
        passed, draw = 0, self.drawn_from(weights)
        # Answers are as long as in the gate, so that both measure the same.
        for room, some in groupby(sorted(items, key=_room), _room):
            asked = list(some)
            prompts = await run_sync(_prompts, tokeniser, asked)
            drawn = await self.greedy(prompts, room, draw)
            passed += sum(item.passes(read_answer(one.text)) for item, one in zip(asked, drawn, strict=True))
        return passed / len(items)

    def drawn_from(self, weights: Weights | None) -> Sampler:
        """Draws from kept weights; None are the untrained ones."""
        return self._backend.sample_base if weights is None else partial(self._backend.sample, weights=weights)

    async def greedy(self, prompts: Sequence[Sequence[int]], max_tokens: int, draw: Sampler) -> list[Rollout]:
        """The likeliest answer to each prompt."""
        await self._may_go_on("measure")
        with self._pace.timed("measure"):
            drawn = await draw(prompts, Drawing(1, max_tokens, 0.0))
        return [group[0] for group in drawn]


def _prompts(tokeniser: Tokeniser, items: Sequence[GoldenItem]) -> list[tuple[int, ...]]:
    return [tokeniser.prompt(item.request) for item in items]


def _room(item: GoldenItem) -> int:
    return min(item.max_tokens, _GOLDEN_TOKENS)


def _name(step: int, scale: float = 1.0) -> str:
    return f"{step:05d}-{scale:g}"

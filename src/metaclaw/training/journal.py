"""The journal of a run on disk: what it has drawn, scored, done and found. Nothing is drawn twice,
and every decision can be made again.

A file appears whole or not at all. What was drawn by weights that have changed since is deleted;
what is left of a step is its record. The learning curve of a run, the mean reward of each step, is
kept after the run's own files are deleted.

Checkpoints are kept on the way and measured at the end on validation prompts and the golden subset;
the best one is taken."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from anyio.to_thread import run_sync

from metaclaw.domain.policy import Weights
from metaclaw.domain.training import Drawing, Rollout
from metaclaw.durable_files import BY_UMASK, replace_file
from metaclaw.errors import TrainingError
from metaclaw.ports import RunPlan, Tokeniser, TrainingBackend
from metaclaw.training.checkpoints import Checkpoint, choose_checkpoint, to_measure
from metaclaw.training.golden import GoldenItem, read_answer
from metaclaw.training.progress import checkpoint_steps
from metaclaw.training.recipe import Recipe
from metaclaw.training.records import StepRecord

log = logging.getLogger(__name__)

_KEPT: Final = 20
_T = TypeVar("_T")
_encoder = msgspec.msgpack.Encoder()


class Measured(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint's mean greedy reward on the validation prompts, and the share of the golden
    subset it passes.
    """

    reward: float
    golden: float


class Journal:
    """What one run has drawn, done and found: values by name in one folder. What was drawn for a
    step is named `step-…`, its record `record-…`, weights that the backend keeps `weights-…`. Every
    method raises TrainingError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def find(self, name: str, kind: type[_T]) -> _T | None:
        """What is kept under this name; None where there is nothing, or it cannot be read."""
        return await run_sync(self._find, name, kind)

    async def keep(self, name: str, what: object) -> None:
        """Keep a value; it is on disk when this returns."""
        await run_sync(self._keep, name, what)

    async def once(self, name: str, kind: type[_T], make: Callable[[], Awaitable[_T]]) -> _T:
        """What is kept under this name, or what is made now and kept."""
        found = await self.find(name, kind)
        if found is None:
            found = await make()
            await self.keep(name, found)
        return found

    async def records(self) -> list[StepRecord]:
        """The records of all finished steps, in order."""
        return await run_sync(self.read_records)

    def read_records(self) -> list[StepRecord]:
        """The same; blocks."""
        found: list[StepRecord] = []
        while (record := self._find(record_name(len(found)), StepRecord)) is not None:
            found.append(record)
        return found

    async def drop_records(self, first: int) -> None:
        """Forget this record and those behind it."""
        await run_sync(self._drop, "record", lambda step: step >= first)

    async def forget_before(self, step: int) -> None:
        """Drop what was drawn for earlier steps. Their records stay."""
        await run_sync(self._drop, "step", lambda earlier: earlier < step)

    async def all_weights(self) -> list[Weights]:
        """All weights that were ever kept in this run."""
        names = sorted(path.stem for path in self._folder.glob("weights-*.msgpack"))
        found = [await self.find(name, Weights) for name in names]
        return [weights for weights in found if weights is not None]

    def _drop(self, kind: str, which: Callable[[int], bool]) -> None:
        for path in self._folder.glob(f"{kind}-*.msgpack"):
            if which(int(path.stem.split("-")[1])):
                path.unlink(missing_ok=True)

    def _find(self, name: str, kind: type[_T]) -> _T | None:
        try:
            return msgspec.msgpack.decode(
                (self._folder / f"{name}.msgpack").read_bytes(), type=kind
            )
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        except OSError as error:
            raise TrainingError(f"cannot read the run's journal: {error}") from error

    def _keep(self, name: str, what: object) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            replace_file(self._folder / f"{name}.msgpack", _encoder.encode(what), mode=BY_UMASK)
        except OSError as error:
            raise TrainingError(
                f"cannot keep the run's journal in {self._folder}: {error}"
            ) from error


def record_name(step: int) -> str:
    """The name of a step's record."""
    return f"record-{step:05d}"


def keep_curve(folder: Path, batch: int, run: Path) -> None:
    """Keep the curve of a run that is over; only the newest few are kept. Blocks. A curve that
    cannot be kept is logged.
    """
    curves = folder / "curves"
    try:
        rewards = _rewards(run)
        curves.mkdir(parents=True, exist_ok=True)
        (curves / f"{batch:06d}.json").write_bytes(msgspec.json.encode(rewards))
        for old in sorted(curves.glob("*.json"))[:-_KEPT]:
            old.unlink(missing_ok=True)
    except (OSError, TrainingError) as error:
        log.warning("curve_not_kept batch=%d reason=%s", batch, error)


def newest_curve(folder: Path) -> list[float]:
    """The rewards of the run that goes on, or of the last one. Blocks."""
    runs, curves = (
        sorted((folder / "runs").glob("[0-9]*")),
        sorted((folder / "curves").glob("[0-9]*.json")),
    )
    try:
        if runs and (rewards := _rewards(runs[-1])):
            return rewards
        return msgspec.json.decode(curves[-1].read_bytes(), type=list[float]) if curves else []
    except (OSError, TrainingError, msgspec.DecodeError):
        return []


def _rewards(run: Path) -> list[float]:
    records = Journal(run / "drawn").read_records()
    return [record.reward for record in records if record.reward is not None]


_GOLDEN_TOKENS = 96
Sampler = Callable[[Sequence[Sequence[int]], Drawing], Awaitable[list[list[Rollout]]]]
"""Draws rollouts of some weights."""


class StaleError(TrainingError):
    """There is nothing left in this run to learn from: all its turns were made with other rules or
    skills, or are gone.
    """


class DriftError(TrainingError):
    """The weights drifted before a checkpoint was kept; the run is dropped."""


@dataclass(eq=False, kw_only=True)
class RunCheckpoints:
    """The checkpoints of one run. `may_go_on` waits for a window;
    `greedy_reward` is the mean reward of weights on the validation prompts. All that is found is in
    the journal."""

    plan: RunPlan
    recipe: Recipe
    backend: TrainingBackend
    journal: Journal
    may_go_on: Callable[[], Awaitable[None]]
    greedy_reward: Callable[[Weights], Awaitable[float]]

    async def keep(self, label: str, records: Sequence[StepRecord]) -> None:
        """Keep the present weights where the schedule wants them; what a better point replaces
        goes.
        """
        due, done = checkpoint_steps(records, self.recipe.schedule), len(records)
        if done not in due or await self._kept(done) is not None:
            return
        await self.may_go_on()
        weights = await self.backend.keep(f"{label}-step-{done:05d}")
        before = await self.journal.all_weights()
        await self.journal.keep(f"weights-{_name(done)}", weights)
        wanted = [await self._kept(one) for one in due]
        for old in before:
            if old not in wanted:
                await self.backend.discard(old)

    async def choose(self, label: str, records: Sequence[StepRecord], reason: str) -> Weights:
        """The weights of the best checkpoint, under the label where the backend can give them
        another.
        """
        steps = checkpoint_steps(records, self.recipe.schedule)
        if not steps:
            raise DriftError(
                f"run {self.plan.name} was dropped before it had learned anything: {reason}"
            )
        scales, margin = self.backend.abilities.scales, self.recipe.golden_margin
        measured: list[Checkpoint] = []
        while (missing := to_measure(steps, measured, margin, scales=scales)) is not None:
            measured.append(await self._measure(label, records, *missing))
        chosen = choose_checkpoint(measured, margin)
        log.info("checkpoint_chosen run=%s chosen=%s of=%s", self.plan.name, chosen, measured)
        weights = await self._weights(chosen.step)
        if not scales:
            return weights
        await self.may_go_on()
        return await self.backend.shrink(weights, chosen.scale, label)

    async def _measure(
        self, label: str, records: Sequence[StepRecord], step: int, scale: float
    ) -> Checkpoint:
        """What weights of this step and size do on the validation prompts and the golden subset."""

        async def golden_before() -> float:
            return await self._golden_share(self.plan.start)

        async def measure() -> Measured:
            weights = await self._weights(step)
            weights = weights if scale == 1.0 else await self._smaller(label, step, scale, weights)
            validated = records[step - 1].validated if scale == 1.0 else None
            reward = await self.greedy_reward(weights) if validated is None else validated
            return Measured(reward, await self._golden_share(weights))

        begun = await self.journal.once("golden-begun", float, golden_before)
        found = await self.journal.once(f"measured-{_name(step, scale)}", Measured, measure)
        return Checkpoint(step, scale, found.reward, 100.0 * (found.golden - begun))

    async def _smaller(self, label: str, step: int, scale: float, weights: Weights) -> Weights:
        async def shrink() -> Weights:
            await self.may_go_on()
            return await self.backend.shrink(
                weights, scale, f"{label}-step-{step:05d}-of-{scale:g}"
            )

        return await self.journal.once(f"weights-{_name(step, scale)}", Weights, shrink)

    async def _kept(self, step: int) -> Weights | None:
        return await self.journal.find(f"weights-{_name(step)}", Weights)

    async def _weights(self, step: int) -> Weights:
        weights = await self._kept(step)
        if weights is None:
            raise StaleError(f"run {self.plan.name}: the checkpoint after step {step} is gone")
        return weights

    async def _golden_share(self, weights: Weights | None) -> float:
        """The share of the golden subset that weights pass; None are the untrained ones."""
        tokeniser, items = self.recipe.tokeniser, self.recipe.golden
        if tokeniser is None or not items:
            return 0.0
        passed, draw = 0, self.drawn_from(weights)
        # Answers are as long as in the gate, so that both measure the same.
        for room, some in groupby(sorted(items, key=_room), _room):
            asked = list(some)
            prompts = await run_sync(_prompts, tokeniser, asked)
            drawn = await self.greedy(prompts, room, draw)
            passed += sum(
                item.passes(read_answer(one.text)) for item, one in zip(asked, drawn, strict=True)
            )
        return passed / len(items)

    def drawn_from(self, weights: Weights | None) -> Sampler:
        """Draws from kept weights; None are the untrained ones."""
        return (
            self.backend.sample_base
            if weights is None
            else partial(self.backend.sample, weights=weights)
        )

    async def greedy(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, draw: Sampler
    ) -> list[Rollout]:
        """The likeliest answer to each prompt."""
        await self.may_go_on()
        drawn = await draw(prompts, Drawing(1, max_tokens, 0.0))
        return [group[0] for group in drawn]


def _prompts(tokeniser: Tokeniser, items: Sequence[GoldenItem]) -> list[tuple[int, ...]]:
    return [tokeniser.prompt(item.request) for item in items]


def _room(item: GoldenItem) -> int:
    return min(item.max_tokens, _GOLDEN_TOKENS)


def _name(step: int, scale: float = 1.0) -> str:
    return f"{step:05d}-{scale:g}"

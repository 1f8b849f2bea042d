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

from metaclaw.domain.ids import TurnId
from metaclaw.domain.policy import Weights
from metaclaw.domain.training import Drawing, PieceStats, Rollout
from metaclaw.durable_files import BY_UMASK, replace_file
from metaclaw.errors import TrainingError
from metaclaw.learn.slow.recipe import Pace, Recipe
from metaclaw.ports import RunPlan, Tokeniser, TrainingBackend
from metaclaw.train import (
    Checkpoint,
    Demonstration,
    GoldenItem,
    Rehearsed,
    RunSize,
    StepRecord,
    checkpoint_steps,
    choose_checkpoint,
    read_answer,
    to_measure,
)

log = logging.getLogger(__name__)

_KEPT: Final = 20
_T = TypeVar("_T")
_encoder = msgspec.msgpack.Encoder()


class DrawnRecord(msgspec.Struct, frozen=True, array_like=True):
    """One rollout as it is kept; the reward is None where it could not be scored."""

    tokens: list[int]
    logprobs: list[float]
    text: str
    is_whole: bool
    reward: float | None


class DrawnGroup(msgspec.Struct, frozen=True, array_like=True):
    """The rollouts of one turn's prompt."""

    turn: str
    drawn: list[DrawnRecord]


class Measured(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint's mean greedy reward on the validation prompts, and the share of the golden
    subset it passes.
    """

    reward: float
    golden: float


class Journal:
    """What one run has drawn, done and found, in one folder. Blocks; every method raises
    TrainingError.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def size(self) -> RunSize | None:
        """The size the run was begun with, or None where it has not been."""
        return self._find("size", RunSize)

    def keep_size(self, size: RunSize) -> None:
        """Keep the run's size: it goes on with that, whatever the budget has then."""
        self._keep("size", size)

    def read(self, step: int, piece: int) -> list[DrawnGroup] | None:
        """What was drawn for this piece, or None where it has not been."""
        return self._find(_piece(step, piece), list[DrawnGroup])

    def write(self, step: int, piece: int, groups: Sequence[DrawnGroup]) -> None:
        """Keep a piece; it is on disk when this returns."""
        self._keep(_piece(step, piece), list(groups))

    def stats(self, step: int) -> list[PieceStats]:
        """What the pieces learned from in this step looked like, as far as they were."""
        return self._find(f"step-{step:05d}-stats", list[PieceStats]) or []

    def keep_stats(self, step: int, stats: Sequence[PieceStats]) -> None:
        """Keep what the pieces of a step look like so far."""
        self._keep(f"step-{step:05d}-stats", list(stats))

    def records(self) -> list[StepRecord]:
        """The records of all finished steps, in order."""
        found: list[StepRecord] = []
        while (record := self._find(f"record-{len(found):05d}", StepRecord)) is not None:
            found.append(record)
        return found

    def keep_record(self, step: int, record: StepRecord) -> None:
        """Keep a step's record, for the whole run."""
        self._keep(f"record-{step:05d}", record)

    def drop_records(self, first: int) -> None:
        """Forget this record and those behind it."""
        for path in self._folder.glob("record-*.msgpack"):
            if int(path.stem.split("-")[1]) >= first:
                path.unlink(missing_ok=True)

    def forget_before(self, step: int) -> None:
        """Drop what was drawn for earlier steps. Their records stay."""
        for path in self._folder.glob("step-*.msgpack"):
            if int(path.stem.split("-")[1]) < step:
                path.unlink(missing_ok=True)

    def rehearsed(self, piece: int) -> list[Rehearsed] | None:
        """Answers that are rehearsed, or None where this piece of them was not drawn."""
        return self._find(f"rehearsal-{piece:05d}", list[Rehearsed])

    def keep_rehearsed(self, piece: int, answers: Sequence[Rehearsed]) -> None:
        """Keep a piece of the answers that are rehearsed."""
        self._keep(f"rehearsal-{piece:05d}", list(answers))

    def demonstrations(self) -> list[Demonstration] | None:
        """The right answers that were known when the run began, or None where they were not looked
        for.
        """
        return self._find("demonstrations", list[Demonstration])

    def keep_demonstrations(self, known: Sequence[Demonstration]) -> None:
        """Keep the right answers that are known."""
        self._keep("demonstrations", list(known))

    def weights(self, name: str) -> Weights | None:
        """Weights that were kept under this name."""
        return self._find(f"weights-{name}", Weights)

    def keep_weights(self, name: str, weights: Weights) -> None:
        """Remember weights that the backend keeps."""
        self._keep(f"weights-{name}", weights)

    def all_weights(self) -> list[Weights]:
        """All weights that were ever kept in this run."""
        names = sorted(
            path.stem.removeprefix("weights-") for path in self._folder.glob("weights-*.msgpack")
        )
        return [weights for name in names if (weights := self.weights(name)) is not None]

    def measured(self, name: str) -> Measured | None:
        """What weights of this name were found to do."""
        return self._find(f"measured-{name}", Measured)

    def keep_measured(self, name: str, measured: Measured) -> None:
        """Keep what weights were found to do."""
        self._keep(f"measured-{name}", measured)

    def _find(self, name: str, kind: type[_T]) -> _T | None:
        """A file that cannot be read counts as none."""
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


def _piece(step: int, piece: int) -> str:
    return f"step-{step:05d}-piece-{piece:05d}"


def group_of(
    turn: TurnId, rollouts: Sequence[Rollout], rewards: Sequence[float | None]
) -> DrawnGroup:
    """Rollouts and rewards as they are kept."""
    drawn = [
        DrawnRecord(list(one.tokens_T), list(one.logprobs_T), one.text, one.is_whole, reward)
        for one, reward in zip(rollouts, rewards, strict=True)
    ]
    return DrawnGroup(turn, drawn)


def rollouts_of(group: DrawnGroup) -> list[Rollout]:
    """The rollouts of a group that was kept."""
    return [
        Rollout(tuple(one.tokens), tuple(one.logprobs), one.text, one.is_whole)
        for one in group.drawn
    ]


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
    return [
        record.reward for record in Journal(run / "drawn").records() if record.reward is not None
    ]


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
    """The checkpoints of one run. `may_go_on` waits for a window with room for a piece of a kind;
    `greedy_reward` is the mean reward of weights on the validation prompts. All that is found is in
    the journal."""

    plan: RunPlan
    recipe: Recipe
    backend: TrainingBackend
    journal: Journal
    pace: Pace
    may_go_on: Callable[[str], Awaitable[None]]
    greedy_reward: Callable[[Weights], Awaitable[float]]

    async def keep(self, label: str, records: Sequence[StepRecord]) -> None:
        """Keep the present weights where the schedule wants them; what a better point replaces
        goes.
        """
        due, done = checkpoint_steps(records, self.recipe.schedule), len(records)
        if done not in due or await run_sync(self.journal.weights, _name(done)) is not None:
            return
        await self.may_go_on("keep")
        with self.pace.timed("keep"):
            weights = await self.backend.keep(f"{label}-step-{done:05d}")
        before = await run_sync(self.journal.all_weights)
        await run_sync(self.journal.keep_weights, _name(done), weights)
        wanted = [await run_sync(self.journal.weights, _name(one)) for one in due]
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
        await self.may_go_on("keep")
        return await self.backend.shrink(weights, chosen.scale, label)

    async def _measure(
        self, label: str, records: Sequence[StepRecord], step: int, scale: float
    ) -> Checkpoint:
        """What weights of this step and size do on the validation prompts and the golden subset."""
        begun, found = (
            await run_sync(self.journal.measured, "begun"),
            await run_sync(self.journal.measured, _name(step, scale)),
        )
        if begun is None:
            begun = Measured(0.0, await self._golden_share(self.plan.start))
            await run_sync(self.journal.keep_measured, "begun", begun)
        if found is None:
            weights = await self._weights(step)
            weights = weights if scale == 1.0 else await self._smaller(label, step, scale, weights)
            validated = records[step - 1].validated if scale == 1.0 else None
            reward = await self.greedy_reward(weights) if validated is None else validated
            found = Measured(reward, await self._golden_share(weights))
            await run_sync(self.journal.keep_measured, _name(step, scale), found)
        return Checkpoint(step, scale, found.reward, 100.0 * (found.golden - begun.golden))

    async def _smaller(self, label: str, step: int, scale: float, weights: Weights) -> Weights:
        kept = await run_sync(self.journal.weights, _name(step, scale))
        if kept is None:
            await self.may_go_on("keep")
            kept = await self.backend.shrink(
                weights, scale, f"{label}-step-{step:05d}-of-{scale:g}"
            )
            await run_sync(self.journal.keep_weights, _name(step, scale), kept)
        return kept

    async def _weights(self, step: int) -> Weights:
        weights = await run_sync(self.journal.weights, _name(step))
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
        await self.may_go_on("measure")
        with self.pace.timed("measure"):
            drawn = await draw(prompts, Drawing(1, max_tokens, 0.0))
        return [group[0] for group in drawn]


def _prompts(tokeniser: Tokeniser, items: Sequence[GoldenItem]) -> list[tuple[int, ...]]:
    return [tokeniser.prompt(item.request) for item in items]


def _room(item: GoldenItem) -> int:
    return min(item.max_tokens, _GOLDEN_TOKENS)


def _name(step: int, scale: float = 1.0) -> str:
    return f"{step:05d}-{scale:g}"

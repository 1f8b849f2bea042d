"""The checkpoints of a run: kept on the way, and measured at the end. The one with the highest
reward on validation prompts is taken, unless others lose less on the golden set."""

import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from metaclaw.domain.policy import Weights
from metaclaw.ports import RunPlan
from metaclaw.training.abilities import passed_items
from metaclaw.training.curriculum import TrainingPrompt
from metaclaw.training.golden import GoldenItem
from metaclaw.training.journal import DriftError, Journal, StaleError
from metaclaw.training.progress import checkpoint_steps
from metaclaw.training.recipe import Recipe
from metaclaw.training.records import StepRecord
from metaclaw.training.sampling import VersionSampler

log = logging.getLogger(__name__)

_NEARLY: Final = 0.03
_SHARE: Final = 6
_LEAST: Final = 8


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """Weights after `step`. `reward` is the mean reward of greedy answers to the validation prompts,
    `golden` the points gained or lost on the golden subset since the beginning of the run."""

    step: int
    reward: float
    golden: float


def choose_checkpoint(measured: Sequence[Checkpoint], margin: float) -> Checkpoint:
    """The checkpoint with the most golden points among those whose reward is close to the best. A
    checkpoint that loses more than the margin is chosen only if all of them do."""
    best = max(checkpoint.reward for checkpoint in measured)
    good = [checkpoint for checkpoint in measured if checkpoint.reward >= best - _NEARLY]
    harmless = [checkpoint for checkpoint in good if checkpoint.golden >= -margin]
    return max(harmless or good, key=lambda one: (one.golden, one.reward, one.step))


def set_aside(
    prompts: Sequence[TrainingPrompt], most: int
) -> tuple[list[TrainingPrompt], list[TrainingPrompt]]:
    """Prompts for training, and at most `most` prompts for validation: a sixth of each key, chosen
    by a hash of the turn's id. If that would be too few, all prompts train and some of them
    validate, too."""
    by_key: dict[str, list[TrainingPrompt]] = {}
    for prompt in sorted(prompts, key=_hash_of):
        by_key.setdefault(prompt.key, []).append(prompt)
    apart = [
        prompt for same_key in by_key.values() for prompt in same_key[: len(same_key) // _SHARE]
    ]
    if len(apart) < _LEAST:
        return list(prompts), sorted(prompts, key=_hash_of)[:most]
    names = {prompt.turn for prompt in apart}
    return [prompt for prompt in prompts if prompt.turn not in names], sorted(apart, key=_hash_of)[
        :most
    ]


def add_varied(
    pool: Sequence[TrainingPrompt],
    validation: Sequence[TrainingPrompt],
    varied: Sequence[TrainingPrompt],
    most: int,
) -> tuple[list[TrainingPrompt], list[TrainingPrompt]]:
    """The two parts of `set_aside` with varied prompts, which train. Where all prompts for
    validation train as well, up to half of `most` become varied ones that do not: the others show
    only what was learned by heart."""
    training = {prompt.turn for prompt in pool}
    if any(prompt.turn not in training for prompt in validation):
        return [*pool, *varied], list(validation)
    others, apart = set_aside(varied, most // 2)
    if len(others) == len(varied):
        return [*pool, *varied], list(validation)
    return [*pool, *others], [*apart, *validation[: most - len(apart)]]


def split_golden(
    items: Sequence[GoldenItem], most: int
) -> tuple[tuple[GoldenItem, ...], tuple[GoldenItem, ...]]:
    """Items for choosing checkpoints, at most `most` of every fourth item, and the other items, for
    the gate: items that chose weights do not prove them. Both parts have the same share of every
    kind of question and of every answer, so that a model which always says no has the same score on
    both. The gate's items are mixed, since it may decide after the first few hundred."""
    ordered = sorted(
        items, key=lambda item: (item.name.partition("-")[0], item.reference, _hash(item.name))
    )
    choosing = ordered[3::4]
    proving = sorted(
        (item for at, item in enumerate(ordered) if at % 4 != 3), key=lambda item: _hash(item.name)
    )
    chosen = (
        [choosing[at * len(choosing) // most] for at in range(most)]
        if len(choosing) > most
        else choosing
    )
    return tuple(chosen), tuple(proving)


def _hash_of(prompt: TrainingPrompt) -> bytes:
    return _hash(f"validation {prompt.turn}")


def _hash(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=8).digest()


@dataclass(eq=False, kw_only=True)
class RunCheckpoints:
    """The checkpoints of one run. `greedy_reward` is the mean reward of weights on the validation
    prompts. All that is found is in the journal."""

    plan: RunPlan
    recipe: Recipe
    sampler: VersionSampler
    journal: Journal
    greedy_reward: Callable[[Weights], Awaitable[float]]

    async def keep(self, label: str, records: Sequence[StepRecord]) -> None:
        """Keep the present weights where the schedule wants them; what a better point replaces
        goes.
        """
        due, done = checkpoint_steps(records, self.recipe), len(records)
        if done not in due or await self._kept(done) is not None:
            return
        await self.sampler.until_open()
        weights = await self.sampler.backend.keep(f"{label}-step-{done:05d}")
        before = await self.journal.all_weights()
        await self.journal.keep(_weights_name(done), weights)
        wanted = [await self._kept(one) for one in due]
        for old in before:
            if old not in wanted:
                await self.sampler.backend.discard(old)

    async def choose(self, label: str, records: Sequence[StepRecord], reason: str) -> Weights:
        """The weights of the best checkpoint, under the label where the backend can give them
        another.
        """
        steps = checkpoint_steps(records, self.recipe)
        if not steps:
            raise DriftError(
                f"run {self.plan.name} was dropped before it had learned anything: {reason}"
            )
        measured = [await self._measure(records, step) for step in steps]
        chosen = choose_checkpoint(measured, self.recipe.golden_margin)
        log.info("checkpoint_chosen run=%s chosen=%s of=%s", self.plan.name, chosen, measured)
        weights = await self._weights(chosen.step)
        if not self.sampler.backend.abilities.scales:
            return weights
        await self.sampler.until_open()
        return await self.sampler.backend.shrink(weights, 1.0, label)

    async def _measure(self, records: Sequence[StepRecord], step: int) -> Checkpoint:
        """What the weights after this step do on the validation prompts and the golden subset."""

        async def golden_before() -> float:
            return await self._golden_share(self.plan.start)

        async def measure() -> Checkpoint:
            weights, validated = await self._weights(step), records[step - 1].validated
            reward = await self.greedy_reward(weights) if validated is None else validated
            return Checkpoint(step, reward, 100.0 * (await self._golden_share(weights) - begun))

        begun = await self.journal.once("golden-begun", float, golden_before)
        return await self.journal.once(f"measured-{step:05d}", Checkpoint, measure)

    async def _kept(self, step: int) -> Weights | None:
        return await self.journal.find(_weights_name(step), Weights)

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
        passed = await passed_items(items, self.sampler, tokeniser, weights)
        return sum(passed.values()) / len(items)


def _weights_name(step: int) -> str:
    return f"weights-{step:05d}"

"""Choose the checkpoint of a run: the one with the highest reward on validation prompts, unless
others lose less on the golden set. Pure.

If the chosen checkpoint loses more than the margin, it is measured again with smaller changes of
its weights."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from metaclaw.training.curriculum import TrainingPrompt
from metaclaw.training.golden import GoldenItem

SCALES: Final = (1.0, 0.9, 0.8)
"""Factors for the change of the weights; the first is the change as it was learned."""
_NEARLY: Final = 0.03
_SHARE: Final = 6
_LEAST: Final = 8


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Weights after `step`, with their change multiplied by `scale`. `reward` is the mean reward of
    greedy answers to the validation prompts, `golden` the points gained or lost on the golden
    subset since the beginning of the run."""

    step: int
    scale: float
    reward: float
    golden: float

    @property
    def lost(self) -> float:
        """Points lost on the golden subset."""
        return max(0.0, -self.golden)


def choose_checkpoint(measured: Sequence[Checkpoint], margin: float) -> Checkpoint:
    """The checkpoint with the most golden points among those whose reward is close to the best. A
    checkpoint that loses more than the margin is chosen only if all of them do."""
    best = max(checkpoint.reward for checkpoint in measured)
    good = [checkpoint for checkpoint in measured if checkpoint.reward >= best - _NEARLY]
    harmless = [checkpoint for checkpoint in good if checkpoint.lost <= margin]
    return max(
        harmless or good,
        key=lambda checkpoint: (
            checkpoint.golden,
            checkpoint.reward,
            checkpoint.step,
            checkpoint.scale,
        ),
    )


def to_measure(
    steps: Iterable[int], measured: Sequence[Checkpoint], margin: float, *, scales: bool
) -> tuple[int, float] | None:
    """Step and scale of the weights to measure next; None if enough is known to choose. Smaller
    changes are measured only if the checkpoint that would be chosen loses more than the margin."""
    known = {(checkpoint.step, checkpoint.scale) for checkpoint in measured}
    for step in steps:
        if (step, SCALES[0]) not in known:
            return step, SCALES[0]
    chosen = choose_checkpoint(measured, margin)
    if not scales or chosen.lost <= margin:
        return None
    step = choose_checkpoint(
        [checkpoint for checkpoint in measured if checkpoint.scale == SCALES[0]], margin
    ).step
    return next(((step, scale) for scale in SCALES[1:] if (step, scale) not in known), None)


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

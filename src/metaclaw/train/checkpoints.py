"""Which weights of a run are taken: those that earn most on validation prompts, unless they lose on the golden set what others do
not. Pure.

Where the weights that would be taken lose more than the margin, they are measured again with their change made smaller.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from metaclaw.train.curriculum import TrainingPrompt
from metaclaw.train.golden import GoldenItem

SCALES: Final = (1.0, 0.9, 0.8)
"""Sizes of the change, the first as it was learned."""
_NEARLY: Final = 0.03
_SHARE: Final = 6
_LEAST: Final = 8


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Weights that might be taken: after which step, in which size, their mean greedy reward on the validation prompts, and the
    points of the golden subset they gained or lost against the weights the run began with."""

    step: int
    scale: float
    reward: float
    golden: float

    @property
    def lost(self) -> float:
        """Points of the golden subset that are gone."""
        return max(0.0, -self.golden)


def choose_checkpoint(measured: Sequence[Checkpoint], margin: float) -> Checkpoint:
    """Of those that earn nearly as much as the best, the one that does best on the golden subset; one that loses more than
    the margin only where all of them do."""
    best = max(one.reward for one in measured)
    able = [one for one in measured if one.reward >= best - _NEARLY]
    whole = [one for one in able if one.lost <= margin]
    return max(whole or able, key=lambda one: (one.golden, one.reward, one.step, one.scale))


def to_measure(steps: Iterable[int], measured: Sequence[Checkpoint], margin: float, *, scales: bool) -> tuple[int, float] | None:
    """The weights to be measured next, as step and scale; None where enough is known to choose. Smaller changes are measured of the
    checkpoint that would be taken, and only where it loses more than the margin."""
    known = {(one.step, one.scale) for one in measured}
    for step in steps:
        if (step, SCALES[0]) not in known:
            return step, SCALES[0]
    chosen = choose_checkpoint(measured, margin)
    if not scales or chosen.lost <= margin:
        return None
    at = choose_checkpoint([one for one in measured if one.scale == SCALES[0]], margin).step
    return next(((at, scale) for scale in SCALES[1:] if (at, scale) not in known), None)


def set_aside(prompts: Sequence[TrainingPrompt], most: int) -> tuple[list[TrainingPrompt], list[TrainingPrompt]]:
    """Prompts to be drawn from, and prompts to validate by: a sixth of each key, chosen by a hash of the turn's id. Where that
    would be too few, all are drawn from and some of the same validate."""
    by_key: dict[str, list[TrainingPrompt]] = {}
    for prompt in sorted(prompts, key=_place):
        by_key.setdefault(prompt.key, []).append(prompt)
    apart = [prompt for some in by_key.values() for prompt in some[: len(some) // _SHARE]]
    if len(apart) < _LEAST:
        return list(prompts), sorted(prompts, key=_place)[:most]
    names = {prompt.turn for prompt in apart}
    return [prompt for prompt in prompts if prompt.turn not in names], sorted(apart, key=_place)[:most]


def split_golden(items: Sequence[GoldenItem], most: int) -> tuple[tuple[GoldenItem, ...], tuple[GoldenItem, ...]]:
    """The items by which checkpoints are chosen, at most so many of every fourth, and those for the gate: what chose weights does
    not prove them. Both have the same share of every kind of question and of every answer: a model that always says no must not
    look better to one of them. The gate's are mixed, since it may decide after the first few hundred."""
    alike = sorted(items, key=lambda item: (item.name.partition("-")[0], item.reference, _mixed(item.name)))
    choosing = alike[3::4]
    proving = sorted((item for at, item in enumerate(alike) if at % 4 != 3), key=lambda item: _mixed(item.name))
    chosen = [choosing[at * len(choosing) // most] for at in range(most)] if len(choosing) > most else choosing
    return tuple(chosen), tuple(proving)


def _place(prompt: TrainingPrompt) -> bytes:
    return _mixed(f"validation {prompt.turn}")


def _mixed(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=8).digest()

"""Which weights of a run are taken: those that earn most on validation prompts, unless they lose on the golden set what others do
not. Pure.

Where the weights that would be taken lose more than the margin, they are measured again with their change made smaller.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from metaclaw.train.curriculum import Prompt
from metaclaw.train.golden import GoldenItem

SCALES: Final = (1.0, 0.9, 0.8)
"""Sizes of the change, the first as it was learned."""
_NEARLY: Final = 0.05
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
    """The one that earns most among those that lose at most the margin, if one of these is nearly as good as the best of all; else,
    of the nearly best, the one that loses least."""
    best = max(one.reward for one in measured)
    able = [one for one in measured if one.reward >= best - _NEARLY]
    whole = [one for one in able if one.lost <= margin]
    if whole:
        return max(whole, key=lambda one: (one.reward, one.golden, one.step, one.scale))
    return max(able, key=lambda one: (-one.lost, one.reward, one.step, one.scale))


def to_measure(steps: Iterable[int], measured: Sequence[Checkpoint], margin: float, *, scales: bool) -> tuple[int, float] | None:
    """The weights to be measured next, as step and scale; None where enough is known to choose."""
    known = {(one.step, one.scale) for one in measured}
    for scale in SCALES if scales else SCALES[:1]:
        missing = [step for step in steps if (step, scale) not in known]
        if missing:
            return missing[0], scale
        if choose_checkpoint(measured, margin).lost <= margin:
            return None
    return None


def set_aside(prompts: Sequence[Prompt], most: int) -> tuple[list[Prompt], list[Prompt]]:
    """Prompts to be drawn from, and prompts to validate by: a sixth of each key, chosen by a hash of the turn's id. Where that
    would be too few, all are drawn from and some of the same validate."""
    by_key: dict[str, list[Prompt]] = {}
    for prompt in sorted(prompts, key=_place):
        by_key.setdefault(prompt.key, []).append(prompt)
    apart = [prompt for some in by_key.values() for prompt in some[: len(some) // _SHARE]]
    if len(apart) < _LEAST:
        return list(prompts), sorted(prompts, key=_place)[:most]
    names = {prompt.turn for prompt in apart}
    return [prompt for prompt in prompts if prompt.turn not in names], sorted(apart, key=_place)[:most]


def golden_subset(items: Sequence[GoldenItem], most: int) -> tuple[GoldenItem, ...]:
    """At most so many items, spread evenly over the set."""
    return tuple(items[at * len(items) // most] for at in range(most)) if len(items) > most else tuple(items)


def _place(prompt: Prompt) -> bytes:
    return hashlib.blake2b(f"validation {prompt.turn}".encode(), digest_size=8).digest()

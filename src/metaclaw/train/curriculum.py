"""Which prompts a step is made of: those that need it most. Pure: a function of the run's records, its seed and the step.

Prompts are drawn by their key (what skills they show). Of each key a moving average says how well it goes,

    well = 0.9 well + 0.1 (mean reward + share of full rewards) / 2      after every group,

and a key comes up in proportion to max(0.15, 1 - well), each at least once where there is room. Within a key every prompt has its
turn before any comes again. A prompt whose answers could not be scored is not drawn again.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from metaclaw.train.records import StepRecord

_MEMORY: Final = 0.9
_LEAST_NEED: Final = 0.15


@dataclass(frozen=True, slots=True)
class Prompt:
    """Something that can be drawn: its name, and what it is like."""

    turn: str
    key: str


def choose_prompts(pool: Sequence[Prompt], records: Sequence[StepRecord], count: int, seed: int) -> list[Prompt]:
    """The prompts of the next step, those of one key next to each other; fewer where the pool is smaller."""
    unscored = _unscored(records)
    able = [one for one in pool if one.turn not in unscored] or list(pool)
    chance = random.Random(f"{seed}/{len(records)}")
    waiting = _waiting(able, records, seed)
    # Chosen by chance among the keys that have a prompt left: one prompt comes once in a step.
    left = {key: len(prompts) for key, prompts in waiting.items()}
    wells = key_averages(records)
    chosen: Counter[str] = Counter(chance.sample(sorted(left), min(count, len(left))))
    while chosen.total() < min(count, len(able)):
        keys = [key for key in sorted(left) if left[key] > chosen[key]]
        needs = [max(_LEAST_NEED, 1.0 - wells.get(key, 0.0)) for key in keys]
        chosen[chance.choices(keys, needs)[0]] += 1
    return [prompt for key in sorted(chosen) for prompt in waiting[key][: chosen[key]]]


def key_averages(records: Sequence[StepRecord]) -> dict[str, float]:
    """How well each key goes, as a moving average over its groups."""
    wells: dict[str, float] = {}
    for key, well in _told(records):
        wells[key] = _MEMORY * wells.get(key, 0.0) + (1.0 - _MEMORY) * well
    return wells


def _told(records: Sequence[StepRecord]) -> Iterator[tuple[str, float]]:
    for record in records:
        for group in record.groups:
            if group.mean is not None and group.full is not None:
                yield group.key, (group.mean + group.full) / 2.0


def _unscored(records: Sequence[StepRecord]) -> set[str]:
    return {group.turn for record in records for group in record.groups if group.mean is None}


def _waiting(pool: Sequence[Prompt], records: Sequence[StepRecord], seed: int) -> Mapping[str, list[Prompt]]:
    """The prompts of each key, the least drawn first, otherwise in an order given by the seed."""
    drawn = Counter(group.turn for record in records for group in record.groups)
    order = list(pool)
    random.Random(seed).shuffle(order)
    waiting: dict[str, list[Prompt]] = {}
    for prompt in sorted(order, key=lambda one: drawn[one.turn]):
        waiting.setdefault(prompt.key, []).append(prompt)
    return waiting

"""Which turns train, which prompts a step is made of, and how its data are cut into pieces. Pure and repeatable.

**Prompts** are drawn by their key (the skills they show). A moving average says how well each key goes,

    well = 0.9 well + 0.1 (mean reward + share of full rewards) / 2      after every group,

and a key comes up in proportion to max(0.15, 1 - well), each at least once where there is room. Within a key every prompt has
its turn before any comes again. A prompt whose answers could not be scored is not drawn again.

**Pieces.** A step is accumulated piece by piece, and a run may stop between two pieces. A piece costs its prompt tokens (once
for each prompt) and its drawn tokens. Data of one prompt stay together; a group that is too large is cut between rollouts and
pays its prompt again. A single rollout is never cut.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Datum
from metaclaw.train.records import StepRecord

Thing = TypeVar("Thing")
_MEMORY: Final = 0.9
_LEAST_NEED: Final = 0.15


@dataclass(frozen=True, slots=True)
class TrainingPrompt:
    """Something that can be drawn: its name, and what it is like."""

    turn: str
    key: str


def is_held_out(turn: TurnId, share: float) -> bool:
    """Whether a turn is kept for the gate. Decided by its id alone: once held out, held out for ever."""
    drawn = int.from_bytes(hashlib.blake2b(turn.encode(), digest_size=8).digest(), "big")
    return drawn < share * 2**64


def choose_prompts(pool: Sequence[TrainingPrompt], records: Sequence[StepRecord], count: int, seed: int) -> list[TrainingPrompt]:
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


def shuffled(things: Sequence[Thing], seed: int) -> list[Thing]:
    """The same things in an order that depends on the seed and their number alone."""
    order = list(things)
    random.Random(seed).shuffle(order)
    return order


def cut_pieces(data: Sequence[Datum], most_tokens: int, seed: int) -> list[list[Datum]]:
    """All data in pieces of at most so many tokens, groups in an order given by the seed."""
    pieces: list[list[Datum]] = []
    left = 0
    for group in shuffled(_by_prompt(data), seed):
        for at, one in enumerate(group):
            drawn, prompt = len(one.tokens_T), len(one.prompt)
            cost = drawn if at and left else drawn + prompt
            if not pieces or cost > left:
                pieces.append([])
                left, cost = most_tokens, drawn + prompt
            pieces[-1].append(one)
            left = max(0, left - cost)
    return pieces


def _told(records: Sequence[StepRecord]) -> Iterator[tuple[str, float]]:
    for record in records:
        for group in record.groups:
            if group.mean is not None and group.full is not None:
                yield group.key, (group.mean + group.full) / 2.0


def _unscored(records: Sequence[StepRecord]) -> set[str]:
    return {group.turn for record in records for group in record.groups if group.mean is None}


def _waiting(pool: Sequence[TrainingPrompt], records: Sequence[StepRecord], seed: int) -> Mapping[str, list[TrainingPrompt]]:
    """The prompts of each key, the least drawn first, otherwise in an order given by the seed."""
    drawn = Counter(group.turn for record in records for group in record.groups)
    order = list(pool)
    random.Random(seed).shuffle(order)
    waiting: dict[str, list[TrainingPrompt]] = {}
    for prompt in sorted(order, key=lambda one: drawn[one.turn]):
        waiting.setdefault(prompt.key, []).append(prompt)
    return waiting


def _by_prompt(data: Sequence[Datum]) -> list[list[Datum]]:
    groups: dict[tuple[TurnId, tuple[int, ...]], list[Datum]] = {}
    for one in data:
        groups.setdefault((one.turn, one.prompt), []).append(one)
    return list(groups.values())

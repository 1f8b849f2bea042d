"""Which turns train, which prompts a step has, and how its data are cut into pieces. Pure and
repeatable.

**Prompts** are drawn by their key (the skills in the prompt). Each key has a moving average of its
success,

    success = 0.9 success + 0.1 (mean reward + share of full rewards) / 2      after every group,

and is drawn with a weight of max(0.15, 1 - success), each key at least once if the step has enough
prompts. Keys with rules that were broken often come first and have up to twice the weight.
Within a key every prompt is drawn before any is drawn again. A prompt whose answers could
not be scored is not drawn again.

**Pieces.** A step is accumulated piece by piece, and a run may stop between two pieces. A piece
costs its prompt tokens (once for each prompt) and its drawn tokens. Data of one prompt stay
together; a group that is too large is cut between rollouts, which costs its prompt again. A single
rollout is never cut."""

import hashlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Datum
from metaclaw.training.records import StepRecord

Thing = TypeVar("Thing")
_MEMORY: Final = 0.9
_LEAST_NEED: Final = 0.15


@dataclass(frozen=True, slots=True)
class TrainingPrompt:
    """A prompt that can be drawn: the id of its turn, and its key."""

    turn: str
    key: str


def is_held_out(turn: TurnId, share: float) -> bool:
    """Whether a turn is kept for the gate. Only its id decides, so the answer never changes."""
    drawn = int.from_bytes(hashlib.blake2b(turn.encode(), digest_size=8).digest(), "big")
    return drawn < share * 2**64


def choose_prompts(
    pool: Sequence[TrainingPrompt],
    records: Sequence[StepRecord],
    count: int,
    seed: int,
    urgency: Mapping[str, float] | None = None,
) -> list[TrainingPrompt]:
    """At most `count` prompts for the next step, in order of their keys. `urgency` is the share of
    turns in which a rule of a key was broken: such keys come first, and more often.
    """
    urgency = urgency or {}
    unscored = {group.turn for record in records for group in record.groups if group.mean is None}
    usable = [prompt for prompt in pool if prompt.turn not in unscored] or list(pool)
    chance = random.Random(f"{seed}/{len(records)}")
    waiting = _waiting(usable, records, seed)
    # A prompt comes once in a step, so keys are drawn only while they have a prompt left.
    left = {key: len(prompts) for key, prompts in waiting.items()}
    averages = key_averages(records)
    # The same random numbers with and without urgent keys.
    order = chance.sample(sorted(left), len(left) if urgency else min(count, len(left)))
    order.sort(key=lambda key: -urgency.get(key, 0.0))
    chosen: Counter[str] = Counter(order[:count])
    while chosen.total() < min(count, len(usable)):
        keys = [key for key in sorted(left) if left[key] > chosen[key]]
        needs = [
            max(_LEAST_NEED, 1.0 - averages.get(key, 0.0)) * (1.0 + urgency.get(key, 0.0))
            for key in keys
        ]
        chosen[chance.choices(keys, needs)[0]] += 1
    return [prompt for key in sorted(chosen) for prompt in waiting[key][: chosen[key]]]


def key_averages(records: Sequence[StepRecord]) -> dict[str, float]:
    """The success of each key, as a moving average over its groups."""
    averages: dict[str, float] = {}
    for group in (group for record in records for group in record.groups):
        if group.mean is not None and group.full is not None:
            success = (group.mean + group.full) / 2.0
            averages[group.key] = _MEMORY * averages.get(group.key, 0.0) + (1.0 - _MEMORY) * success
    return averages


def shuffled(things: Sequence[Thing], seed: int) -> list[Thing]:
    """The same things in an order that depends only on the seed and their number."""
    order = list(things)
    random.Random(seed).shuffle(order)
    return order


def cut_pieces(data: Sequence[Datum], most_tokens: int, seed: int) -> list[list[Datum]]:
    """All data in pieces of at most `most_tokens` tokens. The seed determines the order of the
    groups.
    """
    pieces: list[list[Datum]] = []
    left = 0
    for group in shuffled(_by_prompt(data), seed):
        for at, datum in enumerate(group):
            drawn, prompt = len(datum.tokens_T), len(datum.prompt)
            cost = drawn if at and left else drawn + prompt
            if not pieces or cost > left:
                pieces.append([])
                left, cost = most_tokens, drawn + prompt
            pieces[-1].append(datum)
            left = max(0, left - cost)
    return pieces


def _waiting(
    pool: Sequence[TrainingPrompt], records: Sequence[StepRecord], seed: int
) -> Mapping[str, list[TrainingPrompt]]:
    """The prompts of each key, the least drawn first, otherwise in an order that the seed
    determines.
    """
    drawn = Counter(group.turn for record in records for group in record.groups)
    waiting: dict[str, list[TrainingPrompt]] = {}
    for prompt in sorted(shuffled(pool, seed), key=lambda prompt: drawn[prompt.turn]):
        waiting.setdefault(prompt.key, []).append(prompt)
    return waiting


def _by_prompt(data: Sequence[Datum]) -> list[list[Datum]]:
    groups: dict[tuple[TurnId, tuple[int, ...]], list[Datum]] = {}
    for datum in data:
        groups.setdefault((datum.turn, datum.prompt), []).append(datum)
    return list(groups.values())
